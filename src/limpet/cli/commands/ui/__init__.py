"""`limpet ui`: the page that shows the network, and the tokens that let people look at it.

Add a command to `ui`, the group; `tokens` are its nouns; `findings` makes of doctor's what the page
shows. The page itself is `limpet.web`. Must not import `web.pages` or `web.views`.
"""
