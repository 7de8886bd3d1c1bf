"""What holds for the pods of one node: who is isolated, and which peers it may have at which ports.

`compiler` makes it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from limpet.base.addresses import Address, bounds_of
from limpet.policies.policy import (
    PROTOCOLS,
    Direction,
    IpBlock,
    Key,
    PolicyPod,
    PolicyRule,
    PortSpan,
    Protocol,
)

DIRECTIONS: tuple[Direction, ...] = ("ingress", "egress")
_BEHIND_ALL = 1 << 128


class RuleId(NamedTuple):
    """A rule among all of the cluster's."""

    policy: Key
    direction: Direction
    number: int


class AddressRange(NamedTuple):
    """Addresses from the first to the last, as numbers."""

    version: int
    first: int
    last: int


class At(NamedTuple):
    """A port of one address."""

    address: Address
    protocol: Protocol
    port: int


@dataclass(frozen=True, slots=True)
class AllowedPeers:
    """Whom a rule allows."""

    everybody: bool = False
    addresses: frozenset[Address] = frozenset()
    """Addresses of pods."""
    ranges: tuple[AddressRange, ...] = ()
    """Ranges of ipBlocks: sorted, none touches the next one."""

    def include(self, address: Address) -> bool:
        if self.everybody or address in self.addresses:
            return True
        here = AddressRange(address.version, int(address), int(address))
        at = bisect_right(self.ranges, here._replace(last=_BEHIND_ALL)) - 1
        if at < 0:
            return False
        before = self.ranges[at]
        return before.version == here.version and before.last >= here.first


class Window(NamedTuple):
    """Ports of one protocol at which the same rules allow; windows of a side do not overlap."""

    span: PortSpan
    rules: frozenset[RuleId]
    """Rules with ports; those for all ports are beside them. Windows with equal ones share them."""


@dataclass(frozen=True, slots=True)
class DirectionRules:
    """What an isolated pod may receive, or send; what is not said is not allowed."""

    always: frozenset[RuleId] = frozenset()
    """Rules that name no ports: they allow their peers all of all protocols."""
    windows: tuple[Window, ...] = ()
    """In order; what `always` has holds at each of them too."""
    named: frozenset[RuleId] = frozenset()
    """Rules of egress with ports that have names: they allow what `Compiled.named` says."""
    closed: str = ""
    """Why nothing at all is allowed although there may be rules, in words; empty: they hold."""

    @property
    def sets_of_rules(self) -> list[frozenset[RuleId]]:
        """Sets of rules that windows have, each once: thousands of windows may have the same."""
        return [*{id(window.rules): window.rules for window in self.windows}.values()]

    @property
    def numbered(self) -> frozenset[RuleId]:
        """Rules that allow something by what they say themselves, so without names of ports."""
        return self.always.union(*self.sets_of_rules)


@dataclass(frozen=True, slots=True)
class Compiled:
    """What holds for the pods of one node."""

    sides: Mapping[tuple[Key, Direction], DirectionRules] = field(default_factory=dict)
    """Rules for pods that are isolated; all others may do what they want."""
    peers: Mapping[RuleId, AllowedPeers] = field(default_factory=dict)
    """Peers of every rule that a side names."""
    named: Mapping[RuleId, frozenset[At]] = field(default_factory=dict)
    pods: Mapping[Key, PolicyPod] = field(default_factory=dict)
    """Those that are isolated."""

    @property
    def closed(self) -> list[str]:
        """What is closed although rules may allow something, and why; each once."""
        return sorted({side.closed for side in self.sides.values() if side.closed})

    def allows(
        self,
        pod: Key,
        direction: Direction,
        peer: Address,
        protocol: Protocol | None,
        port: int = 0,
    ) -> frozenset[RuleId] | None:
        """The rules by which a new connection is allowed at this end; None: the pod is not
        isolated. Empty: it is not allowed. `protocol` None: one without ports."""
        side = self.sides.get((pod, direction))
        if side is None:
            return None
        rules = side.always
        for window in side.windows:
            span = window.span
            if span.protocol == protocol and span.first <= port <= span.last:
                rules |= window.rules
        by = {each for each in rules if self.peers[each].include(peer)}
        if protocol is not None:
            at = At(peer, protocol, port)
            by |= {each for each in side.named if at in self.named[each]}
        return frozenset(by)


