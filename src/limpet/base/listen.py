"""Addresses and ports as configurations name them."""

from __future__ import annotations

from ipaddress import ip_address

Listen = tuple[str, int]
"""Address and port."""


def parse_listen(text: str) -> Listen:
    """Of `0.0.0.0:7470` or `[::]:7470`. Raises: ValueError in words."""
    address, colon, port = text.rpartition(":")
    try:
        host = ip_address(address.removeprefix("[").removesuffix("]"))
    except ValueError as error:
        raise ValueError(f"{text!r}: not an address and port such as 0.0.0.0:7470") from error
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r}: no port from 0 to 65535")
    return str(host), int(port)
