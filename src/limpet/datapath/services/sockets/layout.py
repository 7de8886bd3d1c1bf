"""What the programs of `bpf/services.bpf.c` look up, as bytes."""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping

LAYOUT = 1
"""Another number for every change of the maps: they are pinned by it, and outlive an agent."""
FRONTENDS, SLOTS, MEMBERS, NAMESPACES = "frontends", "slots", "members", "namespaces"
CONNECTED = "connected"
"""Of sockets of UDP, by cookie: whom they asked for, and whom they got."""
SOCKET_MAPS = (FRONTENDS, SLOTS, MEMBERS)
"""Whose elements are planned Service by Service; in others are pods', and what programs put."""
MEMBER = struct.pack("=I", 1)
NODE, POD = struct.pack("=I", 1), struct.pack("=I", 2)
"""Kinds of network namespaces: this node's own, and a pod's."""
_MAPPED = bytes(10) + b"\xff\xff"
"""Before an address of IPv4, which makes it one of IPv6. Source: RFC 4291, section 2.5.5.2."""
_FRONTEND = struct.Struct("=III")
_COOKIE = struct.Struct("=Q")
_NOT_CONNECTED = 1
_V4_KEY_BYTES, _V4_TARGET_BYTES = 12, 8
_TARGET = struct.Struct(">16sH2x")


def service(frontend_key: bytes) -> bytes:
    """`struct service`, of a key as `elements.frontend_key` makes it."""
    return _MAPPED + frontend_key if len(frontend_key) == _V4_KEY_BYTES else frontend_key


def target(target_value: bytes) -> bytes:
    """`struct target`, of a value as `elements.target_value` makes it."""
    return _MAPPED + target_value if len(target_value) == _V4_TARGET_BYTES else target_value


def frontend(slots: int, affinity_s: int, *, not_connected: bool) -> bytes:
    """`not_connected`: sockets of UDP that are connected are left to nftables."""
    return _FRONTEND.pack(slots, affinity_s, _NOT_CONNECTED if not_connected else 0)


def namespace(cookie: int) -> bytes:
    return _COOKIE.pack(cookie)


def read_cookie(key: bytes) -> int:
    """Of a namespace or a socket."""
    return int(_COOKIE.unpack(key)[0])


def is_stale(
    peer: bytes, served: Mapping[tuple[bytes, int], Collection[tuple[bytes, int]]]
) -> bool:
    """Whom the socket got serves there no more. `peer`: `struct peer`. `served`: who does, by
    address and port that are asked for."""
    (asked, port), (got, its_port) = _TARGET.iter_unpack(peer[: 2 * _TARGET.size])
    now = served.get((_plain(asked), port))
    return now is not None and (_plain(got), its_port) not in now


def _plain(address: bytes) -> bytes:
    return address.removeprefix(_MAPPED)
