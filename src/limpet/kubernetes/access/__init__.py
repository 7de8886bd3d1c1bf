"""How an API server is reached, who one is there, what is said of rights that are refused, and
whether this machine's clock is right.

Call `kubeconfig.find_access` (a kubeconfig, the account of a pod, or a plain address on loopback),
`refused_rights` and `server_clock`. Imports nothing of Limpet but `base`: no client.
"""
