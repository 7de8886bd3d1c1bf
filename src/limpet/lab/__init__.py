"""A node in network namespaces of its own, with the real agent and the real CNI binary."""
