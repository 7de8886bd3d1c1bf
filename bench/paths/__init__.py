"""From node to node: routes, VXLAN, tunnels, relays and NATs, and many peers at once."""
