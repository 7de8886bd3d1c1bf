"""What is and what is not as it should be with each of Limpet's objects in Kubernetes: a row for
each resource. Pure.

A condition of one node depends on that node alone: what concerns all is told on the ClusterNetwork,
or one change would write every object, and every watcher would hear of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from limpet.base.text.escaping import escaped
from limpet.base.text.few import few
from limpet.cluster.kinds import NETWORK
from limpet.cluster.kinds.grant import Grant, Role
from limpet.controller.orchestrator.node_keeper.lifecycle import problems_of_node
from limpet.controller.registry.records import COMMUNITY, NODE, PRESENCE
from limpet.controller.registry.tables import Tables
from limpet.controller.state.problems import shared_endpoints, unreached_relay

_MAX_MESSAGE_CHARACTERS = 4_096
_MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class Condition:
    type: str
    holds: bool
    reason: str
    """One CamelCase word."""
    message: str
    """In words, with what to do where it does not hold."""


@dataclass(frozen=True, slots=True)
class Written:
    """A condition as an object has it."""

    type: str
    status: str
    reason: str
    message: str
    since: str
    """RFC 3339."""


@dataclass(frozen=True, slots=True)
class Shown:
    """An object of ours, as far as its conditions need it."""

    kind: str
    """Kind of the item that it holds."""
    name: str
    object_uid: str
    generation: int
    subject: str = ""
    """Name of the item; empty: nobody can read it."""
    signature: bytes = b""
    """Signature of its document."""
    unreadable: str = ""
    """Why, in words."""
    differs: str = ""
    """What its `spec` says otherwise than what was signed, in words."""
    written: tuple[Written, ...] = ()
    observed: int = 0
    nodes: int | None = None
    """As its status says."""


@dataclass(frozen=True, slots=True)
class ConditionFacts:
    """What is known beside the tables."""

    community_problems: Mapping[str, str] = field(default_factory=dict)
    unreadable_grants: Mapping[str, str] = field(default_factory=dict)
    """Why, by uid."""
    held_twice: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Addresses that two pods hold, in words, by the names of their nodes."""
    cidr_problems: Mapping[str, str] = field(default_factory=dict)
    """Why a node has not the podCIDRs of its Node, by its name."""


Find = Callable[[Shown, Tables, ConditionFacts], list[Condition]]


def conditions_of(shown: Shown, tables: Tables, facts: ConditionFacts) -> list[Condition]:
    if shown.unreadable and shown.kind != COMMUNITY:
        return [Condition(_FIRST[shown.kind], False, "Unreadable", shown.unreadable)]
    return _FIND[shown.kind](shown, tables, facts)


def _of_network(shown: Shown, tables: Tables, facts: ConditionFacts) -> list[Condition]:
    """Its spec is written by the controller alone."""
    found = [_ready(shown, "Signed", "what was signed is in it, and the controller works with it")]
    lost = tables.state.recovery
    if lost is None:
        found.append(
            Condition("Granting", True, "Granting", "nodes get segments as they need them")
        )
    elif lost.paused:
        words = (
            "the controller is behind what nodes know (was etcd restored from an old back-up, or "
            "were objects deleted?) and grants nothing until every node has reported (who is "
            "waited for: limpet controller recovery; pods of nodes that have joined go on)"
        )
        found.append(Condition("Granting", False, "Recovering", words))
    else:
        words = "after a restore only space that was never used is granted, until all have reported"
        found.append(Condition("Granting", True, "Recovering", words))
    found.append(_grants_readable(facts))
    twice = sorted({each for words in facts.held_twice.values() for each in words})
    found.append(_pod_addresses(twice))
    return found


def _grants_readable(facts: ConditionFacts) -> Condition:
    if not facts.unreadable_grants:
        return Condition("GrantsReadable", True, "Readable", "every grant can be read")
    named = [f"{uid}: {why}" for uid, why in facts.unreadable_grants.items()]
    words = (
        f"{len(named)} NodeGrants cannot be read; their segments stay reserved, and each is "
        f"written again as soon as its node says hello: {few(named, _MOST_NAMED)}"
    )
    return Condition("GrantsReadable", False, "Unreadable", words)


