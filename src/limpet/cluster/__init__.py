"""What the nodes of a cluster know of each other: documents, signed, merged, kept and told.

Start with `membership`. Must not import a datapath, nor any process.
"""
