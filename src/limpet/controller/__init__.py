"""The IP controller: grants address segments to nodes and keeps the record of the cluster.

Run by `limpet controller`. Must not import anything of a node.
"""
