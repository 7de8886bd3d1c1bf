"""Pods' interfaces on this node: made, recorded, announced, put aside and taken away.

Call `interface` and `attachments`; `attachment` and its codec are pure. Must not import `node.plan`
or `node.part`.
"""
