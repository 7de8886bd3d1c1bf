"""What may be sent between pods: NetworkPolicy of networking.k8s.io/v1, pure.

Call `parse`, which makes a `Policy` of a document, and `compiler`, which says what holds for the
pods of a node; `book` is what one node has been told. Imports nothing of Limpet but `base`: no I/O,
no clock.
"""