def ranges_of(blocks: Iterable[IpBlock]) -> tuple[AddressRange, ...]:
    """What the blocks have together: sorted, and merged where they overlap or touch."""
    found: list[AddressRange] = []
    for block in blocks:
        if block.excepted:
            found += _without_excepted(block)
        else:  # there may be a million
            found.append(AddressRange(block.prefix.version, *bounds_of(block.prefix)))
    return merged(found)


def merged(ranges: Iterable[AddressRange]) -> tuple[AddressRange, ...]:
    """Sorted, and one where some overlap or touch."""
    kept: list[AddressRange] = []
    for each in sorted(ranges):
        last = kept[-1] if kept else None
        if last is not None and last.version == each.version and each.first <= last.last + 1:
            kept[-1] = AddressRange(last.version, last.first, max(last.last, each.last))
        else:
            kept.append(each)
    return tuple(kept)


def _without_excepted(block: IpBlock) -> Iterable[AddressRange]:
    version = block.prefix.version
    first, last = bounds_of(block.prefix)
    for out_first, out_last in sorted(map(bounds_of, block.excepted)):
        if first < out_first:
            yield AddressRange(version, first, out_first - 1)
        first = max(first, out_last + 1)
    if first <= last:
        yield AddressRange(version, first, last)


def spans_of(rule: PolicyRule, receiver: PolicyPod | None) -> Iterable[PortSpan]:
    """Ports of a rule. `receiver`: the pod whose names of ports are meant; None: that depends on
    who is sent to."""
    for port in rule.ports:
        if isinstance(port, PortSpan):
            yield port
        elif receiver is not None and port in receiver.ports:
            number = receiver.ports[port]
            yield PortSpan(port.protocol, number, number)


def windows_of(spans: Collection[tuple[PortSpan, RuleId]], most: int) -> tuple[Window, ...] | None:
    """Windows of rules with ports: in order, none overlaps. None: rules of windows, counted once
    where several windows have the same, are more than `most`."""
    rules = list(dict.fromkeys(rule for _, rule in spans))
    numbers = {rule: number for number, rule in enumerate(rules)}
    sets: dict[int, frozenset[RuleId]] = {}
    found: list[Window] = []
    count = 0
    for protocol in PROTOCOLS:
        mine = [(span, numbers[rule]) for span, rule in spans if span.protocol == protocol]
        for first, last, held in _cut(mine):
            if held not in sets:
                count += held.bit_count()
                if count > most:
                    return None
                sets[held] = frozenset(rules[number] for number in _numbers(held))
            found.append(Window(PortSpan(protocol, first, last), sets[held]))
    return tuple(found)


def _cut(spans: Iterable[tuple[PortSpan, int]]) -> Iterator[tuple[int, int, int]]:
    """The first and the last port of each stretch at which the same rules hold, and which: a bit
    is set for the number of each, so that a stretch costs what changes at its ends."""
    edges: dict[int, Counter[int]] = defaultdict(Counter)
    for span, number in spans:
        edges[span.first][number] += 1
        edges[span.last + 1][number] -= 1
    times: Counter[int] = Counter()
    first = held = 0
    for at in sorted(edges):
        before = held
        for number, change in edges[at].items():
            held_before = times[number] > 0
            times[number] += change
            if held_before != (times[number] > 0):
                held ^= 1 << number
        if held != before:
            if before:
                yield first, at - 1, before
            first = at


def _numbers(bits: int) -> Iterator[int]:
    """Places of the bits that are set."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
