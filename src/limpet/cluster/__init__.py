"""What the nodes of a cluster know of each other: documents, signed, merged, kept and told.

Start with `membership`. Imports nothing of Limpet but `base`, `linux` and `picture`: no datapath,
nor any process.
"""
