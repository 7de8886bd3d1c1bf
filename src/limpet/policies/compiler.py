"""From the cluster's policies and pods to what holds for the pods of one node, again and again.

What has not changed since the last time is not made anew: of one changed pod only what selects it
is, of one changed policy only what its rules say. Pods that the same policies select, and that have
the same numbers under the names of ports that these name, have one side.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import chain, compress
from operator import is_not
from typing import NamedTuple, TypeVar

from limpet.base.addresses import Address
from limpet.base.bounds.room import Room
from limpet.base.bounds.tenants import (
    POLICY_ELEMENTS,
    POLICY_ELEMENTS_OF_ONE,
    POLICY_WINDOWS,
)
from limpet.policies.choices import Choices, PeerGroup, class_of
from limpet.policies.compiled import (
    DIRECTIONS,
    AllowedPeers,
    At,
    Compiled,
    DirectionRules,
    RuleId,
    ranges_of,
    spans_of,
    windows_of,
)
from limpet.policies.policy import (
    Direction,
    IpBlock,
    Key,
    NamedPort,
    PodPeer,
    Policy,
    PolicyPod,
    PolicyRule,
    PolicyWorld,
)

T = TypeVar("T")
_EVERYBODY = AllowedPeers(everybody=True)


def compile_sides(world: PolicyWorld, local: Iterable[PolicyPod]) -> Compiled:
    """What holds for `local`, pods of this node, as the world's policies say."""
    return Compiler().compile(world, local)


class _Made(NamedTuple):
    """Peers of a rule, and what they were made of."""

    rule: PolicyRule
    group: PeerGroup
    chosen: frozenset[Address]
    peers: AllowedPeers


class _Named(NamedTuple):
    """Named ports of a rule's peers, and what they were made of."""

    rule: PolicyRule
    peers: AllowedPeers
    changes: tuple[int, ...]
    found: frozenset[At]


