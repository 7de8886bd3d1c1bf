"""A Node of Kubernetes as values: what is read of it, and flannel's annotations. Pure.

Take `node.NodeObject`; `lease` reads and makes what flannel writes. Must not import `registry` or
`orchestrator`, which use it.
"""
