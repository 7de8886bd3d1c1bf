"""How an API server is reached, who one is there, and what is said of rights that are refused.

Call `access.find_access` (a kubeconfig, the account of a pod, or a plain address on loopback) and
`refused_rights`. Must not import the client.
"""
