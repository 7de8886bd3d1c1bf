"""Pods that peers of rules choose by their labels, kept right while pods and namespaces change.

Selectors are compared with classes of pods that have the same namespace and labels, of which there
are far fewer than pods. Each selector is compared once, however many rules have it, and with a
class only where it may see it: of the policy's namespace, or of the namespaces that are meant; and
selectors that want certain values of a label only with pods that have one of these.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from limpet.base.addresses import Address
from limpet.policies.labels import Labels, Selector
from limpet.policies.policy import PodPeer, PolicyPod, PolicyWorld

_NONE: frozenset[Address] = frozenset()
_Label = tuple[str, str]


class PodClass(NamedTuple):
    """Pods that no selector tells apart."""

    namespace: str
    labels: frozenset[_Label]


def class_of(pod: PolicyPod | None) -> PodClass | None:
    """None: no selector chooses it."""
    if pod is None or pod.host_network or pod.labels is None:
        return None
    return PodClass(pod.key.namespace, frozenset(pod.labels.items()))


@dataclass(slots=True, eq=False)
class _Scope:
    """Namespaces in which selectors choose: one by its name, or those that a selector means."""

    namespaces: str | Selector
    choices: dict[Selector, _Choice] = field(default_factory=dict)
    by_label: dict[_Label, dict[_Choice, None]] = field(default_factory=dict)
    """Choices that want one of some labels, by each of these."""
    others: dict[_Choice, None] = field(default_factory=dict)

    def sees(self, namespace: str, labels: Labels) -> bool:
        if isinstance(self.namespaces, str):
            return namespace == self.namespaces
        return self.namespaces.selects(labels)

    def may_choose(self, each: PodClass) -> Iterator[_Choice]:
        """Choices with which a class of pods has to be compared."""
        yield from self.others
        for label in each.labels:
            yield from self.by_label.get(label, ())


@dataclass(slots=True, eq=False)
class _Choice:
    """Pods that a selector means, among those that its scope sees."""

    pods: Selector
    scope: _Scope
    classes: set[PodClass] = field(default_factory=set)
    groups: set[PeerGroup] = field(default_factory=set)

    @property
    def wanted(self) -> tuple[_Label, ...]:
        """Labels of which each of its pods has one; empty: no such are known."""
        if self.pods.labels:
            return self.pods.labels[:1]
        for each in self.pods.expressions:
            if each.operator == "In":
                return tuple((each.key, value) for value in each.values)
        return ()


@dataclass(slots=True, eq=False)
class PeerGroup:
    """Pods that the peers of some rules mean; rules with the same peers have one together."""

    choices: frozenset[_Choice]
    times: Counter[PodClass] = field(default_factory=Counter)
    """By how many of its choices each class is meant; without those that none means."""
    addresses: frozenset[Address] | None = None
    """None: they are to be gathered again."""
    rules: int = 0
    """Rules that have it."""


class Choices:
    """Groups of peers, and the pods that they are found among."""

    def __init__(self) -> None:
        self._namespaces: dict[str, Labels] = {}
        self._members: dict[PodClass, dict[object, PolicyPod]] = {}
        self._classes_in: dict[str, set[PodClass]] = defaultdict(set)
        self._with_label: dict[_Label, set[PodClass]] = defaultdict(set)
        self._holders: Counter[Address] = Counter()
        """How many pods have an address."""
        self._scopes: dict[str | Selector, _Scope] = {}
        self._scopes_of: dict[str, set[_Scope]] = {}
        """Scopes that see a namespace that has pods."""
        self._choices_of: dict[PodClass, set[_Choice]] = defaultdict(set)
        self._groups_of: dict[PodClass, set[PeerGroup]] = defaultdict(set)
        self._groups: dict[frozenset[_Choice], PeerGroup] = {}

    # What is known

    def set_namespaces(self, now: Mapping[str, Labels]) -> None:
        before = self._namespaces
        changed = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
        self._namespaces = {name: dict(labels) for name, labels in now.items()}
        for name in changed & self._scopes_of.keys():
            had, labels = self._scopes_of[name], self._labels(name)
            has = {scope for scope in self._scopes.values() if scope.sees(name, labels)}
            self._scopes_of[name] = has
            for scope in had ^ has:
                for each in self._classes_in[name]:
                    self._compare(each, scope.may_choose(each), is_seen=scope in has)

    def _labels(self, namespace: str) -> Labels:
        return PolicyWorld(namespaces=self._namespaces).namespace_labels(namespace)

    def move(self, before: PolicyPod | None, after: PolicyPod | None) -> None:
        """One pod is another now, has come (`before` is None) or has gone."""
        old, new = class_of(before), class_of(after)
        if before is not None and old is not None:
            del self._members[old][before.key]
            if not self._members[old] and old != new:
                self._drop_class(old)
        if after is not None and new is not None:
            if new not in self._members:
                self._add_class(new)
            self._members[new][after.key] = after
        left = frozenset(before.addresses) if before is not None and old is not None else _NONE
        come = frozenset(after.addresses) if after is not None and new is not None else _NONE
        self._readdress(old, left, new, come)

    def _add_class(self, each: PodClass) -> None:
        self._members[each] = {}
        self._classes_in[each.namespace].add(each)
        for label in each.labels:
            self._with_label[label].add(each)
        if each.namespace not in self._scopes_of:
            labels = self._labels(each.namespace)
            self._scopes_of[each.namespace] = {
                scope for scope in self._scopes.values() if scope.sees(each.namespace, labels)
            }
        for scope in self._scopes_of[each.namespace]:
            self._compare(each, scope.may_choose(each), is_seen=True)

    def _drop_class(self, each: PodClass) -> None:
        del self._members[each]
        for choice in self._choices_of.pop(each, ()):
            choice.classes.discard(each)
        for group in self._groups_of.pop(each, ()):
            del group.times[each]
            group.addresses = None
        self._classes_in[each.namespace].discard(each)
        if not self._classes_in[each.namespace]:
            del self._classes_in[each.namespace], self._scopes_of[each.namespace]
        for label in each.labels:
            self._with_label[label].discard(each)
            if not self._with_label[label]:
                del self._with_label[label]

    def _compare(self, each: PodClass, choices: Iterable[_Choice], *, is_seen: bool) -> None:
        labels = dict(each.labels)
        for choice in choices:
            is_meant = is_seen and choice.pods.selects(labels)
            if is_meant == (each in choice.classes):
                continue
            if is_meant:
                choice.classes.add(each)
                self._choices_of[each].add(choice)
            else:
                choice.classes.discard(each)
                self._choices_of[each].discard(choice)
            for group in choice.groups:
                self._count(group, each, 1 if is_meant else -1)

    def _count(self, group: PeerGroup, each: PodClass, change: int) -> None:
        before = group.times[each]
        if before and before + change:
            group.times[each] += change
            return
        group.addresses = None
        if before:
            del group.times[each]
            self._groups_of[each].discard(group)
        else:
            group.times[each] = change
            self._groups_of[each].add(group)

    def _readdress(
        self,
        old: PodClass | None,
        left: frozenset[Address],
        new: PodClass | None,
        come: frozenset[Address],
    ) -> None:
        """Corrects the groups that a pod leaves or joins; what else they have stays as it is."""
        self._holders.subtract(left)
        self._holders.update(come)
        is_anothers = any(self._holders[each] > (each in come) for each in left)
        for each in left:
            if not self._holders[each]:
                del self._holders[each]
        leaving = self._groups_of.get(old, set()) if old is not None else set()
        joining = self._groups_of.get(new, set()) if new is not None else set()
        for group in leaving | joining:
            if group.addresses is None:
                continue
            if is_anothers and group in leaving:
                group.addresses = None
                continue
            kept = group.addresses - left if group in leaving else group.addresses
            group.addresses = kept | come if group in joining else kept

    # Groups

    def take(self, namespace: str, peers: Iterable[PodPeer]) -> PeerGroup:
        """Pods that peers of a rule mean whose policy is in `namespace`; to be given back by
        `leave`."""
        choices = frozenset(
            self._choice(namespace if peer.namespaces is None else peer.namespaces, peer.pods)
            for peer in dict.fromkeys(peers)
        )
        group = self._groups.get(choices)
        if group is None:
            group = self._groups[choices] = PeerGroup(choices)
            for choice in choices:
                choice.groups.add(group)
                for each in choice.classes:
                    self._count(group, each, 1)
        group.rules += 1
        return group

    def leave(self, group: PeerGroup) -> None:
        group.rules -= 1
        if group.rules:
            return
        del self._groups[group.choices]
        for each in group.times:
            self._groups_of[each].discard(group)
        for choice in group.choices:
            choice.groups.discard(group)
            if not choice.groups:
                self._forget(choice)

    def addresses(self, group: PeerGroup) -> frozenset[Address]:
        """The very same as before, unless they are others."""
        if group.addresses is None:
            group.addresses = frozenset(
                address
                for each in group.times
                for pod in self._members[each].values()
                for address in pod.addresses
            )
        return group.addresses

    def _choice(self, namespaces: str | Selector, pods: Selector) -> _Choice:
        scope = self._scopes.get(namespaces)
        if scope is None:
            scope = self._scopes[namespaces] = _Scope(namespaces)
            for name in self._scopes_of:
                if scope.sees(name, self._labels(name)):
                    self._scopes_of[name].add(scope)
        choice = scope.choices.get(pods)
        if choice is None:
            choice = scope.choices[pods] = _Choice(pods, scope)
            wanted = choice.wanted
            for label in wanted:
                scope.by_label.setdefault(label, {})[choice] = None
            if not wanted:
                scope.others[choice] = None
            for each in self._to_compare(choice):
                if scope in self._scopes_of[each.namespace]:
                    self._compare(each, (choice,), is_seen=True)
        return choice

    def _to_compare(self, choice: _Choice) -> Collection[PodClass]:
        """Classes that a choice may mean, the fewest that are known at once."""
        where, wanted = choice.scope.namespaces, choice.wanted
        here: Collection[PodClass] = (
            self._classes_in.get(where, ()) if isinstance(where, str) else self._members
        )
        if not wanted:
            return here
        there = [self._with_label[label] for label in wanted if label in self._with_label]
        return here if len(here) < sum(map(len, there)) else set[PodClass]().union(*there)

    def _forget(self, choice: _Choice) -> None:
        scope = choice.scope
        del scope.choices[choice.pods]
        scope.others.pop(choice, None)
        for label in choice.wanted:
            del scope.by_label[label][choice]
            if not scope.by_label[label]:
                del scope.by_label[label]
        for each in choice.classes:
            self._choices_of[each].discard(choice)
        if not scope.choices:
            del self._scopes[scope.namespaces]
            for scopes in self._scopes_of.values():
                scopes.discard(scope)
