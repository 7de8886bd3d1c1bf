"""The part for the other nodes: VXLAN devices, peer routes, neighbours, FDB, and the filter of
what peers may send.

Must not import another part.
"""
