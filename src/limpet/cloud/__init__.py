"""A node's conversation with the IP controller: getting in, and what each tells the other; and with
the API server of a Kubernetes cluster.

Call `session` and `join`; `second_road` and `workloads` follow an API server, as `following` does.
Must not import `controller`: `cluster.api` is what both share.
"""
