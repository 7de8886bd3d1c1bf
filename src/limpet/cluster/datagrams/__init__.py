"""Datagrams between agents: one socket, signed and bounded, which shares the tunnel's port.

Call `peer_socket`; pure are `peer_datagram`, what is signed, and `unproven_budget`, how much goes
to where nobody has answered. Knows nothing of what they say.
"""
