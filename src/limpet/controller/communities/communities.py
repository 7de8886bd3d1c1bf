"""What a person does to communities: operations on the tables, as those of grants.py.

Only grants that change are signed anew, each at the next generation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from msgspec.structs import replace as replace_fields

from limpet.base.text.nearest import hint
from limpet.cluster.api import Code, name_problem
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import TunnelBackend
from limpet.controller.communities.membership import (
    chooses,
    communities_of,
    is_declared,
    names,
    takes_in,
)
from limpet.controller.communities.selectors import parse_selector
from limpet.controller.registry.records import COMMUNITY, CommunityRecord
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.tables import Tables, by_name
from limpet.controller.state.grants import change_grant, put_network
from limpet.controller.state.nodes import find_node


def find_community(tables: Tables, name: str) -> CommunityRecord:
    """Raises: RefusedError."""
    record = tables.communities.get(name)
    if record is None:
        there = ", ".join(sorted(tables.communities)) or "none"
        see = hint(name, sorted(tables.communities), f"there are: {there}; make one: ")
        raise RefusedError(
            Code.NOT_FOUND,
            f"community {name[:80]!r}: there is none of that name ({see}"
            "limpet community create NAME)",
        )
    return record


def members_of(tables: Tables, name: str) -> list[Grant]:
    """Nodes whose grants say so, by name. Raises: RefusedError."""
    find_community(tables, name)
    return by_name(grant for grant in tables.grants.values() if name in grant.communities)


def is_named(tables: Tables, name: str, grant: Grant) -> bool:
    """Whether the node was put into the community by name."""
    return name in tables.nodes[grant.uid].communities


def create(
    tables: Tables,
    community: str,
    nodes: Sequence[str] = (),
    selector: str | None = None,
    tunnel_backend: TunnelBackend | None = None,
) -> int:
    """How many nodes it changed. `selector` None: it chooses nobody by labels.

    `tunnel_backend`: of the tunnels between its nodes; None: the network's.

    Raises: RefusedError, SelectorError.
    """
    if problem := name_problem(community):
        raise RefusedError(Code.BAD_REQUEST, f"create community {community[:80]!r}: {problem}")
    if community in tables.communities:
        raise RefusedError(
            Code.BAD_REQUEST,
            f"create community {community}: there is one (put nodes into it: limpet community add "
            f"{community} NODE)",
        )
    tables.put(COMMUNITY, community, CommunityRecord())
    return add(tables, community, nodes, selector, tunnel_backend)


def add(
    tables: Tables,
    community: str,
    nodes: Sequence[str] = (),
    selector: str | None = None,
    tunnel_backend: TunnelBackend | None = None,
) -> int:
    """How many nodes it changed. `selector`: in place of the one that it has; None: that stays.

    `tunnel_backend`: of the tunnels between its nodes from now on; None: as it is.

    Raises: RefusedError, SelectorError.
    """
    record = find_community(tables, community)
    if selector is not None:
        text = str(parse_selector(selector))
        tables.put(COMMUNITY, community, replace_fields(record, selector=text))
    for grant in _all_of(tables, nodes):
        named = tables.nodes[grant.uid].communities
        if community not in named:
            tables.put_node(grant.uid, communities=(*named, community))
    if tunnel_backend is not None:
        _set_backend(tables, community, tunnel_backend)
    return _settle(tables, community)


def take_out(
    tables: Tables,
    community: str,
    nodes: Sequence[str] = (),
    *,
    selector: bool = False,
    tunnel_backend: bool = False,
) -> int:
    """How many nodes it changed. `selector`: nobody is chosen by labels any more.

    `tunnel_backend`: the tunnels between its nodes are the network's again.

    Raises: RefusedError, also for a node that is not in it or would be in it all the same.
    """
    record = find_community(tables, community)
    if selector:
        record = replace_fields(record, selector="")
        tables.put(COMMUNITY, community, record)
    for grant in _all_of(tables, nodes):
        if community not in grant.communities:
            raise RefusedError(
                Code.BAD_REQUEST,
                f"take node {grant.name} out of community {community}: it is not in it "
                f"(limpet community show {community} tells who is)",
            )
        if is_declared(tables, record, grant.uid, grant.name):
            raise RefusedError(
                Code.BAD_REQUEST,
                f"take node {grant.name} out of community {community}: its object in Kubernetes "
                f"names it (kubectl edit community {community}, spec.members)",
            )
        if names(tables, community, grant.labels):
            keys = " or ".join(tables.source.community_labels)
            raise RefusedError(
                Code.BAD_REQUEST,
                f"take node {grant.name} out of community {community}: a label of its Node says "
                f"so ({keys}; take it away: kubectl label node {grant.name} KEY-)",
            )
        if chooses(record, grant.labels):
            raise RefusedError(
                Code.BAD_REQUEST,
                f"take node {grant.name} out of community {community}: it is chosen by its labels, "
                f"as {record.selector} says (change them: limpet node label {grant.name} KEY-, or "
                f"the selector: limpet community add {community} --selector SELECTOR)",
            )
        named = tables.nodes[grant.uid].communities
        left = tuple(each for each in named if each != community)
        tables.put_node(grant.uid, communities=left)
    if tunnel_backend:
        _set_backend(tables, community, None)
    return _settle(tables, community)


def dissolve(tables: Tables, name: str) -> int:
    """The community is gone. Returns how many nodes were in it. Raises: RefusedError."""
    find_community(tables, name)
    for uid, record in list(tables.nodes.items()):
        if name in record.communities:
            left = tuple(each for each in record.communities if each != name)
            tables.put_node(uid, communities=left)
    _set_backend(tables, name, None)
    tables.put(COMMUNITY, name, None)
    return _settle(tables, name)


def declare(tables: Tables, name: str) -> int:
    """What somebody wrote into the store of a community, or that it is gone, is made so.

    Returns how many nodes it changed. Raises: RefusedError.
    """
    record = tables.communities.get(name)
    if record is None:
        for uid, node in list(tables.nodes.items()):
            if name in node.communities:
                left = tuple(each for each in node.communities if each != name)
                tables.put_node(uid, communities=left)
    _set_network_backend(tables, name, record.tunnel_backend if record is not None else None)
    return _settle(tables, name)


def _set_backend(tables: Tables, name: str, backend: TunnelBackend | None) -> None:
    """None: that of the network."""
    record = replace_fields(tables.communities[name], tunnel_backend=backend)
    tables.put(COMMUNITY, name, record)
    _set_network_backend(tables, name, backend)


def _set_network_backend(tables: Tables, name: str, backend: TunnelBackend | None) -> None:
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


def _settle(tables: Tables, name: str) -> int:
    """Makes the grants say who is in the community. Returns how many changed."""
    record = tables.communities.get(name)
    changed = 0
    for grant in [each for each in tables.grants.values() if not each.tombstone]:
        is_in = record is not None and (
            is_named(tables, name, grant)
            or takes_in(tables, name, grant.uid, grant.name, grant.labels)
        )
        if is_in is not (name in grant.communities):
            named = tables.nodes[grant.uid].communities
            communities = communities_of(tables, grant.uid, grant.name, named, grant.labels)
            change_grant(tables, grant, communities=communities)
            changed += 1
    return changed
