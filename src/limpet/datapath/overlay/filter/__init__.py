"""The filter of what peers may send, and of what pods may send to peers.

Call `apply.PeerFilter`; `ruleset` and `elements` are pure. Must not import the room's `part`, nor
other parts.
"""
