"""What both ends of a relay's TLS connection share: frames, session, handshake, packet socket.

Call `session`; `codec` is pure. Must not import `relay.client` or `relay.server`.
"""
