"""Netlink messages as bytes and values (pure), and `socket` that sends and hears them.

The codecs import no socket.
"""
