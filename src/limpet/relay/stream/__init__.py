"""Relaying in a TLS connection, where no UDP gets out.

Call `tls_client`; `codec` is pure.
"""
