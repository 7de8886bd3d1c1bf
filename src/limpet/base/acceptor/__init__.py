"""TCP connections from anybody: how many are held, whose turn it is, and for how long.

Call `listener.Acceptor`; `places` bounds connections by source, `admission` (pure) has those wait
that cannot be looked at yet. Imports nothing of Limpet but `base`: it knows neither TLS nor HTTP, a
server says when it knows who somebody is.
"""
