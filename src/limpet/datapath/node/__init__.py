"""The part for this node's pods: bridge, ports, routes, rules, sysctls, hostPorts and masquerade.

Add `part.NodePart` to the loop; `ports` beside it is a part of its own. Must not import `overlay`,
`policy`, `services` or `tunnel`, the other parts.
"""
