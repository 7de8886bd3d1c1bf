"""By which way each peer is reached: probed, proven, kept.

Call `prober`; `ladder` decides, pure; `watched_peers` are asked closely. Must not import
`linux.netlink` or `linux.nftables`: it does not program the kernel.
"""
