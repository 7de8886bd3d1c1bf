"""What an API server tells of what runs in a Kubernetes: followed, and kept on the node's disk.

The agent calls `service_source.ServiceSource` and `policy_source.PolicySource`; `source` is what
all do alike. Must not import `datapath`, `dns` or `cluster`: others act on what is heard.
"""