class Compiler:
    """What `compile` returns shares with the last time what is the same."""

    def __init__(self) -> None:
        self._policies: dict[Key, Policy] = {}
        self._by_namespace: dict[str, dict[Key, Policy]] = defaultdict(dict)
        self._pods: dict[Key, PolicyPod] = {}
        self._choices = Choices()
        self._with_name: dict[NamedPort, dict[Key, PolicyPod]] = defaultdict(dict)
        self._name_changes: Counter[NamedPort] = Counter()
        self._sides: dict[str, dict[tuple[object, ...], DirectionRules | None]] = defaultdict(dict)
        self._made: dict[RuleId, _Made] = {}
        self._named: dict[RuleId, _Named] = {}

    def compile(self, world: PolicyWorld, local: Iterable[PolicyPod]) -> Compiled:
        """What holds for `local`, pods of this node, as the world's policies say."""
        if not world.policies:
            return Compiled()
        self._take_policies(world)
        self._choices.set_namespaces(world.namespaces)
        self._take_pods(world)
        sides: dict[tuple[Key, Direction], DirectionRules] = {}
        isolated: dict[Key, PolicyPod] = {}
        for pod in local:
            if pod.host_network:
                continue
            for direction in DIRECTIONS:
                side = self._side(pod, direction)
                if side is not None:
                    sides[pod.key, direction] = side
                    isolated[pod.key] = pod
        looked_at = self._close_too_large(sides)
        different = {id(side): side for side in sides.values()}.values()
        peers = {
            rule: self._peers(rule)
            for rule in frozenset[RuleId]().union(
                *(side.numbered for side in different), *(side.named for side in different)
            )
        }
        named = {rule: self._named_ports(rule) for side in different for rule in side.named}
        self._forget_others(peers.keys() | looked_at)
        return Compiled(sides, peers, named, isolated)

    def _close_too_large(self, sides: dict[tuple[Key, Direction], DirectionRules]) -> set[RuleId]:
        """A few words may mean all pods of the cluster, again and again: sides of a namespace that
        come to more than its share are closed. The same ones each time, so by name. Returns rules
        of those that were looked at, so many that what they mean may be kept for the next time."""
        looked_at, kept = set[RuleId](), 0
        room, counted = Room(POLICY_ELEMENTS, POLICY_ELEMENTS_OF_ONE), set[frozenset[RuleId]]()
        verdicts: dict[int, DirectionRules] = {}
        for pod, direction in sorted(sides):
            side = sides[pod, direction]
            if id(side) not in verdicts:
                fresh = {side.always, *side.sets_of_rules} - counted
                seen: set[RuleId] = set()
                weight = self._weight(fresh, side.named, seen)
                refusal = room.refusal(pod.namespace, weight)
                if not refusal:
                    room.change(pod.namespace, weight)
                    counted |= fresh
                elif kept + weight <= POLICY_ELEMENTS.most:
                    looked_at, kept = looked_at | seen, kept + weight
                whose = f"{direction} of pods of {pod.namespace}, such as {pod.name},"
                words = f"{whose} is closed: {refusal}" if refusal else ""
                verdicts[id(side)] = DirectionRules(closed=words) if refusal else side
            sides[pod, direction] = verdicts[id(side)]
        return looked_at

    def _weight(
        self,
        sets: Iterable[frozenset[RuleId]],
        named: Iterable[RuleId],
        looked_at: set[RuleId],
    ) -> int:
        """Addresses and ranges of peers in all of these sets, and ports of addresses that names
        mean; no more is looked at than one namespace may have. Rules are put into `looked_at`."""
        weight = 0
        for rule in chain.from_iterable(sets):
            looked_at.add(rule)
            peers = self._peers(rule)
            weight += len(peers.addresses) + len(peers.ranges)
            if weight > POLICY_ELEMENTS_OF_ONE.most:
                return weight
        for rule in named:
            looked_at.add(rule)
            weight += len(self._named_ports(rule))
            if weight > POLICY_ELEMENTS_OF_ONE.most:
                return weight
        return weight

    # What is known

    def _take_policies(self, world: PolicyWorld) -> None:
        held = self._policies
        changed = dict(_others(world.policies, held))
        for key, policy in changed.items():
            held[key] = self._by_namespace[key.namespace][key] = policy
        gone = held.keys() - world.policies.keys() if len(held) > len(world.policies) else ()
        for key in gone:
            del held[key], self._by_namespace[key.namespace][key]
        for key in (*changed, *gone):
            self._sides.pop(key.namespace, None)

    def _take_pods(self, world: PolicyWorld) -> None:
        held = self._pods
        for key, pod in _others(world.pods, held):
            before = held.get(key)
            if before != pod:
                self._move(before, pod)
                held[key] = pod
        for key in held.keys() - world.pods.keys() if len(held) > len(world.pods) else ():
            self._move(held.pop(key), None)

    def _move(self, before: PolicyPod | None, after: PolicyPod | None) -> None:
        self._choices.move(before, after)
        self._move_names(
            None if class_of(before) is None else before, None if class_of(after) is None else after
        )

    def _move_names(self, before: PolicyPod | None, after: PolicyPod | None) -> None:
        if before is not None:
            for name in before.ports:
                del self._with_name[name][before.key]
                self._name_changes[name] += 1
        if after is not None:
            for name in after.ports:
                self._with_name[name][after.key] = after
                self._name_changes[name] += 1

    # What comes of it

    def _side(self, pod: PolicyPod, direction: Direction) -> DirectionRules | None:
        """None: the pod is not isolated."""
        labels = None if pod.labels is None else frozenset(pod.labels.items())
        ports = frozenset(pod.ports.items()) if direction == "ingress" else None
        same = (labels, ports, direction)
        held = self._sides[pod.key.namespace]
        if same not in held:
            policies = [
                policy
                for policy in self._by_namespace[pod.key.namespace].values()
                if direction in policy.directions and policy.may_select(pod)
            ]
            held[same] = self._side_of(pod, direction, policies)
        return held[same]

    def _side_of(
        self, pod: PolicyPod, direction: Direction, policies: Sequence[Policy]
    ) -> DirectionRules | None:
        if not policies:
            return None
        if pod.labels is None:
            # It may be one of those that are isolated: closed while in doubt.
            return DirectionRules()
        names = {
            port
            for policy in policies
            for rule in (policy.ingress if direction == "ingress" else ())
            for port in rule.ports
            if isinstance(port, NamedPort)
        }
        ports = frozenset((name, pod.ports[name]) for name in names & pod.ports.keys())
        same = (direction, frozenset(policy.key for policy in policies), ports)
        held = self._sides[pod.key.namespace]
        if same not in held:
            held[same] = _make_side(pod, direction, policies)
        return held[same]

    def _peers(self, rule_id: RuleId) -> AllowedPeers:
        rule = self._policies[rule_id.policy].rules(rule_id.direction)[rule_id.number]
        made = self._made.get(rule_id)
        if made is not None and made.rule is not rule:
            self._choices.leave(self._made.pop(rule_id).group)
            made = None
        if not rule.peers:
            return _EVERYBODY
        if made is None:
            pods = (peer for peer in rule.peers if isinstance(peer, PodPeer))
            group = self._choices.take(rule_id.policy.namespace, pods)
            ranges = ranges_of(peer for peer in rule.peers if isinstance(peer, IpBlock))
            addresses = self._choices.addresses(group)
            made = _Made(rule, group, addresses, AllowedPeers(False, addresses, ranges))
        elif (addresses := self._choices.addresses(made.group)) is not made.chosen:
            peers = AllowedPeers(False, addresses, made.peers.ranges)
            made = made._replace(chosen=addresses, peers=peers)
        self._made[rule_id] = made
        return made.peers

    def _named_ports(self, rule_id: RuleId) -> frozenset[At]:
        """What names of ports lead to at the pods that the rule allows to send to."""
        peers = self._peers(rule_id)
        rule = self._policies[rule_id.policy].rules(rule_id.direction)[rule_id.number]
        names = [port for port in rule.ports if isinstance(port, NamedPort)]
        changes = tuple(self._name_changes[name] for name in names)
        held = self._named.get(rule_id)
        if held is None or (held.rule, held.peers, held.changes) != (rule, peers, changes):
            found = frozenset(
                At(address, name.protocol, pod.ports[name])
                for name in names
                for pod in self._with_name[name].values()
                for address in pod.addresses
                if peers.include(address)
            )
            held = self._named[rule_id] = _Named(rule, peers, changes, found)
        return held.found

    def _forget_others(self, used: Set[RuleId]) -> None:
        """What no side of this node names any more."""
        for rule in self._made.keys() - used:
            self._choices.leave(self._made.pop(rule).group)
        for rule in self._named.keys() - used:
            del self._named[rule]


