"""From the cluster's policies and pods to what holds for the pods of one node, again and again.

What has not changed since the last time is not made anew: of one changed pod only what selects it
is, of one changed policy only what its rules say. Selectors are compared with classes of pods that
have the same namespace and labels, of which there are far fewer than pods.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import compress
from operator import is_not
from typing import NamedTuple, TypeVar

from limpet.base.addresses import Address
from limpet.base.bounds.tenants import POLICY_WINDOWS
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
from limpet.policies.labels import Labels
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
_NONE: frozenset[Address] = frozenset()
_EVERYBODY = AllowedPeers(everybody=True)


def compile_sides(world: PolicyWorld, local: Iterable[PolicyPod]) -> Compiled:
    """What holds for `local`, pods of this node, as the world's policies say."""
    return Compiler().compile(world, local)


class _Class(NamedTuple):
    """Pods that no selector tells apart."""

    namespace: str
    labels: frozenset[tuple[str, str]]


@dataclass(slots=True)
class _Choice:
    """Pods that a peer of a policy in `namespace` means."""

    namespace: str
    peer: PodPeer
    classes: set[_Class] = field(default_factory=set)
    addresses: frozenset[Address] | None = None
    """None: they are to be gathered anew."""

    def means(self, each: _Class, labels_of_its_namespace: Labels) -> bool:
        if self.peer.namespaces is None:
            here = each.namespace == self.namespace
        else:
            here = self.peer.namespaces.selects(labels_of_its_namespace)
        return here and self.peer.pods.selects(dict(each.labels))

    def put(self, each: _Class, *, is_meant: bool) -> None:
        if is_meant != (each in self.classes):
            (self.classes.add if is_meant else self.classes.discard)(each)
            self.addresses = None


