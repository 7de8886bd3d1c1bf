"""Who may look at the page, and who may act: one-time links, tokens, sessions, and what every
request has to be like.

Call `guard`. Tokens are kept in a file (`tokens`) or a Secret of Kubernetes (`secret`). `sessions`
and `checks` are pure, time and randomness passed in. Must not import `pages`, `views` or `live`.
"""
