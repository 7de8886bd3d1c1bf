"""Linux as it is: netlink, nftables, namespaces, connection tracking, raw packets.

Call it from a part's `apply` and from sockets that say so in their name. Knows nothing of pods,
peers or clusters.
"""
