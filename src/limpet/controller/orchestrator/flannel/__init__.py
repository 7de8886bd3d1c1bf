"""flannel beside Limpet, as its Nodes in Kubernetes say.

Call `beside`; `nodes` are its nodes as grants and presences. Must not import
`controller.api` or `admin`.
"""
