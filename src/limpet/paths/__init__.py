"""By which way each peer is reached: probed, proven, kept.

Call `prober`; `ladder` decides, pure; `watched_peers` are asked closely. Must not
program the kernel.
"""