def _of_grant(shown: Shown, tables: Tables, facts: ConditionFacts) -> list[Condition]:
    grant = tables.grants.get(shown.subject)
    if grant is None:
        words = (
            "the controller does not know this grant: it was written by hand, or is of another "
            "cluster (delete the object; no node loses anything by it)"
        )
        return [Condition("Ready", False, "NotKnown", words)]
    if grant.tombstone:
        words = (
            f"removed for ever at revision {grant.revision} (to come back the node needs a new key "
            "and a new join)"
        )
        return [Condition("Ready", False, "Removed", words)]
    found = [_ready(shown, "Granted", "the node may talk, with these segments")]
    found += [_segments_left(tables, grant), _name_unique(tables, grant)]
    node = _matches_node(tables, grant, facts)
    # Of nodes that are as their Nodes are nothing is written for it.
    if not node.holds or any(each.type == node.type for each in shown.written):
        found.append(node)
    return found


def _matches_node(tables: Tables, grant: Grant, facts: ConditionFacts) -> Condition:
    if problems := problems_of_node(tables, grant):
        was_told = tables.nodes[grant.uid].node_gone_at_s is not None
        reason = "NodeDeleted" if was_told else "NodeMissing"
        return Condition("MatchesNode", False, reason, "; ".join(problems))
    if problem := facts.cidr_problems.get(grant.name):
        return Condition("MatchesNode", False, "PodCIDRsRefused", problem)
    return Condition("MatchesNode", True, "Matches", "it is as its Node in Kubernetes is")


def _segments_left(tables: Tables, grant: Grant) -> Condition:
    quota = tables.network.segment_quota
    for version in tables.space.versions:
        held = sum(1 for prefix in grant.segments if prefix.version == version)
        if held >= quota:
            words = (
                f"it holds {held} segments of IPv{version}, and the quota of a node is {quota}: "
                "when its addresses are used up, new pods get none (segment_quota in the "
                "controller's configuration)"
            )
            return Condition("SegmentsLeft", False, "QuotaUsed", words)
    return Condition("SegmentsLeft", True, "WithinQuota", "it gets more when it needs more")


def _name_unique(tables: Tables, grant: Grant) -> Condition:
    others = [each for each in tables.uids_of(grant.name) if each != grant.uid]
    if not others:
        return Condition("NameUnique", True, "Unique", "no other machine has its node's name")
    words = (
        f"other machines have joined under the name {grant.name} too: {few(others, _MOST_NAMED)} "
        "(remove those that are gone: limpet node remove UID)"
    )
    return Condition("NameUnique", False, "SeveralMachines", words)


def _of_presence(shown: Shown, tables: Tables, facts: ConditionFacts) -> list[Condition]:
    uid = shown.subject
    found, grant = [_signed(shown, tables)], tables.grants.get(uid)
    if grant is None or grant.tombstone:
        words = (
            "the controller knows no grant of this machine"
            if grant is None
            else f"the machine was removed at revision {grant.revision}"
        )
        reason = "NoGrant" if grant is None else "Removed"
        hint = " (nobody talks to it; delete the object, or let the node join anew)"
        return [*found, Condition("UnderItsGrant", False, reason, words + hint)]
    found.append(Condition("UnderItsGrant", True, "Granted", "its machine may talk"))
    presence, record = tables.presence(uid), tables.presences.get(uid)
    shared = shared_endpoints(tables, grant, presence) if presence is not None else []
    words = "no other node names one of its endpoints"
    found.append(
        Condition("AddressesUnique", False, "EndpointShared", "; ".join(shared))
        if shared
        else Condition("AddressesUnique", True, "Unique", words)
    )
    if record is not None and record.cloned_at_s is not None:
        words = (
            "two machines use its key at once (a cloned disk? Give one of them a new key and let "
            "it join anew; limpet node remove ends this one for ever)"
        )
        found.append(Condition("IdentityUnique", False, "Cloned", words))
    else:
        found.append(Condition("IdentityUnique", True, "Unique", "one machine uses its key"))
    found.append(_pod_addresses(facts.held_twice.get(grant.name, ())))
    if Role.RELAY in grant.roles and presence is not None:
        problem = unreached_relay(grant, presence)
        words = problem or "nodes behind NATs reach it"
        reason = "NoPublicAddress" if problem else "Public"
        found.append(Condition("RelayReached", not problem, reason, words))
    return found


def _signed(shown: Shown, tables: Tables) -> Condition:
    record = tables.presences.get(shown.subject)
    if record is None or record.sealed.signature != shown.signature:
        words = (
            "the controller did not take it: it is older than what is known, or not signed with "
            "this node's key (the node writes it again by itself; if it does not: limpet status "
            "there)"
        )
        return Condition("Signed", False, "NotTaken", words)
    if shown.differs:
        return Condition("Signed", False, "SpecDiffers", shown.differs)
    return Condition("Signed", True, "Signed", "what its node has signed is in it")


