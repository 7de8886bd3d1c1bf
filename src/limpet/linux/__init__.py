"""Linux as it is: netlink, nftables, namespaces, connection tracking, raw packets.

Call `netlink`, `nftables` and what stands beside them from a part's `apply`, and from sockets that
say so in their name. Imports nothing of Limpet but `base`: it knows no pods, peers or clusters.
"""
