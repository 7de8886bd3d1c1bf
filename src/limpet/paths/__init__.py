"""By which way each peer is reached: probed, proven, kept.

Call `prober`; `ladder` decides, pure. Must not program the kernel.
"""
