"""The part for the other nodes: VXLAN devices, peer routes, neighbours, FDB, and the filter of
what peers may send.

Add `part.OverlayPart` to the loop. Must not import `node`, `policy`, `services` or `tunnel`, the
other parts.
"""
