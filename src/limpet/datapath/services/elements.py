"""Elements of the table's maps, as bytes: addresses and ports one after the other."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from typing import NamedTuple

from limpet.base.addresses import packed
from limpet.datapath.services.sockets.layout import End
from limpet.datapath.services.state import VERSIONS
from limpet.services.rotation import (
    Candidate,
    Here,
    Rotation,
    RotationTarget,
    may_answer,
    rotate,
    takes_clients,
)
from limpet.services.values import Service, ServicePort

MOST_SLOTS = 1 << 16
"""Most slots of one address and port, for traffic that every endpoint would do for."""
NUMBERS = {"TCP": 6, "UDP": 17, "SCTP": 132}
TARGET_BYTES = {4: 8, 6: 20}
"""Length of a value of the maps, by IP version."""
_NAMES = {number: name for name, number in NUMBERS.items()}
_END = struct.Struct(">B3xH2x")
_PORT = struct.Struct(">H2x")
_SLOT = struct.Struct("=I")
CLIENT_SEEDS = tuple(0x6C696D70 + number for number in range(3))
"""Hashes by these stand for addresses of IPv6: a client's, and twice that which it asks for."""
MOST_HASH = (1 << 32) - 1
_WORDS, _HASHES = struct.Struct("=3I"), struct.Struct("=2I")
CLUSTER, BALANCED, EXTERNAL = 0, 1, 2
"""By what a Service is asked for: what the API server gave to it alone (ports of nodes, too), what
a load balancer's controller says, what anybody writes who may write Services."""


class Frontend(NamedTuple):
    """An address and port that is asked for."""

    version: int
    address: bytes
    """Packed; empty: each of the node's."""
    port: int
    is_outside: bool
    """Meant for who comes from outside of the cluster."""
    sources: tuple[str, ...] = ()
    """Prefixes that may ask; empty: all."""
    precedence: int = CLUSTER
    """The least of several that ask for one address and port has it."""


def frontend_key(address: bytes, protocol: str, port: int) -> bytes:
    """What is asked for; `address`: packed, empty where the port of any of the node's is meant."""
    return address + _END.pack(NUMBERS[protocol], port)


def read_frontend(key: bytes) -> tuple[bytes, str, int]:
    """Address (empty: any of the node's), protocol, port."""
    number, port = _END.unpack(key[-_END.size :])
    return key[: -_END.size], _NAMES[number], port


def slot_key(frontend: bytes, slot: int) -> bytes:
    return frontend + _SLOT.pack(slot)


def slot_keys(frontend: bytes, start: int, count: int) -> Iterator[bytes]:
    """Keys of so many slots from `start` on."""
    return map(frontend.__add__, map(_SLOT.pack, range(start, start + count)))


def in_slots(slots: Mapping[bytes, bytes], frontend: bytes, start: int) -> list[bytes]:
    """What the frontend's slots from `start` on hold."""
    held: list[bytes] = []
    while (value := slots.get(slot_key(frontend, start + len(held)))) is not None:
        held.append(value)
    return held


def target_value(address: str, port: int) -> bytes:
    return packed(address) + _PORT.pack(port)


def read_target(value: bytes) -> End:
    """Packed address and port."""
    port: int = _PORT.unpack(value[-4:])[0]
    return value[:-4], port


class AskedByClients:
    """What clients ask for, by their keys in a map where their endpoints are noted."""

    def __init__(self, version: int, protocol: str, keys: Iterable[bytes]) -> None:
        """`keys`: of all that clients may be noted for; who is noted for no address among these
        has asked a port of the node."""
        self._protocol = protocol
        self._is_hashed = version == 6
        self._keys = {
            self._seen(key): key
            for key in keys
            if len(key) > _END.size and read_frontend(key)[1] == protocol
        }

    def asked(self, client: bytes) -> bytes:
        """The key of what it asks for."""
        by_address = self._keys.get(client[4:])
        if by_address is not None:
            return by_address
        return frontend_key(b"", self._protocol, int.from_bytes(client[12:14], "big"))

    def _seen(self, key: bytes) -> bytes:
        """As it is in a client's key."""
        if not self._is_hashed:
            return key
        return _asked_hashes(key[: -_END.size]) + key[-_PORT.size :]


@lru_cache(maxsize=4096)
def _asked_hashes(address: bytes) -> bytes:
    found = (_jenkins_hash(address, seed) * MOST_HASH >> 32 for seed in CLIENT_SEEDS[1:])
    return _HASHES.pack(*found)


def _jenkins_hash(address: bytes, seed: int) -> int:
    """As nftables makes it of 16 bytes. Source: jhash in include/linux/jhash.h."""
    begin = 0xDEADBEEF + len(address) + seed
    words: tuple[int, int, int] = _WORDS.unpack(address[:12])
    a, b, c = (begin + word & MOST_HASH for word in words)
    for turned in (4, 6, 8, 16, 19, 4):
        a, b, c = b, c + b & MOST_HASH, (a - c & MOST_HASH) ^ _rolled(c, turned)
    a = a + int.from_bytes(address[12:], "little") & MOST_HASH
    a, b, c = c, a, b
    for turned in (14, 11, 25, 16, 4, 14, 24):
        a, b, c = b, c, (a ^ c) - _rolled(c, turned) & MOST_HASH
    return c


