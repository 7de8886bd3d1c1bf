"""The part for encrypted tunnels: device, peers, endpoints, rules.

`wireguard` and `ipsec` are its two backends. Must not import another part.
"""
