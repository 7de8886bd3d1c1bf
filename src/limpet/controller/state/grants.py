"""Who gets in, and which segments each node holds. Operations on the tables; none does I/O.

Each raises RefusedError before or after it has put something: the registry undoes that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec.structs import replace as replace_fields

from limpet.cluster.api import (
    Code,
    JoinRequest,
    parse_token,
)
from limpet.cluster.documents import Sealed
from limpet.cluster.keys import is_uid, uid_of
from limpet.cluster.kinds import GRANT, NETWORK
from limpet.cluster.kinds.grant import Grant, Role
from limpet.cluster.kinds.network import Network
from limpet.controller.communities.membership import communities_of
from limpet.controller.orchestrator.node_keeper.lifecycle import (
    awaits_replacement,
    how_to_replace,
)
from limpet.controller.orchestrator.node_keeper.segments import (
    Taken,
    disown_resting,
    first_segments,
    give_back,
    more_segments,
)
from limpet.controller.registry.records import (
    TOKEN,
    NodeRecord,
    TokenRecord,
)
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.tables import Tables
from limpet.controller.state.tokens import (
    check_claim,
    check_communities,
    check_proof,
    holder_of,
)
from limpet.controller.state.vtep_macs import first_macs


@dataclass(frozen=True, slots=True)
class JoinedNode:
    uid: str
    sealed_grant: Sealed
    replaces: str
    """Uid of the dead machine whose segments it took; empty: of none."""
    is_new: bool = True
    """False: it was let in before, and asks for the answer again."""


@dataclass(frozen=True, slots=True)
class JoinTerms:
    """As what a node is let in that nobody knew."""

    roles: frozenset[Role] = frozenset({Role.EDGE})
    communities: tuple[str, ...] = ()
    """Into which it is put by name."""
    labels: Mapping[str, str] = field(default_factory=dict)


# What every operation needs


def live_grant(tables: Tables, uid: str) -> Grant:
    """Raises: RefusedError for a node that was removed, or that nobody knows."""
    grant = tables.grants.get(uid)
    if grant is None:
        raise RefusedError(Code.UNKNOWN_NODE, f"node {uid} is not known here: say hello, or join")
    if grant.tombstone:
        raise RefusedError(
            Code.REMOVED,
            f"node {grant.name} ({uid}) was removed at revision {grant.revision}; to come back it "
            "needs a new key and a new token (limpet token create)",
            document=tables.nodes[uid].sealed,
            roots=tables.first_documents,
        )
    return grant


def change_grant(tables: Tables, grant: Grant, **changes: object) -> Sealed:
    """The next generation of it, signed anew."""
    following = replace(
        grant,
        generation=grant.generation + 1,
        revision=tables.next_revision(),
        **changes,  # type: ignore[arg-type]
    )
    return tables.sign(GRANT, following)


# Nodes come


def join(tables: Tables, request: JoinRequest, ca_digest: bytes, now_s: float) -> JoinedNode:
    """Lets a node in, once for a token; asked again by the same node, gives the same answer.

    A machine that never confirmed its answer loses its place to the next one of its name: of what
    it was answered nothing may be on its disk, and its key may be lost.
    """
    uid = check_claim(tables, request, ca_digest, now_s)
    token_id = parse_token(request.token).id
    token = tables.tokens[token_id]
    is_spent = token.used_by and token.held_since_s is None
    if token.used_by != uid and not is_spent:
        tables.put(TOKEN, token_id, replace_fields(token, used_by=uid, held_since_s=now_s))
    joined = _known(tables, request, uid, now_s)
    if joined is None:
        joined = _join_by_token(tables, request, token, now_s)
    if joined.is_new:
        tables.put_node(uid, joined_by=token_id)
    return joined


def _join_by_token(
    tables: Tables, request: JoinRequest, token: TokenRecord, now_s: float
) -> JoinedNode:
    """`token`: as it was before. Raises: RefusedError."""
    uid, token_id = uid_of(request.public_key), parse_token(request.token).id
    # Also where the token names this machine already: a writer was stopped before the grant.
    if former := holder_of(tables, token_id, token):
        return _take_over(tables, former.uid, request, uid, now_s)
    _check_name(tables, request.name)
    check_communities(tables, request.name, token)
    roles = frozenset(map(Role, token.roles))
    return _let_in(tables, request, JoinTerms(roles, token.communities, token.labels), now_s)


def join_by_account(tables: Tables, request: JoinRequest, now_s: float) -> JoinedNode:
    """Lets in the node of a name that its pod's account has proven.

    A machine of that name that is known stays what it is: only a person says that another one
    takes its place. Raises: RefusedError.
    """
    uid = check_proof(request)
    known = tables.grants.get(uid)
    if known is not None and not known.tombstone and known.name != request.name:
        raise RefusedError(
            Code.NOT_YOURS,
            f"join {request.name}: this machine's key is that of node {known.name} (was its Node "
            f"given another name, or its disk copied from there? As another machine: stop the "
            f"agent, remove its folder cluster in /var/lib/limpet, start it; if {known.name} is "
            f"gone for good: limpet node remove {known.name})",
        )
    if (found := _known(tables, request, uid, now_s)) is not None:
        return found
    others = [each for each in tables.uids_of(request.name) if not tables.grants[each].is_flannel]
    if others:
        raise RefusedError(
            Code.NOT_YOURS,
            f"join {request.name}: another machine is the node {request.name} here (uid "
            f"{', '.join(others)}), and this one has a key of its own (new hardware, or its disk "
            "was emptied? An administrator lets it take that one's place, with the addresses of "
            f"its pods: {how_to_replace(request.name, others[0])})",
        )
    return _let_in(tables, request, JoinTerms(), now_s)


def _known(tables: Tables, request: JoinRequest, uid: str, now_s: float) -> JoinedNode | None:
    """A node that is in already gets the same answer, one that is awaited takes its place.

    None: it is neither. Raises: RefusedError for one that was removed.
    """
    if uid in tables.grants:
        live_grant(tables, uid)
        return JoinedNode(uid, tables.nodes[uid].sealed, _replaced_by(tables, uid), is_new=False)
    dead = [each for each in tables.uids_of(request.name) if awaits_replacement(tables, each)]
    return _take_over(tables, dead[0], request, uid, now_s) if dead else None


def _let_in(tables: Tables, request: JoinRequest, admission: JoinTerms, now_s: float) -> JoinedNode:
    """With a segment of each family, unless it has to wait for them. Raises: RefusedError."""
    uid, name = uid_of(request.public_key), request.name
    if is_uid(name) and name != uid:
        raise RefusedError(
            Code.BAD_REQUEST,
            f"join {name}: it is a uid, and whoever names that one would name this node too (join "
            "under another name: limpet join --name NAME)",
        )
    taken = _from_flannel(tables, name, uid)
    give_back(tables, [uid])
    disown_resting(tables, uid)
    taken += first_segments(tables, name, uid, [prefix for prefix, _ in taken], now_s)
    grant = Grant(
        uid=uid,
        name=name,
        public_key=request.public_key,
        generation=1,
        revision=tables.next_revision(),
        segments=tuple(prefix for prefix, _ in taken),
        communities=communities_of(tables, uid, name, admission.communities, admission.labels),
        roles=admission.roles,
        labels=admission.labels,
        supersedes=_superseding((), (before for _, before in taken)),
    )
    return JoinedNode(uid, _put_first(tables, grant, admission.communities, now_s), "")


def _from_flannel(tables: Tables, name: str, uid: str) -> list[Taken]:
    """The segments of the node of that name that flannel runs, and its uid: that one is no more,
    since Limpet runs it from now on."""
    taken = []
    for former in (tables.grants[each] for each in tables.uids_of(name)):
        if former.is_flannel:
            for prefix in former.segments:
                tables.hold(prefix, uid)
                taken.append((prefix, former.uid))
            bury(tables, former)
    return taken


def _check_name(tables: Tables, name: str) -> None:
    """Raises: RefusedError for the name of a Node in Kubernetes: that is one machine."""
    for uid in tables.uids_of(name):
        if tables.nodes[uid].node_uid:
            raise RefusedError(
                Code.NOT_YOURS,
                f"join {name}: another machine is the Node {name} (uid {uid}); for this one to "
                f"take its place, with the addresses of its pods: {how_to_replace(name, uid)}; to "
                f"begin with none of them: limpet node remove {uid}",
            )


def _take_over(
    tables: Tables, dead_uid: str, request: JoinRequest, uid: str, now_s: float
) -> JoinedNode:
    dead, record = tables.grants[dead_uid], tables.nodes[dead_uid]
    # Also what is held for it and not in its grant: a writer was stopped between the two.
    held = [each.prefix for each in tables.space.holdings.values() if each.uid == dead_uid]
    for prefix in dict.fromkeys((*dead.segments, *held)):
        tables.hold(prefix, uid)
    bury(tables, dead, replaced_by=uid)
    grant = replace(
        dead,
        uid=uid,
        public_key=request.public_key,
        generation=1,
        revision=tables.next_revision(),
        supersedes=_superseding(dead.supersedes, (dead_uid,)),
    )
    first = _put_first(tables, grant, record.communities, now_s, record.node_labels)
    return JoinedNode(uid, first, dead_uid)


def finish_replacements(tables: Tables) -> int:
    """Buries those whose place another machine has: a writer was stopped behind the grant of that
    one. Returns how many."""
    dead = [
        (former, grant.uid)
        for grant in tables.grants.values()
        if not grant.tombstone
        for each in grant.supersedes
        if (former := tables.grants.get(each)) is not None and _has_place(tables, grant, former)
    ]
    for former, uid in dead:
        bury(tables, former, replaced_by=uid)
    return len(dead)


def _has_place(tables: Tables, grant: Grant, former: Grant) -> bool:
    if former.tombstone or former.name != grant.name or former.is_flannel:
        return False
    held = {each.prefix for each in tables.space.holdings.values() if each.uid == grant.uid}
    if not former.segments:
        return awaits_replacement(tables, former.uid)
    return held.issuperset(former.segments)


def bury(
    tables: Tables, grant: Grant, *, replaced_by: str = "", record: NodeRecord | None = None
) -> None:
    """`record`: for one that nobody knows here."""
    tombstone = Grant(
        uid=grant.uid,
        name=grant.name,
        public_key=grant.public_key,
        generation=grant.generation + 1,
        revision=tables.next_revision(),
        tombstone=True,
    )
    tables.sign(
        GRANT,
        tombstone,
        record,
        awaits_replacement=False,
        replaced_by=replaced_by,
        communities=(),
        node_gone_at_s=None,
    )


def _put_first(
    tables: Tables,
    grant: Grant,
    named: tuple[str, ...],
    now_s: float,
    node_labels: tuple[str, ...] = (),
) -> Sealed:
    """`named`: communities that it is put into by name. `node_labels`: keys of those of its labels
    that are its Node's."""
    unsigned, epoch = Sealed(GRANT.name, b"", b""), tables.state.epoch
    node = tables.source.nodes.objects.get(grant.name)
    record = NodeRecord(
        unsigned,
        now_s,
        reported_epoch=epoch,
        communities=named,
        node_labels=node_labels,
        node_uid=node.uid if node is not None else "",
    )
    return tables.sign(GRANT, replace(grant, vtep_macs=first_macs(tables, grant)), record)


