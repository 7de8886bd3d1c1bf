"""What may be sent between pods: NetworkPolicy of networking.k8s.io/v1, pure.

`parse` makes a `Policy` of a document, `compiled` says what holds for the pods of a node, `book` is
what one node has been told. Must not import anything but `base`: no I/O, no clock.
"""
