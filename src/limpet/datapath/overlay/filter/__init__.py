"""The filter of what peers may send, and of what pods may send to peers.

Call `apply.PeerFilter`; `ruleset` and `elements` are pure; `flows_apply` ends what pods had begun
before the filter was there. Must not import the room's `part`, nor other parts.
"""
