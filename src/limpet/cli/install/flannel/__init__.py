"""A node that flannel runs: what Limpet puts aside when it takes it over, and gives back.

Call `take_over` from install and uninstall. Must not import the agent's parts.
"""
