"""The node in its cluster: its place there, peers, relays, tunnels.

Called by `doctor.doctor` and `doctor.examine`; imports no other room of doctor.
"""
