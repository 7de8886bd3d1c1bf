"""What policies say of the pods of two nodes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from limpet.base.addresses import Address
from limpet.policies.compiled import (
    DIRECTIONS,
    AllowedPeers,
    Compiled,
    DirectionRules,
    RuleId,
    merged,
)
from limpet.policies.compiler import compile_sides
from limpet.policies.labels import Labels
from limpet.policies.policy import Direction, Key, Policy, PolicyPod, PolicyWorld
from limpet.policies.said.words import LETS, ports_words

MOST_POLICIES = 64
"""Most policies that are told of one side of a pair."""
_MOST_PODS = 256
"""Most pods of a node that are looked at for how many may begin a connection."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A policy that selects pods of a node, and what it says of those of another."""

    policy: Key
    direction: Direction
    selected: int
    """Pods of the node."""
    words: str


@dataclass(frozen=True, slots=True)
class PairSide:
    """Policies on one node of the two."""

    holds: tuple[Hold, ...]
    words: tuple[str, ...]
    """What all of them together come to, for each direction in which pods are isolated."""


def side_of(
    policies: Mapping[Key, Policy],
    namespaces: Mapping[str, Labels],
    mine: Collection[PolicyPod],
    theirs: Collection[PolicyPod],
    names: tuple[str, str],
) -> PairSide:
    """`policies`: that hold at the node with the pods `mine`. `names`: of the nodes with the pods
    `mine` and `theirs`."""
    mine = [pod for pod in mine if not pod.host_network]
    theirs = [pod for pod in theirs if not pod.host_network]
    pods = {pod.key: pod for pod in (*theirs, *mine)}  # of others' pods nothing is asked here
    meant = {key: policy for key, policy in policies.items() if any(map(policy.may_select, mine))}
    holds: list[Hold] = []
    for key, policy in sorted(meant.items()):
        if len(holds) >= MOST_POLICIES:
            break
        selected = [pod for pod in mine if policy.may_select(pod)]
        compiled = compile_sides(PolicyWorld({key: policy}, namespaces, pods), selected)
        holds += [
            Hold(
                key,
                direction,
                len(selected),
                _policy_says(policy, direction, compiled, theirs, names[1]),
            )
            for direction in DIRECTIONS
            if direction in policy.directions
        ]
    whole = compile_sides(PolicyWorld(meant, namespaces, pods), mine)
    words = (_all_say(whole, direction, mine, theirs, names) for direction in DIRECTIONS)
    return PairSide(tuple(holds[:MOST_POLICIES]), tuple(filter(None, words)))


def _policy_says(
    policy: Policy,
    direction: Direction,
    compiled: Compiled,
    theirs: Collection[PolicyPod],
    name: str,
) -> str:
    lets = f"{LETS[direction]}, {'from' if direction == 'ingress' else 'to'} pods of {name},"
    if not theirs:
        return f"no pod of {name} is known here"
    said: list[str] = []
    different = {id(side): side for at, side in compiled.sides.items() if at[1] == direction}
    numbered = frozenset[RuleId]().union(*(side.numbered for side in different.values()))
    named = frozenset[RuleId]().union(*(side.named for side in different.values()))
    for number, rule in enumerate(policy.rules(direction)):
        only = {RuleId(policy.key, direction, number)}
        if count := len(_allowed(compiled, only & numbered, only & named, theirs)):
            of = "all" if count == len(theirs) else f"{count} of {len(theirs)}"
            said.append(f"{ports_words(rule)} for {of}")
    return f"{lets} {'; '.join(dict.fromkeys(said)) or 'nothing'}"


def _allowed(
    compiled: Compiled,
    numbered: Iterable[RuleId],
    named: Iterable[RuleId],
    theirs: Iterable[PolicyPod],
) -> set[Key]:
    """Pods with which these rules of a side allow anything at all."""
    peers = _together([compiled.peers[rule] for rule in numbered])
    ends = {at.address for rule in named for at in compiled.named[rule]}
    return {
        pod.key
        for pod in theirs
        for address in pod.addresses
        if address in ends or peers.include(address)
    }


def _together(found: Collection[AllowedPeers]) -> AllowedPeers:
    """Whom any of them allows: a look for an address costs the same, however many they are."""
    if len(found) == 1:
        return next(iter(found))
    return AllowedPeers(
        any(each.everybody for each in found),
        frozenset[Address]().union(*(each.addresses for each in found)),
        merged(span for each in found for span in each.ranges),
    )


def _all_say(
    compiled: Compiled,
    direction: Direction,
    mine: Collection[PolicyPod],
    theirs: Collection[PolicyPod],
    names: tuple[str, str],
) -> str:
    """Empty: no pod is isolated."""
    isolated = [pod for pod in mine if (pod.key, direction) in compiled.sides]
    if not isolated:
        return ""
    what = "receive" if direction == "ingress" else "send"
    said = (
        f"what {len(isolated)} of {len(mine)} pods of {names[0]} {what} is held to policies "
        f"({direction})"
    )
    if not theirs or len(isolated) > _MOST_PODS or len(theirs) > _MOST_PODS:
        return said
    sides = [compiled.sides[pod.key, direction] for pod in isolated]
    open_pairs = sum(
        alike * len(_allowed(compiled, side.numbered, side.named, theirs))
        for side, alike in _counted(sides)
    )
    pairs = len(isolated) * len(theirs)
    way = "from" if direction == "ingress" else "to"
    allowed = "all" if open_pairs == pairs else str(open_pairs) if open_pairs else "none"
    return f"{said}: {allowed} of {pairs} pairs {way} pods of {names[1]} may connect, at some port"


def _counted(sides: Collection[DirectionRules]) -> Iterator[tuple[DirectionRules, int]]:
    """Each with how many there are of it: pods that are alike have the very same."""
    by_identity = {id(side): side for side in sides}
    for identity, alike in Counter(map(id, sides)).items():
        yield by_identity[identity], alike
