"""Netlink messages as bytes and values (pure), and a socket that sends and hears them.

Call `socket.RouteSocket`. The codecs import no socket. Imports nothing of Limpet but `base`.
"""
