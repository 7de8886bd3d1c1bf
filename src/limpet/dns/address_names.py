"""Names that stand for an address. Pure."""

from __future__ import annotations

from ipaddress import ip_address

from limpet.base.addresses import Address

REVERSE_ZONES = {4: (b"in-addr", b"arpa"), 6: (b"ip6", b"arpa")}
"""By IP version. Source: RFC 1035, section 3.5, and RFC 3596, section 2.5."""


def undashed_address(label: bytes) -> Address | None:
    """The address that a pod's name, as `10-1-0-2`, stands for."""
    text = label.decode("ascii", "replace")
    for separator in (".", ":"):
        try:
            return ip_address(text.replace("-", separator))
        except ValueError:
            continue
    return None


def reversed_address(name: tuple[bytes, ...]) -> Address | None:
    """The address that a name below in-addr.arpa or ip6.arpa stands for."""
    text = [label.decode("ascii", "replace") for label in reversed(name[:-2])]
    try:
        if name[-2:] == REVERSE_ZONES[4]:
            return ip_address(".".join(text)) if len(text) == 4 else None
        digits = "".join(text)
        if len(text) != 32 or any(len(each) != 1 for each in text):
            return None
        return ip_address(int(digits, 16).to_bytes(16, "big"))
    except ValueError:
        return None
