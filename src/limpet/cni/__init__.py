"""CNI requests: the socket, the verbs, the ledgers and attachments behind them, repair of leaks.

Call `verbs`, which makes interfaces by `interfaces` and opens hostPorts by `host_ports`. Must not
import `cluster` but `cluster.segments`: a node on its own has no cluster loaded.
"""
