"""CNI requests: the socket, the verbs, the ledgers and attachments behind them, repair of leaks.

Call `verbs`, which makes interfaces by `interfaces` and opens hostPorts by `host_ports`. Must not
import a cluster's rooms: a node on its own has none of them loaded.
"""
