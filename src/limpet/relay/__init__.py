"""Relays: nodes that hand on others' encrypted packets and read nothing of them.

`client` uses relays, `server` is one, `stream` is TLS for where UDP is blocked; the messages here
are pure.
"""
