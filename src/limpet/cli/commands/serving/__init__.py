"""Commands about what a node does for its pods' traffic: Services and network policies.

Add one to its noun (`service`, `policy`); `cli.main` names them, and `cluster` has one of them
under its noun. Must not import `linux` or `datapath`: they ask the agent.
"""
