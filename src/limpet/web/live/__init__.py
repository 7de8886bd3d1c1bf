"""The latest picture, kept while somebody looks, and what changed for each who does.

Call `feed`; `source` is whom it asks, `map_rows` is what a browser draws. Must not import `pages`
or `views`.
"""