def _replaced_by(tables: Tables, uid: str) -> str:
    """The uid that this node has replaced, or nothing."""
    for former in tables.grants[uid].supersedes:
        record = tables.nodes.get(former)
        if record is not None and record.replaced_by == uid:
            return former
    return ""


def _superseding(known: Sequence[str], more: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*known, *(uid for uid in more if uid)]))


# Segments


def request_segments(
    tables: Tables, uid: str, generation: int, versions: Sequence[int], now_s: float
) -> Sealed:
    """The node's grant with one more segment of each version.

    A node that does not have its newest grant yet gets that: it asks again if it needs more.
    """
    grant = live_grant(tables, uid)
    if tables.nodes[uid].reported_epoch < tables.state.epoch:
        raise RefusedError(
            Code.SAY_HELLO,
            f"grant segments to {grant.name}: the controller was restored and must see the grant "
            "that the node has before it makes the next",
        )
    if generation < grant.generation:
        return tables.nodes[uid].sealed
    wanted = sorted(set(versions))
    for version in wanted:
        _check_quota(tables, grant, version)
    taken = more_segments(tables, grant, wanted, now_s)
    if not taken:
        raise RefusedError(Code.BAD_REQUEST, f"grant segments to {grant.name}: of no IP version")
    return add_segments(tables, grant, taken)


def add_segments(tables: Tables, grant: Grant, taken: Sequence[Taken]) -> Sealed:
    """The node's grant with these, too."""
    return change_grant(
        tables,
        grant,
        segments=(*grant.segments, *(prefix for prefix, _ in taken)),
        supersedes=_superseding(grant.supersedes, (before for _, before in taken)),
    )


def _check_quota(tables: Tables, grant: Grant, version: int) -> None:
    if version not in tables.space.versions:
        raise RefusedError(
            Code.BAD_REQUEST,
            f"grant an IPv{version} segment to {grant.name}: "
            f"the cluster has no pod CIDR of IPv{version}",
        )
    held = sum(1 for prefix in grant.segments if prefix.version == version)
    quota = tables.network.segment_quota
    if held >= quota:
        raise RefusedError(
            Code.QUOTA,
            f"grant an IPv{version} segment to {grant.name}: it holds {held}, and the quota of a "
            f"node is {quota} (segment_quota in the controller's configuration)",
        )


# What holds for all


def put_network(tables: Tables, network: Network) -> None:
    """The next generation of what holds for all."""
    network = replace(
        network, generation=tables.network.generation + 1, revision=tables.next_revision()
    )
    tables.sign(NETWORK, network)
