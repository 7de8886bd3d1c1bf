"""The agent and the process that answers names, which share a configuration and a disk.

Call `side.NamesSide` for what an agent writes for it, `here.here_of` for what a node knows of
others; `main.main` is that process. Must not import `agent.main`, `agent.wiring` or `datapath`: it
outlives the agent.
"""
