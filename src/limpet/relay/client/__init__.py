"""A node's side of relays: which it uses for which peer, and its ends at them.

Call `relays`; all else here is pure, time passed in.
"""
