"""What holds for the pods of one node: who is isolated, and which peers it may have at which ports.

Selectors are compared with classes of pods that have the same namespace and labels, of which there
are far fewer than pods.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from limpet.base.addresses import Address, bounds_of
from limpet.policies.policy import (
    PROTOCOLS,
    Direction,
    IpBlock,
    Key,
    NamedPort,
    Pod,
    PodPeer,
    Policy,
    PortSpan,
    Protocol,
    Rule,
    World,
)

DIRECTIONS: tuple[Direction, ...] = ("ingress", "egress")
_BITS = {4: 32, 6: 128}


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
class Peers:
    """Whom a rule allows."""

    everybody: bool = False
    addresses: frozenset[Address] = frozenset()
    """Of pods."""
    ranges: tuple[AddressRange, ...] = ()
    """Of ipBlocks: sorted, none touches the next one."""

    def include(self, address: Address) -> bool:
        number = int(address)
        return (
            self.everybody
            or address in self.addresses
            or any(
                each.version == address.version and each.first <= number <= each.last
                for each in self.ranges
            )
        )


class Window(NamedTuple):
    """Ports of one protocol at which the same rules allow; windows of a side do not overlap."""

    span: PortSpan
    rules: frozenset[RuleId]


@dataclass(frozen=True, slots=True)
class Side:
    """What an isolated pod may receive, or send; what is not said is not allowed."""

    always: frozenset[RuleId] = frozenset()
    """Rules that name no ports: they allow their peers all of all protocols."""
    windows: tuple[Window, ...] = ()
    """In order; the rules of each have those of `always` among them."""
    named: frozenset[RuleId] = frozenset()
    """Rules of egress with ports that have names: they allow what `Compiled.named` says."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What holds for the pods of one node."""

    sides: Mapping[tuple[Key, Direction], Side] = field(default_factory=dict)
    """Of pods that are isolated; all others may do what they want."""
    peers: Mapping[RuleId, Peers] = field(default_factory=dict)
    """Of every rule that a side names."""
    named: Mapping[RuleId, frozenset[At]] = field(default_factory=dict)
    pods: Mapping[Key, Pod] = field(default_factory=dict)
    """Those that are isolated."""

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
                rules = window.rules
        by = {each for each in rules if self.peers[each].include(peer)}
        if protocol is not None:
            at = At(peer, protocol, port)
            by |= {each for each in side.named if at in self.named[each]}
        return frozenset(by)


def compile_sides(world: World, local: Iterable[Pod]) -> Compiled:
    """What holds for `local`, pods of this node, as the world's policies say."""
    if not world.policies:
        return Compiled()
    compiler = _Compiler(world)
    sides: dict[tuple[Key, Direction], Side] = {}
    isolated: dict[Key, Pod] = {}
    for pod in local:
        if pod.host_network:
            continue
        for direction in DIRECTIONS:
            side = compiler.side(pod, direction)
            if side is not None:
                sides[pod.key, direction] = side
                isolated[pod.key] = pod
    peers = {
        rule: compiler.peers(rule)
        for side in sides.values()
        for rule in side.always.union(*(window.rules for window in side.windows))
    }
    named = {rule: compiler.named(rule) for side in sides.values() for rule in side.named}
    return Compiled(sides, peers, named, isolated)


def ranges_of(blocks: Iterable[IpBlock]) -> tuple[AddressRange, ...]:
    """What the blocks have together: sorted, and merged where they overlap or touch."""
    found = [each for block in blocks for each in _without_excepted(block)]
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


