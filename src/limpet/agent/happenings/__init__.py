"""What of a node goes into its timeline: events and what is looked at now and then -> happenings.

Call `of_node.NodeHappenings`, and `of_cluster.ClusterHappenings` where it has joined one; `words`
is pure. Must not change anything that it looks at. Must not import `agent.main` or `agent.wiring`.
"""
