"""What an API server tells of what runs in a Kubernetes: followed, and kept on the node's disk.

A source is made, started and stopped by the agent; `source` is what all do alike. Must not import
what acts on what they hear.
"""
