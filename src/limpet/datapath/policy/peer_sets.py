"""Lines of a chain that let peers of rules pass, and the sets that these name.

They are kept from one plan to the next: rules that mean the same as before have the same lines, and
of thousands of peers only those that come and go are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from limpet.base.addresses import Address
from limpet.datapath.policy.blocks import address_text, block_sets, in_rules, range_text
from limpet.datapath.policy.table import NamedSet
from limpet.policies.compiled import AddressRange, AllowedPeers, At, merged
from limpet.policies.policy import Direction

T = TypeVar("T")
HEADERS = {4: "ip", 6: "ip6"}
PASS: dict[Direction, str] = {"egress": "goto enter", "ingress": "accept"}
_PEER_FIELDS: dict[Direction, str] = {"egress": "daddr", "ingress": "saddr"}


class PeerLines(NamedTuple):
    """Lines of a chain with the sets that they name, and what they were made of."""

    made_of: tuple[object, ...]
    lines: tuple[str, ...]
    sets: Mapping[str, NamedSet]
    members: frozenset[Any] = frozenset()
    """What the elements of the sets say, before it was made text."""


_NO_LINES = PeerLines((), (), {})


class Planned:
    """What was planned last, to be taken as it is where it was made of the same."""

    def __init__(self) -> None:
        self._held: dict[object, PeerLines] = {}
        self._used: dict[object, PeerLines] = {}
        self.texts: dict[Address, str] = {}
        """Addresses that this plan made text of: hundreds of rules may mean the same thousands."""

    def part(
        self,
        key: object,
        made_of: tuple[object, ...],
        make: Callable[[PeerLines | None], PeerLines],
    ) -> PeerLines:
        """`make`: of what there was under the key."""
        held = self._held.get(key)
        if held is None or any(a is not b for a, b in zip(held.made_of, made_of, strict=True)):
            held = make(held)
        self._used[key] = held
        return held

    def end(self) -> None:
        """What was not asked for is forgotten."""
        self._held, self._used = self._used, {}
        self.texts.clear()


def pods_lines(
    direction: Direction,
    whose: str,
    found: tuple[AllowedPeers, ...],
    held: PeerLines | None,
    texts: dict[Address, str],
) -> PeerLines:
    """`held`: as it was. Of thousands of addresses only those that come and go are looked at.
    `texts`: of addresses, so far."""
    before = held or _NO_LINES
    members, come, gone = _moves([peers.addresses for peers in found], before.members)
    gone_texts, come_texts = _texts(gone, texts), _texts(come, texts)
    lines, sets = [], {}
    for version in HEADERS:
        name = f"pods{version}_{whose}"
        elements = _changed(before, name, gone_texts[version], come_texts[version])
        if elements:
            sets[name] = NamedSet("set", (f"type ipv{version}_addr",), elements)
            lines.append(_let_pass(direction, version, name))
    return PeerLines(found, tuple(lines), sets, members)


def named_ports_lines(
    whose: str, found: Sequence[frozenset[At]], held: PeerLines | None
) -> PeerLines:
    """As `pods_lines`, of ports of addresses that names mean; so towards pods."""
    before = held or _NO_LINES
    members, come, gone = _moves(found, before.members)
    lines, sets = [], {}
    for version, header in HEADERS.items():
        name = f"named{version}_{whose}"
        elements = _changed(before, name, _port_texts(gone, version), _port_texts(come, version))
        if elements:
            head = f"type ipv{version}_addr . inet_proto . inet_service"
            sets[name] = NamedSet("set", (head,), elements)
            lines.append(f"{header} daddr . meta l4proto . th dport @{name} {PASS['egress']}")
    return PeerLines(tuple(found), tuple(lines), sets, members)


def _moves(
    found: Sequence[frozenset[T]], before: frozenset[T]
) -> tuple[frozenset[T], frozenset[T], frozenset[T]]:
    """All that there is now, what has come and what has gone."""
    now = found[0] if len(found) == 1 else frozenset[T]().union(*found)
    return now, now - before, before - now


def _changed(
    before: PeerLines, name: str, gone: frozenset[str], come: frozenset[str]
) -> frozenset[str]:
    """A set of thousands is copied no more often than it must be."""
    had = before.sets[name].elements if name in before.sets else frozenset()
    kept = had - gone if gone else had
    return kept | come if come else kept


def blocks_lines(
    direction: Direction, whose: str, found: tuple[tuple[AddressRange, ...], ...]
) -> PeerLines:
    ranges = merged(each for ranges in found for each in ranges)
    lines, sets = [], {}
    field = _PEER_FIELDS[direction]
    for version, header in HEADERS.items():
        mine = [one for one in ranges if one.version == version]
        if in_rules(mine):
            lines += [f"{header} {field} {range_text(one)} {PASS[direction]}" for one in mine]
            continue
        for each in block_sets(mine, version):
            name = f"blocks{version}_{each.infix}{whose}"
            sets[name] = each.held
            lines.append(f"{each.match.format(field=field, name=name)} {PASS[direction]}")
    return PeerLines(found, tuple(lines), sets)


def _let_pass(direction: Direction, version: int, name: str) -> str:
    return f"{HEADERS[version]} {_PEER_FIELDS[direction]} @{name} {PASS[direction]}"


def _texts(addresses: Iterable[Address], known: dict[Address, str]) -> dict[int, frozenset[str]]:
    """By version."""
    found: dict[int, list[str]] = {version: [] for version in HEADERS}
    for each in addresses:
        text = known.get(each)
        if text is None:
            text = known[each] = address_text(int(each), each.version)
        found[each.version].append(text)
    return {version: frozenset(texts) for version, texts in found.items()}


def _port_texts(ports: Iterable[At], version: int) -> frozenset[str]:
    return frozenset(
        f"{address_text(int(at.address), version)} . {at.protocol} . {at.port}"
        for at in ports
        if at.address.version == version
    )
