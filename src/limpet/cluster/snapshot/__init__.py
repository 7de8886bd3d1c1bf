"""All that a node knows of its cluster, on its disk: fsynced, begun anew when it has grown.

Call `file.SnapshotFile`; `log` is the pure codec. Must not import `membership`, `replica` or
`exchange`.
"""
