"""The kinds of documents that a cluster has, a file for each.

Must not import what keeps, sends or merges documents: that knows no kind.
"""
