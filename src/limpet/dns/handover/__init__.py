"""How sockets outlive the process that answers names, so that no question is lost.

Call `listening`, which opens them, or takes those that a service manager has kept; `keeper` is that
where none runs; `held` has a node's agent hold them while a pod is away; `ready` says who has them.
Imports nothing of Limpet but `base` and `linux`: it knows nothing of names.
"""
