"""Owners of VXLAN devices' MACs, as the cluster's record says: what a node brings along."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from limpet.cluster.api import Code
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.topology.vtep_mac import derived_vtep_mac
from limpet.controller.node_objects.lease import kept_macs
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.tables import Tables

_VERSIONS = (4, 6)


def owner_of(tables: Tables, macs: Mapping[int, str], uid: str) -> str:
    """Name of a node other than `uid` that one of the MACs, by IP version of the underlay, belongs
    to; empty: there is none. Costs a look at every node."""
    for grant in tables.grants.values():
        if grant.uid != uid and not grant.tombstone:
            for version, mac in _macs_of(tables, grant):
                if macs.get(version) == mac:
                    return grant.name
    return ""


def first_macs(tables: Tables, grant: Grant) -> dict[int, str]:
    """Those that a node which joins has from before: its Node's annotation says them, and they are
    no other node's. Raises: RefusedError for a key whose own MACs are another node's."""
    derived = {version: derived_vtep_mac(grant.uid, version) for version in _VERSIONS}
    if other := owner_of(tables, derived, grant.uid):
        raise RefusedError(
            Code.BAD_REQUEST,
            f"join {grant.name}: the MAC address that follows from its key is that of node {other} "
            "(make another key: limpet join --new-identity)",
        )
    node = tables.source.nodes.objects.get(grant.name)
    kept = kept_macs(node.flannel) if node is not None else {}
    return {} if owner_of(tables, kept, grant.uid) else kept


def _macs_of(tables: Tables, grant: Grant) -> Iterator[tuple[int, str]]:
    yield from grant.vtep_macs.items()
    if not grant.is_flannel:
        for version in _VERSIONS:
            yield version, derived_vtep_mac(grant.uid, version)
    elif (presence := tables.presence(grant.uid)) is not None:
        yield from presence.vtep_macs.items()
