"""The part for encrypted tunnels: device, peers, endpoints, rules.

Add `part.TunnelPart` to the loop; `wireguard` and `ipsec` are its two backends. Must not import
`node`, `overlay`, `policy` or `services`, the other parts.
"""
