"""What the programs of `bpf/services.bpf.c` look up, as bytes."""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence

LAYOUT = 4
"""Another number for every change of the maps that the agent fills: they are pinned by it, and a
new agent fills its own from nothing."""
NOTED_LAYOUT = 2
"""Another number for every change of the maps that programs write: what stands there of open
sockets is known nowhere else, so whoever changes it once others use it writes how the former is
taken along."""
FRONTENDS, SLOTS, MEMBERS, NAMESPACES = "frontends", "slots", "members", "namespaces"
CONNECTED, PEERS, FLOWS = "connected", "peers", "flows"
"""Places of connected sockets, by cookie; whom they asked for, and whom they got, by place; of
sockets of UDP that are not connected, by cookie and who is asked."""
NOTED_MAPS = (CONNECTED, PEERS, "locks", FLOWS, "awaited", "clients")
"""Maps that programs write."""
PLACES, SETS = 8, 1 << 13
"""A connected socket has one of the places of the set that its cookie says."""
FEW = 8
"""As many slots stand in the frontend itself."""
SOCKET_MAPS = (FRONTENDS, SLOTS, MEMBERS)
"""Maps planned Service by Service; in others are elements of pods, and what programs put."""
MEMBER = struct.pack("=I", 1)
NODE, POD = struct.pack("=I", 1), struct.pack("=I", 2)
"""Kinds of network namespaces: this node's own, and a pod's."""
_MAPPED = bytes(10) + b"\xff\xff"
"""Before an address of IPv4, which makes it one of IPv6. Source: RFC 4291, section 2.5.5.2."""
_FRONTEND = struct.Struct("=III")
_COOKIE = struct.Struct("=Q")
_SET = struct.Struct(f"={PLACES}Q")
_NUMBER = struct.Struct("=I")
_NOT_CONNECTED = 1
_V4_KEY_BYTES, _V4_TARGET_BYTES = 12, 8
_TARGET = struct.Struct(">16sH2x")
PEER_BYTES = 2 * _TARGET.size
_SERVICE_PORT = struct.Struct(">16sB3xH2x")
End = tuple[bytes, int]
"""Packed address, and port."""


def service(frontend_key: bytes) -> bytes:
    """`struct service`, of a key as `elements.frontend_key` makes it."""
    return _MAPPED + frontend_key if len(frontend_key) == _V4_KEY_BYTES else frontend_key


def target(target_value: bytes) -> bytes:
    """`struct target`, of a value as `elements.target_value` makes it."""
    return _MAPPED + target_value if len(target_value) == _V4_TARGET_BYTES else target_value


def frontend(slots: Sequence[bytes], affinity_s: int, *, not_connected: bool) -> bytes:
    """`slots`: as `target` makes them; more than a few are looked up. `not_connected`: sockets of
    UDP that are connected are left to nftables."""
    few = b"".join(slots) if len(slots) <= FEW else b""
    head = _FRONTEND.pack(len(slots), affinity_s, _NOT_CONNECTED if not_connected else 0)
    return head + few.ljust(FEW * _TARGET.size, b"\0")


def namespace(cookie: int) -> bytes:
    return _COOKIE.pack(cookie)


def read_cookie(key: bytes) -> int:
    """Cookie of a namespace or a socket."""
    return int(_COOKIE.unpack(key)[0])


def array_key(number: int) -> bytes:
    return _NUMBER.pack(number)


def read_set(value: bytes) -> tuple[int, ...]:
    """Cookies of the sockets that have its places; 0: nobody has."""
    return _SET.unpack_from(value)


def read_peer(peer: bytes) -> tuple[End, End]:
    """Who was asked, who was got. `peer`: `struct peer`."""
    (asked, port), (got, its_port) = _TARGET.iter_unpack(peer[:PEER_BYTES])
    return (_plain(asked), port), (_plain(got), its_port)


def read_flow(key: bytes, value: bytes) -> tuple[int, End, End]:
    """The socket's cookie, who is asked, who is got. `key`, `value`: of the map of flows."""
    asked, _, port = _SERVICE_PORT.unpack_from(key, _COOKIE.size)
    got, its_port = _TARGET.unpack_from(value)
    return read_cookie(key[: _COOKIE.size]), (_plain(asked), port), (_plain(got), its_port)


def is_stale(peer: bytes, served: Mapping[End, Collection[End]]) -> bool:
    """Whom the socket got serves there no more. `served`: who does, by who is asked."""
    asked, got = read_peer(peer)
    now = served.get(asked)
    return now is not None and got not in now


def is_dead(peer: bytes, dead: Mapping[End, Collection[End]]) -> bool:
    """Whom the socket got answers no more. `dead`: who does not, by who is asked."""
    asked, got = read_peer(peer)
    return got in dead.get(asked, ())


def _plain(address: bytes) -> bytes:
    return address.removeprefix(_MAPPED)
