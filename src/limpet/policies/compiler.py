"""From the cluster's policies and pods to what holds for the pods of one node, again and again.

What has not changed since the last time is not made anew: of one changed pod only what selects it
is, of one changed policy only what its rules say. Pods that the same policies select, and that have
the same numbers under the names of ports that these name, have one side.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import compress
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
from limpet.policies.port_names import NamedPorts, PortNames

T = TypeVar("T")
_EVERYBODY = AllowedPeers(everybody=True)
_NO_POLICIES: Mapping[Key, Policy] = {}


def compile_sides(world: PolicyWorld, local: Iterable[PolicyPod]) -> Compiled:
    """What holds for `local`, pods of this node, as the world's policies say."""
    return Compiler().compile(world, local)


class _Made(NamedTuple):
    """Peers of a rule, and what they were made of."""

    rule: PolicyRule
    group: PeerGroup
    chosen: frozenset[Address]
    peers: AllowedPeers


@dataclass(slots=True)
class _Sides:
    """What holds for pods of one namespace."""

    of_pods: dict[tuple[object, ...], DirectionRules | None] = field(default_factory=dict)
    """By their labels, ports and the direction."""
    of_policies: dict[tuple[object, ...], DirectionRules] = field(default_factory=dict)
    """By the policies that select them."""
    used: set[tuple[object, ...]] = field(default_factory=set)
    """Keys of `of_pods` that pods of this node have now."""

    def forget_others(self) -> None:
        """Whoever changes labels of a pod on and on would fill the node's memory else."""
        if len(self.used) < len(self.of_pods):
            self.of_pods = {key: self.of_pods[key] for key in self.used}
            kept = {*map(id, self.of_pods.values())}
            self.of_policies = {k: side for k, side in self.of_policies.items() if id(side) in kept}
        self.used = set()


class Compiler:
    """What `compile` returns shares with the last time what is the same."""

    def __init__(self) -> None:
        self._policies: dict[Key, Policy] = {}
        self._by_namespace: dict[str, dict[Key, Policy]] = {}
        self._pods: dict[Key, PolicyPod] = {}
        self._choices = Choices()
        self._port_names = PortNames()
        self._sides: dict[str, _Sides] = defaultdict(_Sides)
        self._made: dict[RuleId, _Made] = {}
        self._named: dict[RuleId, NamedPorts] = {}

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
        self._sides = defaultdict(
            _Sides, {name: each for name, each in self._sides.items() if each.used}
        )
        for each in self._sides.values():
            each.forget_others()
        return Compiled(sides, peers, named, isolated)

    def _close_too_large(self, sides: dict[tuple[Key, Direction], DirectionRules]) -> set[RuleId]:
        """A few words may mean all pods of the cluster, again and again: sides of a namespace that
        come to more than its share are closed. The same ones each time, so by name. Returns rules
        of those that were looked at, so many that what they mean may be kept for the next time."""
        looked_at, kept = set[RuleId](), 0
        room, counted = Room(POLICY_ELEMENTS, POLICY_ELEMENTS_OF_ONE), set[frozenset[RuleId]]()
        verdicts: dict[int, DirectionRules] = {}
        sizes: dict[RuleId, int] = {}
        for pod, direction in sorted(sides):
            side = sides[pod, direction]
            if id(side) not in verdicts:
                fresh = {side.always, *side.sets_of_rules} - counted
                seen: set[RuleId] = set()
                weight = self._weight(fresh, side.named, seen, sizes)
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
        sizes: dict[RuleId, int],
    ) -> int:
        """Addresses and ranges of peers in all of these sets, and ports of addresses that names
        mean; no more is looked at than one namespace may have. Rules are put into `looked_at`, and
        what each of them has into `sizes`: one rule may be in thousands of sets."""
        weight = 0
        for rules in sets:
            so_far = weight
            for rule in rules.difference(sizes):
                looked_at.add(rule)
                peers = self._peers(rule)
                sizes[rule] = len(peers.addresses) + len(peers.ranges)
                so_far += sizes[rule]
                if so_far > POLICY_ELEMENTS_OF_ONE.most:
                    return so_far
            looked_at |= rules
            weight += sum(map(sizes.__getitem__, rules))
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
            held[key] = policy
            self._by_namespace.setdefault(key.namespace, {})[key] = policy
        gone = held.keys() - world.policies.keys() if len(held) > len(world.policies) else ()
        for key in gone:
            del held[key], self._by_namespace[key.namespace][key]
            if not self._by_namespace[key.namespace]:
                del self._by_namespace[key.namespace]
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
        self._port_names.move(
            None if class_of(before) is None else before, None if class_of(after) is None else after
        )

    # What comes of it

    def _side(self, pod: PolicyPod, direction: Direction) -> DirectionRules | None:
        """None: the pod is not isolated."""
        labels = None if pod.labels is None else frozenset(pod.labels.items())
        ports = frozenset(pod.ports.items()) if direction == "ingress" else None
        same = (labels, ports, direction)
        held = self._sides[pod.key.namespace]
        held.used.add(same)
        if same not in held.of_pods:
            policies = [
                policy
                for policy in self._by_namespace.get(pod.key.namespace, _NO_POLICIES).values()
                if direction in policy.directions and policy.may_select(pod)
            ]
            held.of_pods[same] = self._side_of(pod, direction, policies)
        return held.of_pods[same]

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
        held = self._sides[pod.key.namespace].of_policies
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
        names = tuple(port for port in rule.ports if isinstance(port, NamedPort))
        found = self._named[rule_id] = self._port_names.find(names, peers, self._named.get(rule_id))
        return found.found

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
