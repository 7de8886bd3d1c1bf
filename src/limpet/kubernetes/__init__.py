"""The API server of a Kubernetes cluster: Limpet's custom resources there.

Call `resources` (documents <-> objects, pure). Must not import controller, cloud, agent or cli.
"""