def _others(now: Mapping[Key, T], before: Mapping[Key, T]) -> list[tuple[Key, T]]:
    """What is not the very same as before. There may be tens of thousands: no loop of ours."""
    return [*compress(now.items(), map(is_not, map(before.get, now), now.values()))]


def _make_side(pod: PolicyPod, direction: Direction, policies: Sequence[Policy]) -> DirectionRules:
    rules = {
        RuleId(policy.key, direction, index): rule
        for policy in policies
        for index, rule in enumerate(policy.rules(direction))
    }
    always = frozenset(each for each, rule in rules.items() if not rule.ports)
    spans = [
        (span, each)
        for each, rule in rules.items()
        for span in spans_of(rule, pod if direction == "ingress" else None)
    ]
    named = frozenset(
        each
        for each, rule in rules.items()
        if direction == "egress" and any(isinstance(port, NamedPort) for port in rule.ports)
    )
    windows = windows_of(spans, POLICY_WINDOWS.most)
    if windows is None:
        return DirectionRules(
            closed=f"{direction} of pods of {pod.key.namespace} that "
            f"{len(policies)} policies select, such as {policies[0].key}, is closed: their "
            f"rules come to more than {POLICY_WINDOWS.most:,} {POLICY_WINDOWS.unit}"
        )
    return DirectionRules(always, windows, named)
