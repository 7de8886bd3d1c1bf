"""What a person does to communities: operations on the tables, as those of grants.py.

Only grants that change are signed anew, each at the next generation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from msgspec.structs import replace as replace_fields

from limpet.cluster.api import Code, name_problem
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import TunnelBackend
from limpet.controller.communities.membership import chooses, communities_of
from limpet.controller.communities.selectors import parse_selector
from limpet.controller.state.grants import change_grant, put_network
from limpet.controller.state.nodes import find_node
from limpet.controller.state.records import COMMUNITY, CommunityRecord
from limpet.controller.state.refusal import RefusedError
from limpet.controller.state.tables import Tables


def find_community(tables: Tables, name: str) -> CommunityRecord:
    """Raises: RefusedError."""
    record = tables.communities.get(name)
    if record is None:
        there = ", ".join(sorted(tables.communities)) or "none"
        raise RefusedError(
            Code.NOT_FOUND,
            f"community {name[:80]!r}: there is none of that name (there are: {there}; make one: "
            "limpet community create NAME)",
        )
    return record


def members_of(tables: Tables, name: str) -> list[Grant]:
    """Nodes whose grants say so, by name. Raises: RefusedError."""
    find_community(tables, name)
    return sorted(
        (grant for grant in tables.grants.values() if name in grant.communities),
        key=lambda grant: (grant.name, grant.uid),
    )


def is_named(tables: Tables, name: str, grant: Grant) -> bool:
    """Whether the node was put into the community by name."""
    return name in tables.nodes[grant.uid].communities


def create(
    tables: Tables,
    name: str,
    nodes: Sequence[str],
    selector: str | None,
    *,
    backend: TunnelBackend | None = None,
) -> int:
    """How many nodes it changed. `selector` None: it chooses nobody by labels.

    `backend`: of the tunnels between its nodes; None: the network's.

    Raises: RefusedError, SelectorError.
    """
    if problem := name_problem(name):
        raise RefusedError(Code.BAD_REQUEST, f"create community {name[:80]!r}: {problem}")
    if name in tables.communities:
        raise RefusedError(
            Code.BAD_REQUEST,
            f"create community {name}: there is one (put nodes into it: limpet community add "
            f"{name} NODE)",
        )
    tables.put(COMMUNITY, name, CommunityRecord())
    return add(tables, name, nodes, selector, backend=backend)


def add(
    tables: Tables,
    name: str,
    nodes: Sequence[str],
    selector: str | None,
    *,
    backend: TunnelBackend | None = None,
) -> int:
    """How many nodes it changed. `selector`: in place of the one that it has; None: that stays.

    `backend`: of the tunnels between its nodes from now on; None: as it is.

    Raises: RefusedError, SelectorError.
    """
    record = find_community(tables, name)
    if selector is not None:
        text = str(parse_selector(selector))
        tables.put(COMMUNITY, name, replace_fields(record, selector=text))
    for grant in _all_of(tables, nodes):
        named = tables.nodes[grant.uid].communities
        if name not in named:
            _name(tables, grant, (*named, name))
    if backend is not None:
        _set_backend(tables, name, backend)
    return _settle(tables, name)


def take_out(
    tables: Tables, name: str, nodes: Sequence[str], *, selector: bool, backend: bool = False
) -> int:
    """How many nodes it changed. `selector`: nobody is chosen by labels any more.

    `backend`: the tunnels between its nodes are the network's again.

    Raises: RefusedError, also for a node that is not in it or would be in it all the same.
    """
    record = find_community(tables, name)
    if selector:
        record = replace_fields(record, selector="")
        tables.put(COMMUNITY, name, record)
    for grant in _all_of(tables, nodes):
        if name not in grant.communities:
            raise RefusedError(
                Code.BAD_REQUEST,
                f"take node {grant.name} out of community {name}: it is not in it "
                f"(limpet community show {name} tells who is)",
            )
        if chooses(record, grant.labels):
            raise RefusedError(
                Code.BAD_REQUEST,
                f"take node {grant.name} out of community {name}: it is chosen by its labels, as "
                f"{record.selector} says (change them: limpet node label {grant.name} KEY-, or "
                f"the selector: limpet community add {name} --selector SELECTOR)",
            )
        named = tables.nodes[grant.uid].communities
        _name(tables, grant, tuple(each for each in named if each != name))
    if backend:
        _set_backend(tables, name, None)
    return _settle(tables, name)


def dissolve(tables: Tables, name: str) -> int:
    """The community is gone. Returns how many nodes were in it. Raises: RefusedError."""
    find_community(tables, name)
    for uid, record in list(tables.nodes.items()):
        if name in record.communities:
            left = tuple(each for each in record.communities if each != name)
            _name(tables, tables.grants[uid], left)
    _set_backend(tables, name, None)
    tables.put(COMMUNITY, name, None)
    return _settle(tables, name)


def _set_backend(tables: Tables, name: str, backend: TunnelBackend | None) -> None:
    """None: that of the network."""
    backends = {key: each for key, each in tables.network.community_backends.items() if key != name}
    if backend is not None:
        backends[name] = backend
    if backends != tables.network.community_backends:
        put_network(tables, replace(tables.network, community_backends=backends))


def _all_of(tables: Tables, nodes: Iterable[str]) -> list[Grant]:
    """Each once. Raises: RefusedError."""
    return list(
        {grant.uid: grant for grant in (find_node(tables, each) for each in nodes)}.values()
    )


def _name(tables: Tables, grant: Grant, named: tuple[str, ...]) -> None:
    tables.put_node(grant.uid, communities=named)


def _settle(tables: Tables, name: str) -> int:
    """Makes the grants say who is in the community. Returns how many changed."""
    record = tables.communities.get(name)
    changed = 0
    for grant in [each for each in tables.grants.values() if not each.tombstone]:
        is_in = record is not None and (
            is_named(tables, name, grant) or chooses(record, grant.labels)
        )
        if is_in is not (name in grant.communities):
            named = tables.nodes[grant.uid].communities
            communities = communities_of(tables, grant.name, named, grant.labels)
            change_grant(tables, grant, communities=communities)
            changed += 1
    return changed
