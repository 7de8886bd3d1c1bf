"""Elements of the table's maps, as bytes: addresses and ports one after the other."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat

from limpet.base.addresses import packed
from limpet.datapath.services.sockets.layout import End
from limpet.services.rotation import RotationTarget

MOST_SLOTS = 1 << 16
"""Most slots of one address and port, for traffic that every endpoint would do for."""
NUMBERS = {"TCP": 6, "UDP": 17, "SCTP": 132}
_NAMES = {number: name for name, number in NUMBERS.items()}
_END = struct.Struct(">B3xH2x")
_PORT = struct.Struct(">H2x")
_SLOT = struct.Struct("=I")


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


def target_value(address: str, port: int) -> bytes:
    return packed(address) + _PORT.pack(port)


def read_target(value: bytes) -> End:
    """Packed address and port."""
    port: int = _PORT.unpack(value[-4:])[0]
    return value[:-4], port


class Served(Mapping[End, frozenset[End]]):
    """Who serves what is asked for; made of the maps' values when somebody looks, since of 10,000
    Services that come at once it would take 30 MB, between what stays."""

    def __init__(self, values: Mapping[End, tuple[bytes, ...]]) -> None:
        self._values = values
        self._read: dict[End, frozenset[End]] = {}

    def __getitem__(self, asked: End) -> frozenset[End]:
        if asked not in self._read:
            self._read[asked] = frozenset(map(read_target, self._values[asked]))
        return self._read[asked]

    def __contains__(self, asked: object) -> bool:
        return asked in self._values

    def __iter__(self) -> Iterator[End]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


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
