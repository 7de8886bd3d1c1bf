"""Relays: nodes that hand on others' encrypted packets and read nothing of them.

Call `client` to use relays, `server` to be one; `stream` is TLS for where UDP is blocked; the
messages here are pure, and `status` is what a person is told. Must not import `paths`,
`kubernetes` or `dns`.
"""
