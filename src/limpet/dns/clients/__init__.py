"""Who asks here: each client's turn, and whether it is on this node. Pure.

Call `turns.ClientTurns` and `far.FarClients`. Must not import the rest of `dns`.
"""