def _pod_addresses(twice: Sequence[str]) -> Condition:
    if not twice:
        return Condition("PodAddressesUnique", True, "Unique", "no address is held by two pods")
    words = (
        f"two live pods hold one address: {few(twice, _MOST_NAMED)} (delete one of each two, so "
        "that it gets another address; does another pod network use the same addresses?)"
    )
    return Condition("PodAddressesUnique", False, "HeldTwice", words)


def _of_community(shown: Shown, tables: Tables, facts: ConditionFacts) -> list[Condition]:
    return [_community(shown, tables, facts)]


def _community(shown: Shown, tables: Tables, facts: ConditionFacts) -> Condition:
    name = shown.subject
    if shown.unreadable:
        return Condition("Ready", False, "Unreadable", shown.unreadable)
    if name in facts.community_problems:
        return Condition("Ready", False, "Refused", facts.community_problems[name])
    record = tables.communities.get(name)
    if record is None:
        return Condition("Ready", False, "NotRead", "the controller has not read it yet")
    nodes = nodes_in(name, tables)
    absent = sorted(each for each in record.members if not tables.uids_of(each))
    more = f"; not joined yet: {few(absent, _MOST_NAMED)}" if absent else ""
    if not nodes:
        words = (
            f"no node is in it{more} (name nodes in spec.members, or labels that nodes have in "
            "spec.nodeSelector)"
        )
        return Condition("Ready", False, "NamesNobody", words)
    return Condition("Ready", True, "Granted", f"{nodes} nodes have it in their grants{more}")


def nodes_in(community: str, tables: Tables) -> int:
    return sum(1 for grant in tables.grants.values() if community in grant.communities)


def _ready(shown: Shown, reason: str, words: str) -> Condition:
    if shown.differs:
        return Condition("Ready", False, "SpecDiffers", shown.differs)
    return Condition("Ready", True, reason, words)


_FIND: dict[str, Find] = {
    NETWORK.name: _of_network,
    NODE: _of_grant,
    PRESENCE: _of_presence,
    COMMUNITY: _of_community,
}
_FIRST = {NETWORK.name: "Ready", NODE: "Ready", PRESENCE: "Signed"}
FOLLOWED = frozenset({NETWORK.name, COMMUNITY})
"""Kinds that people change, and wait for the controller to have seen it: `observedGeneration`. That
of the others changes with each presence, and would be one more write for each."""


# What an object has, and what it should have


def read_written(status: Any) -> tuple[Written, ...]:
    """Whatever somebody has put there; what is no condition is passed over."""
    conditions = status.get("conditions") if isinstance(status, Mapping) else None
    found = []
    for each in conditions if isinstance(conditions, list) else ():
        parts = [each.get(key) for key in _KEYS] if isinstance(each, Mapping) else [None]
        if all(isinstance(part, str) for part in parts):
            found.append(Written(*parts))
    return tuple(found)


_KEYS = ("type", "status", "reason", "message", "lastTransitionTime")


def wanted(shown: Shown, conditions: Sequence[Condition], moment: str) -> tuple[Written, ...]:
    """`moment`: RFC 3339, when a condition becomes another."""
    before = {each.type: each for each in shown.written}
    found = []
    for each in conditions:
        status, known = "True" if each.holds else "False", before.get(each.type)
        since = known.since if known is not None and known.status == status else moment
        message = escaped(each.message[:_MAX_MESSAGE_CHARACTERS])[:_MAX_MESSAGE_CHARACTERS]
        found.append(Written(each.type, status, each.reason, message, since))
    return tuple(found)


def status_of(shown: Shown, written: Sequence[Written], nodes: int | None) -> dict[str, Any]:
    """For a merge patch: what else is in the status stays."""
    conditions = [
        {**dict(zip(_KEYS, _parts(each), strict=True)), "observedGeneration": shown.generation}
        for each in written
    ]
    status: dict[str, Any] = {
        "observedGeneration": shown.generation,
        "conditions": conditions,
    }
    return status if nodes is None else {**status, "nodes": nodes}


def _parts(each: Written) -> tuple[str, ...]:
    return (each.type, each.status, each.reason, each.message, each.since)


def turned(before: Sequence[Written], after: Sequence[Written]) -> list[Written]:
    """Conditions that a person should hear of: one that does not hold any more, or for another
    reason, and one that holds again."""
    known = {each.type: (each.status, each.reason) for each in before}
    return [
        each
        for each in after
        if known.get(each.type) != (each.status, each.reason)
        and (each.status != "True" or known.get(each.type, ("True", ""))[0] != "True")
    ]
