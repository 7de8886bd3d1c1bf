"""CNI requests: the socket, the verbs, the ledgers and attachments behind them, repair of leaks.

Call `verbs`. Must not import a cluster's rooms: a node on its own has none of them loaded.
"""
