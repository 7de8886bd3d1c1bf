"""Datagrams between agents: one socket, signed and bounded, which shares the tunnel's port.

Call `peer_socket`; `peer_datagram` is what is signed (pure). Knows nothing of what they say.
"""