class _Compiler:
    def __init__(self, world: World) -> None:
        self._world = world
        self._by_namespace: dict[str, list[Policy]] = defaultdict(list)
        for policy in world.policies.values():
            self._by_namespace[policy.key.namespace].append(policy)
        self._classes: dict[tuple[str, frozenset[tuple[str, str]]], list[Pod]] = defaultdict(list)
        for pod in world.pods.values():
            if not pod.host_network and pod.labels is not None:
                self._classes[pod.key.namespace, frozenset(pod.labels.items())].append(pod)
        self._sides: dict[tuple[object, ...], Side | None] = {}
        self._chosen: dict[tuple[str, PodPeer], list[Pod]] = {}

    def side(self, pod: Pod, direction: Direction) -> Side | None:
        """None: the pod is not isolated."""
        labels = None if pod.labels is None else frozenset(pod.labels.items())
        ports = frozenset(pod.ports.items()) if direction == "ingress" else None
        same = (pod.key.namespace, labels, ports, direction)
        if same not in self._sides:
            self._sides[same] = self._make_side(pod, direction)
        return self._sides[same]

    def _make_side(self, pod: Pod, direction: Direction) -> Side | None:
        policies = [
            policy
            for policy in self._by_namespace.get(pod.key.namespace, ())
            if direction in policy.directions
            and (pod.labels is None or policy.pods.selects(pod.labels))
        ]
        if not policies:
            return None
        if pod.labels is None:
            return Side()  # it may be one of those that are isolated: closed while in doubt
        rules = {
            RuleId(policy.key, direction, index): rule
            for policy in policies
            for index, rule in enumerate(policy.rules(direction))
        }
        always = frozenset(each for each, rule in rules.items() if not rule.ports)
        spans = [
            (span, each)
            for each, rule in rules.items()
            for span in _spans(rule, pod if direction == "ingress" else None)
        ]
        named = frozenset(
            each
            for each, rule in rules.items()
            if direction == "egress" and any(isinstance(port, NamedPort) for port in rule.ports)
        )
        return Side(always, tuple(_windows(spans, always)), named)

    def rule(self, rule: RuleId) -> Rule:
        return self._world.policies[rule.policy].rules(rule.direction)[rule.number]

    def peers(self, rule: RuleId) -> Peers:
        peers = self.rule(rule).peers
        if not peers:
            return Peers(everybody=True)
        return Peers(
            addresses=frozenset(
                address
                for peer in peers
                if isinstance(peer, PodPeer)
                for pod in self._choose(rule.policy.namespace, peer)
                for address in pod.addresses
            ),
            ranges=ranges_of(peer for peer in peers if isinstance(peer, IpBlock)),
        )

    def _choose(self, namespace: str, peer: PodPeer) -> list[Pod]:
        at = ("" if peer.namespaces is not None else namespace, peer)
        if at not in self._chosen:
            self._chosen[at] = [
                pod
                for (where, labels), pods in self._classes.items()
                if self._is_meant(namespace, where, peer) and peer.pods.selects(dict(labels))
                for pod in pods
            ]
        return self._chosen[at]

    def _is_meant(self, policy_namespace: str, namespace: str, peer: PodPeer) -> bool:
        if peer.namespaces is None:
            return namespace == policy_namespace
        return peer.namespaces.selects(self._world.namespace_labels(namespace))

    def named(self, rule: RuleId) -> frozenset[At]:
        """What names of ports lead to at the pods that the rule allows to send to."""
        peers = self.peers(rule)
        names = [port for port in self.rule(rule).ports if isinstance(port, NamedPort)]
        return frozenset(
            At(address, name.protocol, pod.ports[name])
            for pods in self._classes.values()
            for pod in pods
            for name in names
            if name in pod.ports
            for address in pod.addresses
            if peers.include(address)
        )


def _spans(rule: Rule, receiver: Pod | None) -> Iterable[PortSpan]:
    """`receiver`: the pod whose names of ports are meant; None: that depends on who is sent to."""
    for port in rule.ports:
        if isinstance(port, PortSpan):
            yield port
        elif receiver is not None and port in receiver.ports:
            number = receiver.ports[port]
            yield PortSpan(port.protocol, number, number)


def _windows(
    spans: Sequence[tuple[PortSpan, RuleId]], always: frozenset[RuleId]
) -> Iterable[Window]:
    for protocol in PROTOCOLS:
        mine = [(span, rule) for span, rule in spans if span.protocol == protocol]
        yield from _joined(_cut(mine, protocol, always))


def _cut(
    spans: Collection[tuple[PortSpan, RuleId]], protocol: Protocol, always: frozenset[RuleId]
) -> Iterable[Window]:
    """Between two neighbouring bounds the same rules hold."""
    starts: dict[int, list[RuleId]] = defaultdict(list)
    ends: dict[int, list[RuleId]] = defaultdict(list)
    for span, rule in spans:
        starts[span.first].append(rule)
        ends[span.last + 1].append(rule)
    count: dict[RuleId, int] = defaultdict(int)
    for first, behind in pairwise(sorted(starts.keys() | ends.keys())):
        for rule in starts.get(first, ()):
            count[rule] += 1
        for rule in ends.get(first, ()):
            count[rule] -= 1
        held = frozenset(rule for rule, times in count.items() if times)
        if held:
            yield Window(PortSpan(protocol, first, behind - 1), held | always)


def _joined(windows: Iterable[Window]) -> Iterable[Window]:
    """Neighbours with the same rules are one."""
    last: Window | None = None
    for each in windows:
        touches = last is not None and last.span.last + 1 == each.span.first
        if last is not None and touches and last.rules == each.rules:
            last = Window(PortSpan(each.span.protocol, last.span.first, each.span.last), each.rules)
            continue
        if last is not None:
            yield last
        last = each
    if last is not None:
        yield last