class _Made(NamedTuple):
    """Peers of a rule, and what they were made of."""

    rule: PolicyRule
    choices: tuple[_Choice, ...]
    chosen: tuple[frozenset[Address], ...]
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
        self._namespaces: dict[str, Labels] = {}
        self._pods: dict[Key, PolicyPod] = {}
        self._members: dict[_Class, dict[Key, PolicyPod]] = {}
        self._with_name: dict[NamedPort, dict[Key, PolicyPod]] = defaultdict(dict)
        self._name_changes: Counter[NamedPort] = Counter()
        self._holders: Counter[Address] = Counter()
        """How many pods have an address."""
        self._choices: dict[tuple[str, PodPeer], _Choice] = {}
        self._sides: dict[str, dict[tuple[object, ...], DirectionRules | None]] = defaultdict(dict)
        self._made: dict[RuleId, _Made] = {}
        self._named: dict[RuleId, _Named] = {}

    def compile(self, world: PolicyWorld, local: Iterable[PolicyPod]) -> Compiled:
        """What holds for `local`, pods of this node, as the world's policies say."""
        if not world.policies:
            return Compiled()
        self._take_policies(world)
        self._take_namespaces(world)
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
        different = {id(side): side for side in sides.values()}.values()
        peers = {
            rule: self._peers(rule)
            for rule in frozenset[RuleId]().union(
                *(side.numbered for side in different), *(side.named for side in different)
            )
        }
        named = {rule: self._named_ports(rule) for side in different for rule in side.named}
        self._forget_others(peers)
        return Compiled(sides, peers, named, isolated)

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

    def _take_namespaces(self, world: PolicyWorld) -> None:
        before, now = self._namespaces, world.namespaces
        changed = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
        self._namespaces = {name: dict(labels) for name, labels in now.items()}
        if not changed:
            return
        classes = [each for each in self._members if each.namespace in changed]
        for choice in self._choices.values():
            if choice.peer.namespaces is not None:
                for each in classes:
                    choice.put(each, is_meant=choice.means(each, self._labels(each.namespace)))

    def _labels(self, namespace: str) -> Labels:
        return PolicyWorld(namespaces=self._namespaces).namespace_labels(namespace)

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
        old, new = _class_of(before), _class_of(after)
        if before is not None and old is not None:
            del self._members[old][before.key]
            if not self._members[old] and old != new:
                del self._members[old]
                for choice in self._choices.values():
                    choice.put(old, is_meant=False)
        if after is not None and new is not None:
            if new not in self._members:
                self._members[new] = {}
                labels = self._labels(new.namespace)
                for choice in self._choices.values():
                    choice.put(new, is_meant=choice.means(new, labels))
            self._members[new][after.key] = after
        self._readdress(before, old, after, new)
        self._move_names(before if old is not None else None, after if new is not None else None)

    def _readdress(
        self,
        before: PolicyPod | None,
        old: _Class | None,
        after: PolicyPod | None,
        new: _Class | None,
    ) -> None:
        """Corrects the choices that the pod leaves or joins; what else they have stays as it is."""
        left = frozenset(before.addresses) if before is not None and old is not None else _NONE
        come = frozenset(after.addresses) if after is not None and new is not None else _NONE
        self._holders.subtract(left)
        self._holders.update(come)
        is_anothers = any(self._holders[each] > (each in come) for each in left)
        for each in left:
            if not self._holders[each]:
                del self._holders[each]
        for choice in self._choices.values():
            leaves, joins = old in choice.classes, new in choice.classes
            if choice.addresses is None or not (leaves or joins):
                continue
            if is_anothers and leaves:
                choice.addresses = None
                continue
            kept = choice.addresses - left if leaves else choice.addresses
            choice.addresses = kept | come if joins else kept

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
            held[same] = self._make_side(pod, direction)
        return held[same]

    def _make_side(self, pod: PolicyPod, direction: Direction) -> DirectionRules | None:
        policies = [
            policy
            for policy in self._by_namespace[pod.key.namespace].values()
            if direction in policy.directions and policy.may_select(pod)
        ]
        if not policies:
            return None
        if pod.labels is None:
            return (
                DirectionRules()
            )  # it may be one of those that are isolated: closed while in doubt
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

    def _peers(self, rule_id: RuleId) -> AllowedPeers:
        rule = self._policies[rule_id.policy].rules(rule_id.direction)[rule_id.number]
        if not rule.peers:
            return _EVERYBODY
        made = self._made.get(rule_id)
        if made is not None and made.rule is not rule:
            made = None
        choices = (
            tuple(
                self._choice(rule_id.policy.namespace, peer)
                for peer in rule.peers
                if isinstance(peer, PodPeer)
            )
            if made is None
            else made.choices
        )
        chosen = tuple(map(self._addresses, choices))
        if made is None or any(a is not b for a, b in zip(made.chosen, chosen, strict=True)):
            ranges = (
                ranges_of(peer for peer in rule.peers if isinstance(peer, IpBlock))
                if made is None
                else made.peers.ranges
            )
            addresses = chosen[0] if len(chosen) == 1 else frozenset[Address]().union(*chosen)
            made = _Made(rule, choices, chosen, AllowedPeers(False, addresses, ranges))
            self._made[rule_id] = made
        return made.peers

    def _choice(self, namespace: str, peer: PodPeer) -> _Choice:
        at = ("" if peer.namespaces is not None else namespace, peer)
        if at not in self._choices:
            choice = _Choice(namespace, peer)
            for each in self._members:
                choice.put(each, is_meant=choice.means(each, self._labels(each.namespace)))
            self._choices[at] = choice
        return self._choices[at]

    def _addresses(self, choice: _Choice) -> frozenset[Address]:
        if choice.addresses is None:
            choice.addresses = frozenset(
                address
                for each in choice.classes
                for pod in self._members[each].values()
                for address in pod.addresses
            )
        return choice.addresses

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

    def _forget_others(self, used: Mapping[RuleId, AllowedPeers]) -> None:
        """What no side of this node names any more."""
        if not (self._made.keys() <= used.keys() and self._named.keys() <= used.keys()):
            self._made = {rule: made for rule, made in self._made.items() if rule in used}
            self._named = {rule: held for rule, held in self._named.items() if rule in used}
        wanted = {id(choice) for made in self._made.values() for choice in made.choices}
        if len(wanted) < len(self._choices):
            self._choices = {
                at: choice for at, choice in self._choices.items() if id(choice) in wanted
            }


def _others(now: Mapping[Key, T], before: Mapping[Key, T]) -> list[tuple[Key, T]]:
    """What is not the very same as before. There may be tens of thousands: no loop of ours."""
    return [*compress(now.items(), map(is_not, map(before.get, now), now.values()))]


def _class_of(pod: PolicyPod | None) -> _Class | None:
    """None: no selector chooses it."""
    if pod is None or pod.host_network or pod.labels is None:
        return None
    return _Class(pod.key.namespace, frozenset(pod.labels.items()))