def _rolled(word: int, count: int) -> int:
    return (word << count | word >> 32 - count) & MOST_HASH


def keep_objects(old: Mapping[bytes, bytes], new: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """`new`, by the objects of `old` where they are equal: what is known of the kernel holds those,
    and it would hold 100,000 of its own when all was planned again."""
    if not old:
        return new
    kept = {key: value for key, value in old.items() if key in new}
    kept.update(each for each in new.items() if each not in old.items())
    return kept


def fill_slots(targets: Iterable[RotationTarget], before: Sequence[bytes]) -> list[bytes]:
    """A value for each slot, each target as often as it weighs, where it was before if possible."""
    if not before:
        drawn = [
            value
            for each in targets
            for value in repeat(target_value(each.address, each.port), each.weight)
        ]
        return drawn if len(drawn) <= MOST_SLOTS else list(dict.fromkeys(drawn))[:MOST_SLOTS]
    wanted = Counter[bytes]()
    for each in targets:
        wanted[target_value(each.address, each.port)] += each.weight
    if wanted.total() > MOST_SLOTS:  # one each, as far as they go
        wanted = Counter(list(wanted)[:MOST_SLOTS])
    count = wanted.total()
    slots: list[bytes | None] = []
    for value in before[:count]:
        kept = wanted[value] > 0
        slots.append(value if kept else None)
        if kept:
            wanted[value] -= 1
    slots += [None] * (count - len(slots))
    rest = wanted.elements()
    return [next(rest) if value is None else value for value in slots]


class Choice(NamedTuple):
    """The choice among a port's endpoints of one family."""

    rotation: Rotation
    found: Sequence[Candidate]
    """All that there are."""
    here: Here
    able: frozenset[bytes] = frozenset()
    """Who may answer, in rotation or not, as values of maps: flows of UDP stay there."""
    able_here: frozenset[bytes] = frozenset()
    """Those of this node."""
    takes_clients: frozenset[bytes] = frozenset()
    """Who takes new connections, near or far, as values of maps: clients that are remembered come
    back to these. Not so who ends: it may have closed its port, and each try would be refused."""

    def members(
        self, protocol: str, now: frozenset[bytes], comes_back: frozenset[bytes], *, is_here: bool
    ) -> frozenset[bytes]:
        """Who may be asked on at the socket. `now`: who is in rotation. `comes_back`: whom clients
        that are remembered come back to. `is_here`: they may go to nobody else than this node's."""
        if protocol != "UDP":
            return comes_back
        # One look decides of datagrams and of clients: those of one socket stay together.
        return now | (self.able_here if is_here else self.able)

    def is_dead(self, value: bytes) -> bool:
        """Nobody is expected to answer there. `value`: as in maps."""
        return not any(
            target_value(each[0].address, each[1]) == value and may_answer(each, self.here)
            for each in self.found
        )


def choose(service: Service, port: ServicePort, found: Sequence[Candidate], here: Here) -> Choice:
    able: list[tuple[bytes, bool]] = []
    takes: Sequence[Candidate] = ()
    if service.affinity_s:
        takes = takes_clients(found, here)
    if port.protocol == "UDP":
        able = [
            (target_value(each.address, number), each.node == here.node)
            for each, number in found
            if may_answer((each, number), here)
        ]
    return Choice(
        rotate(service, found, here),
        found,
        here,
        frozenset(value for value, _ in able),
        frozenset(value for value, is_here in able if is_here),
        frozenset(target_value(each.address, number) for each, number in takes),
    )


def frontends(service: Service, port: ServicePort) -> Iterator[Frontend]:
    """By which addresses and ports a port of a Service is asked for; each once."""
    if service.is_others:
        return
    exposure = service.exposure
    versions = set()
    for address in service.addresses:
        key = packed(address)
        versions.add(_version(key))
        yield Frontend(_version(key), key, port.port, False)
    seen = set(service.addresses)
    # As kube-proxy: none of an IP version that the Service has no cluster address of.
    for address in (*exposure.external_ips, *exposure.load_balancer_ips):
        if address not in seen:
            seen.add(address)
            is_balanced = address in exposure.load_balancer_ips
            sources = exposure.source_ranges if is_balanced else ()
            if _version(key := packed(address)) in versions:
                precedence = BALANCED if is_balanced else EXTERNAL
                yield Frontend(_version(key), key, port.port, True, sources, precedence)
    if port.node_port and not service.is_headless:
        for version in VERSIONS:
            if version in versions:
                yield Frontend(version, b"", port.node_port, True)


def _version(address: bytes) -> int:
    return 4 if len(address) == 4 else 6
