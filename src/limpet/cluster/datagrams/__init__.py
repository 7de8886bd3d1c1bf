"""Datagrams between agents: one socket, signed and bounded, which shares the tunnel's port.

Call `peer_socket`; pure are `peer_datagram`, what is signed, and `unproven_budget`, how much goes
to where nobody has answered. Of what they say it knows only how to sign what is pushed. Must not
import `membership`, `kinds`, nor `exchange` but `exchange.messages`.
"""
