"""What a person does to a node: operations on the tables, as those of grants.py."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec.structs import replace as replace_fields

from limpet.controller.grants import bury, change_grant, live_grant
from limpet.controller.membership import communities_of
from limpet.controller.records import SegmentRecord
from limpet.controller.refusal import RefusedError
from limpet.controller.tables import Tables
from limpet.model.cluster import Grant, Role
from limpet.wire.api import Code


def find_node(tables: Tables, name_or_uid: str) -> Grant:
    """A node that is not removed. Raises: RefusedError."""
    grant = tables.grants.get(name_or_uid)
    if grant is not None:
        return live_grant(tables, grant.uid)
    uids = tables.uids_of(name_or_uid)
    if not uids:
        raise RefusedError(
            Code.NOT_FOUND, f"node {name_or_uid}: there is none (limpet node list shows all)"
        )
    if len(uids) > 1:
        raise RefusedError(
            Code.BAD_REQUEST,
            f"node {name_or_uid}: several machines have this name; name the uid: {', '.join(uids)}",
        )
    return tables.grants[uids[0]]


def remove(tables: Tables, name_or_uid: str, now_s: float) -> Grant:
    """Revokes the node for ever; its segments rest. Returns its last grant."""
    grant = find_node(tables, name_or_uid)
    for prefix in grant.segments:
        tables.put_segment(prefix, SegmentRecord(grant.uid, now_s))
    bury(tables, grant)
    return grant


def await_replacement(tables: Tables, name_or_uid: str, *, wanted: bool) -> Grant:
    """The next that joins under the node's name takes its segments; or no longer so."""
    grant = find_node(tables, name_or_uid)
    record = replace_fields(tables.nodes[grant.uid], awaits_replacement=wanted)
    tables.put_node(record, grant)
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
        communities = communities_of(tables, grant.name, named, labels)
        change_grant(tables, grant, labels=labels, communities=communities)
    return labels


def set_roles(
    tables: Tables,
    name_or_uid: str,
    only: Collection[Role] | None,
    add: Collection[Role],
    drop: Collection[Role],
) -> frozenset[Role]:
    """All roles that the node has then. `only`: in place of those that it has; None: beside them.

    Raises: RefusedError, also where none would be left.
    """
    grant = find_node(tables, name_or_uid)
    base = grant.roles if only is None else frozenset(only)
    roles = (base | frozenset(add)) - frozenset(drop)
    if not roles:
        raise RefusedError(
            Code.BAD_REQUEST,
            f"set roles of {grant.name}: a node has at least one of "
            f"{', '.join(each.value for each in Role)} (add another before you take this away)",
        )
    if roles != grant.roles:
        change_grant(tables, grant, roles=roles)
    return roles
