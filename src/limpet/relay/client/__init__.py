"""A node's use of relays: at which of them it has ends for which peer, over UDP and in TLS.

Call `relays`; `choice`, `contact`, `end` and `peer` are pure. Must not import `relay.server`.
"""
