"""`limpet trace`: a real packet from a pod, followed through this node, and where it stops.

Call `run.follow`, which sends and listens; `tables` has the temporary nftables tables, which the
kernel takes away when this process ends, however it ends; `verdict` says what the events mean,
pure. Must not import `cli.commands` but `commands.path`, for its words.
"""
