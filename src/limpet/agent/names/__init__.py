"""The agent and the process that answers names: `side` is what an agent writes for it, `main` is
that process. The two share a configuration and a disk, and import nothing of each other.
"""
