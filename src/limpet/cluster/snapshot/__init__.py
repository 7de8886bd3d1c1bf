"""All that a node knows of its cluster, on its disk: fsynced, begun anew when it has grown.

Call `file`; `log` is the pure codec.
"""
