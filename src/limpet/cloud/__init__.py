"""A node's conversation with the IP controller: getting in, and what each tells the other.

Call `session` and `join`. Must not import the controller: `cluster.api` is what both share.
"""
