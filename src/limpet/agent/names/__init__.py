"""The agent and the process that answers names: `side` is what an agent writes for it, `here` what
a node knows of others, `main` is that process. The two processes share a configuration and a disk.
"""
