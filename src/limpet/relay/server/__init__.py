"""A relay: joins pairs of ports, forwards their packets, forgets them when they are idle.

Call `service`, and `tls_server` for nodes that come in TLS; `pairs` decides, pure. Must not import
`relay.client`.
"""
