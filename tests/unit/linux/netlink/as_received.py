"""A message as its receiver sees it."""

from __future__ import annotations

from limpet.linux.netlink import codec as wire


def received(request: wire.Request) -> wire.Message:
    """The request as its receiver sees it."""
    (message,) = wire.parse_messages(wire.frame(request, 7, ack=False))
    return message
