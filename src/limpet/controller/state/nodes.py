"""What a person does to a node: operations on the tables, as those of grants.py."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from limpet.base.addresses import Prefix
from limpet.base.bounds.administrators import BEHIND
from limpet.base.text.nearest import hint
from limpet.cluster.api import Code
from limpet.cluster.keys import is_uid
from limpet.cluster.kinds.grant import Grant, Role
from limpet.cluster.segments import behind_problem
from limpet.controller.communities.membership import communities_of
from limpet.controller.communities.namesakes import settle_namesakes
from limpet.controller.registry.records import SegmentRecord
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.tables import Tables, live_uids
from limpet.controller.state.grants import bury, change_grant, live_grant
from limpet.controller.state.problems import relay_problem

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Altered(Generic[T]):
    """What a person wants of several things that a node has."""

    only: frozenset[T] | None = None
    """In place of those that it has; None: those stay."""
    add: frozenset[T] = frozenset()
    drop: frozenset[T] = frozenset()

    def of(self, held: Iterable[T]) -> frozenset[T]:
        base = frozenset(held) if self.only is None else self.only
        return (base | self.add) - self.drop


def find_node(tables: Tables, name_or_uid: str) -> Grant:
    """A node that is not removed. Raises: RefusedError."""
    grant = tables.grants.get(name_or_uid)
    if grant is not None:
        return live_grant(tables, grant.uid)
    uids = tables.uids_of(name_or_uid)
    if not uids:
        names = {each.name for each in tables.grants.values() if not each.tombstone}
        see = hint(name_or_uid, sorted(names), "limpet node list shows all")
        raise RefusedError(Code.NOT_FOUND, f"node {name_or_uid}: there is none ({see})")
    if len(uids) > 1:
        raise RefusedError(
            Code.BAD_REQUEST,
            f"node {name_or_uid}: several machines have this name; name the uid: {', '.join(uids)}",
        )
    return tables.grants[uids[0]]


def remove(tables: Tables, name_or_uid: str, now_s: float) -> Grant:
    """Revokes the node for ever; its segments rest. Returns its last grant.

    Of one whose removal was cut off, what is left of it rests. Raises: RefusedError for one that is
    removed and holds nothing.
    """
    known = tables.grants.get(name_or_uid)
    if known is not None and known.tombstone and _rest(tables, [known.uid], now_s):
        return known
    grant = find_node(tables, name_or_uid)
    held = [each.prefix for each in tables.space.holdings.values() if each.uid == grant.uid]
    for prefix in dict.fromkeys((*grant.segments, *held)):
        tables.put_segment(prefix, SegmentRecord(grant.uid, now_s))
    bury(tables, grant)
    settle_namesakes(tables, grant.name)
    return grant


def rest_of_unknown(tables: Tables, uid: str, now_s: float, granted: Collection[str] = ()) -> int:
    """What is held for a machine without a grant rests: its join was cut off behind its segments,
    and it does not come back. Should it show a grant after all, it is removed then.

    `granted`: uids of which something lies in the store that a node alone has. Returns how many
    segments. Raises: RefusedError where its grant may be lost: nobody here can sign its tombstone.
    """
    if not is_uid(uid) or uid in tables.grants:
        return 0
    has_confirmed = any(
        each.used_by == uid and each.held_since_s is None for each in tables.tokens.values()
    )
    is_held = any(
        each.uid == uid and each.resting_since_s is None for each in tables.space.holdings.values()
    )
    if uid in granted or (is_held and has_confirmed):
        raise RefusedError(
            Code.BAD_REQUEST,
            f"remove {uid}: it was granted something, and nobody can read its grant here, so "
            "nobody would hear of the removal; its segments stay held (the grant is written again "
            "as soon as the node says hello: remove it then)",
        )
    if is_held and tables.state.recovery is not None:
        raise RefusedError(
            Code.BAD_REQUEST,
            f"remove {uid}: this controller was restored, and may not know its grant; its segments "
            "stay held (ask again when the recovery is over: limpet controller recovery)",
        )
    return _rest(tables, [uid], now_s)


def finish_removals(tables: Tables, now_s: float) -> int:
    """What removed nodes still hold rests: a writer was stopped behind the tombstone. Returns how
    many segments."""
    removed = [each.uid for each in tables.grants.values() if each.tombstone]
    return _rest(tables, removed, now_s)


def bury_put_back(tables: Tables, now_s: float) -> list[str]:
    """A node of which something rests was removed: its old grant lay where its tombstone was, and
    is removed again. Returns the uids. Raises: RefusedError."""
    rests = {
        each.uid for each in tables.space.holdings.values() if each.resting_since_s is not None
    }
    back = [tables.grants[uid] for uid in live_uids(tables) if uid in rests]
    for grant in back:
        bury(tables, grant)
        settle_namesakes(tables, grant.name)
    uids = [grant.uid for grant in back]
    _rest(tables, uids, now_s)
    return uids


def _rest(tables: Tables, uids: Iterable[str], now_s: float) -> int:
    of = frozenset(uids)
    held = [
        each
        for each in tables.space.holdings.values()
        if each.uid in of and each.resting_since_s is None
    ]
    for each in held:
        tables.put_segment(each.prefix, SegmentRecord(each.uid, now_s))
    return len(held)


def await_replacement(tables: Tables, name_or_uid: str, *, wanted: bool) -> Grant:
    """The next that joins under the node's name takes its segments; or no longer so.

    Raises: RefusedError.
    """
    grant = find_node(tables, name_or_uid)
    if wanted and grant.is_flannel:
        raise RefusedError(
            Code.BAD_REQUEST,
            f"replace {grant.name}: flannel runs it, and a machine that joins under its name takes "
            "its segments anyway (limpet install, on the new machine, with the same --name)",
        )
    tables.put_node(grant.uid, awaits_replacement=wanted)
    return grant


def label(
    tables: Tables, name_or_uid: str, add: Mapping[str, str], drop: Iterable[str]
) -> Mapping[str, str]:
    """All labels that the node has then; communities that choose by them take it in or leave it.

    Raises: RefusedError.
    """
    grant = find_node(tables, name_or_uid)
    labels = {key: value for key, value in {**grant.labels, **add}.items() if key not in set(drop)}
    if labels != grant.labels:
        named = tables.nodes[grant.uid].communities
        communities = communities_of(tables, grant.uid, grant.name, named, labels)
        change_grant(tables, grant, labels=labels, communities=communities)
    return labels


def set_node(
    tables: Tables,
    name_or_uid: str,
    roles: Altered[Role],
    behind: Altered[Prefix],
    *,
    anyway: bool = False,
) -> Grant:
    """The node's grant with these roles and prefixes behind; its next generation if it differs.

    `anyway`: a relay without a public address too. Raises: RefusedError, and then nothing counts.
    """
    grant = find_node(tables, name_or_uid)
    if grant.is_flannel:
        raise RefusedError(
            Code.BAD_REQUEST,
            f"set {grant.name}: flannel runs it, and knows neither roles nor what is behind it "
            "(move it first: limpet install --take-over flannel, on the node)",
        )
    wanted = roles.of(grant.roles)
    if not wanted:
        raise RefusedError(
            Code.BAD_REQUEST,
            f"set roles of {grant.name}: a node has at least one of "
            f"{', '.join(each.value for each in Role)} (add another before you take this away)",
        )
    if (
        Role.RELAY in wanted - grant.roles
        and not anyway
        and (problem := relay_problem(tables, grant))
    ):
        raise RefusedError(Code.BAD_REQUEST, f"make {grant.name} a relay: {problem}")
    prefixes = _checked_behind(tables, grant, behind)
    if (wanted, prefixes) == (grant.roles, grant.prefixes_behind):
        return grant
    change_grant(tables, grant, roles=wanted, prefixes_behind=prefixes)
    return tables.grants[grant.uid]


def _checked_behind(tables: Tables, grant: Grant, behind: Altered[Prefix]) -> tuple[Prefix, ...]:
    """In order. Raises: RefusedError for what is not behind the node, or can't be."""
    held = frozenset(grant.prefixes_behind)
    for prefix in sorted(behind.drop - held, key=str):
        there = ", ".join(map(str, grant.prefixes_behind)) or "none"
        raise RefusedError(
            Code.BAD_REQUEST,
            f"take {prefix} from behind {grant.name}: it is not there (there are: {there})",
        )
    wanted = sorted(
        behind.of(held), key=lambda each: (each.version, int(each.network_address), each.prefixlen)
    )
    if len(wanted) > BEHIND.most:
        raise RefusedError(
            Code.BAD_REQUEST,
            f"put {len(wanted)} prefixes behind {grant.name}: at most {BEHIND.most} are possible "
            "(name wider ones)",
        )
    others = [
        (prefix, other.name)
        for other in tables.grants.values()
        if other.uid != grant.uid
        for prefix in other.prefixes_behind
    ]
    for number, prefix in enumerate(wanted):
        beside = [(each, grant.name) for each in wanted[:number]]
        if problem := behind_problem(tables.network, prefix, [*beside, *others]):
            raise RefusedError(Code.BAD_REQUEST, f"put {prefix} behind {grant.name}: {problem}")
    return tuple(wanted)
