"""Addresses of ipBlocks as sets: so that a look costs the same however many there are.

The kernel keeps a set of ranges as a tree, and a look goes down it: among a million it takes a
packet a microsecond or two longer than among ten. Elements of a set without ranges are found at
once. So where there are many, prefixes of the lengths that most of them have are in sets of their
own, one for each length, which are asked for so many bits of the address; the rest is in the tree.
Such a set has a size from the start, since the kernel is slow to make one larger while it is
filled; it is part of the name, so one that has become too small is replaced.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple

from limpet.base.addresses import library_text, packed
from limpet.datapath.policy.table import NamedSet
from limpet.policies.compiled import AddressRange

_IN_RULES = 4
_TREE = 500
"""Ranges that may be in a tree: it is nine looks deep then, all of them in a processor's cache."""
_MOST_LENGTHS = 8
"""Each is one more look."""
_MOST_PIECES = 4
"""Prefixes that a range is cut into, at most, to be among them."""
_BITS = {4: 32, 6: 128}
_HEADERS = {4: "ip", 6: "ip6"}


def in_rules(ranges: Sequence[AddressRange]) -> bool:
    """They are so few that a rule for each is faster than a set: it lies in the chain that the
    packet is in anyhow, and a set is several places more in memory, which are seldom in the cache
    where there are many policies."""
    return len(ranges) <= _IN_RULES and not any(_is_all(each) for each in ranges)


def _is_all(span: AddressRange) -> bool:
    """nft would not list a rule that compares nothing."""
    return span.last - span.first + 1 == 1 << _BITS[span.version]


class BlockSet(NamedTuple):
    """A set, the part of its name that tells it from others, and how it is asked."""

    infix: str
    held: NamedSet
    match: str
    """A rule's beginning: what of the packet, with `{field}` and `{name}` to be put in."""


def block_sets(
    ranges: Iterable[AddressRange], version: int, *, tree: int = _TREE
) -> list[BlockSet]:
    """`ranges`: of that version, none touches another. `tree`: so many may be in one. The first of
    what is returned are asked first."""
    by_length, left = _by_length(list(ranges), version, tree)
    header = _HEADERS[version]
    kind = f"type ipv{version}_addr"
    found = []
    for length, firsts in sorted(by_length.items(), key=lambda item: (-len(item[1]), item[0])):
        size = 1 << len(firsts).bit_length()
        mask = _mask(length, version)
        elements = frozenset(address_text(each, version) for each in firsts)
        held = NamedSet("set", (kind, f"size {size}"), elements)
        match = f"{header} {{field}} @{{name}}"
        if length < _BITS[version]:
            match = f"{header} {{field}} & {address_text(mask, version)} == @{{name}}"
        found.append(BlockSet(f"{length}_{size}_", held, match))
    if left:
        elements = frozenset(range_text(each) for each in left)
        held = NamedSet("set", (kind, "flags interval"), elements)
        found.append(BlockSet("", held, f"{header} {{field}} @{{name}}"))
    return found


def _by_length(
    ranges: list[AddressRange], version: int, tree: int
) -> tuple[dict[int, list[int]], list[AddressRange]]:
    """First addresses of prefixes by their length, and what is left: few, or of rare lengths."""
    if len(ranges) <= tree:
        return {}, ranges
    bits = _BITS[version]
    alike: dict[tuple[int, ...], list[AddressRange]] = defaultdict(list)
    """By the lengths of the prefixes that they are made of; none: they are many."""
    for each in ranges:
        alike[_lengths(each.first, each.last, bits)].append(each)
    counts = Counter[int]()
    for lengths, found in alike.items():
        for length in lengths:
            counts[length] += len(found)
    chosen: set[int] = set()
    left = len(ranges)
    for length, _ in counts.most_common(_MOST_LENGTHS):
        if left <= tree:
            break
        chosen.add(length)
        left = sum(len(found) for lengths, found in alike.items() if not _is_in(lengths, chosen))
    by_length: dict[int, list[int]] = defaultdict(list)
    others: list[AddressRange] = []
    for lengths, found in alike.items():
        if not _is_in(lengths, chosen):
            others += found
            continue
        before = 0
        for length in lengths:
            by_length[length] += [each.first + before for each in found]
            before += 1 << (bits - length)
    return by_length, others


def _is_in(lengths: tuple[int, ...], chosen: Container[int]) -> bool:
    return bool(lengths) and all(each in chosen for each in lengths)


def _lengths(first: int, last: int, bits: int) -> tuple[int, ...]:
    """Lengths of the prefixes that a range is made of, in order; none: they are many."""
    found: tuple[int, ...] = ()
    while first <= last:
        if len(found) == _MOST_PIECES:
            return ()
        # As large as its first address allows, and as fits.
        size = first & -first or 1 << bits
        left = last - first + 1
        if size > left:
            size = 1 << (left.bit_length() - 1)
        found = (*found, bits + 1 - size.bit_length())
        first += size
    return found


def _mask(length: int, version: int) -> int:
    bits = _BITS[version]
    return (1 << bits) - (1 << (bits - length))


def address_text(value: int, version: int) -> str:
    """As nft writes it."""
    if version == 6:
        return library_text(value.to_bytes(16, "big"))
    # There may be a million: a quarter of the time.
    return f"{value >> 24}.{value >> 16 & 255}.{value >> 8 & 255}.{value & 255}"


def range_text(span: AddressRange) -> str:
    """As nft lists it: an address, a prefix, or a range."""
    first, count = address_text(span.first, span.version), span.last - span.first + 1
    if count == 1:
        return first
    if count & (count - 1) == 0 and span.first % count == 0:  # a power of two, at its place
        return f"{first}/{_BITS[span.version] - count.bit_length() + 1}"
    return f"{first}-{address_text(span.last, span.version)}"


def version_of(lines: Sequence[str]) -> int:
    """IP version of the addresses in a large set, by its type."""
    return 4 if "ipv4_addr" in lines[0] else 6


def bounds_of_text(text: str, version: int) -> tuple[bytes, bytes | None]:
    """First address and first behind of a text by `range_text`; None: there is none."""
    size = _BITS[version] // 8
    first, slash, length = text.partition("/")
    first, _, last = first.partition("-")
    begin = packed(first)
    if slash:
        behind = int.from_bytes(begin, "big") + (1 << (size * 8 - int(length)))
    else:
        end = packed(last) if last else begin
        behind = int.from_bytes(end, "big") + 1
    return begin, None if behind >> (size * 8) else behind.to_bytes(size, "big")
