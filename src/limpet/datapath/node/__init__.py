"""The part for this node's pods: bridge, ports, routes, rules, sysctls, hostPorts and masquerade.

Must not import another part.
"""
