"""NAT traversal: how a gateway maps the tunnel's port, and where the node is reached from outside.

Call `public_endpoints` and `port_mapping`; `mapping`, `endpoints` and the codec are pure. Imports
nothing of Limpet but `base` and `linux`.
"""
