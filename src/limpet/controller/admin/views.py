"""What the commands show, as JSON: nodes, presences, segments, the network."""

from __future__ import annotations

import base64
import time
from typing import Any

import msgspec

from limpet.base.addresses import Prefix
from limpet.cluster.keys import key_name
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import Network
from limpet.cluster.kinds.presence import Presence
from limpet.controller.communities.communities import find_community, is_named, members_of
from limpet.controller.communities.membership import chooses
from limpet.controller.orchestrator.node_keeper.lifecycle import awaits_replacement
from limpet.controller.picture.reported import NodePaths
from limpet.controller.registry.tables import Tables
from limpet.controller.state.problems import problems_of

_OF_A_GRANT = (
    *("name", "uid", "communities", "labels", "segments", "prefixes_behind"),
    *("generation", "revision"),
)


def node_document(
    tables: Tables,
    grant: Grant,
    reported_at_s: float | None,
    paths: NodePaths | None,
) -> dict[str, Any]:
    """`paths`: what the node has told of its ways, and of what it relays."""
    relaying = paths.node.relay if paths is not None else None
    presence = tables.presences.get(grant.uid)
    record = tables.nodes[grant.uid]
    state = "removed" if grant.tombstone else "granted"
    if record.node_gone_at_s is not None:
        state = "node deleted"
    if not grant.tombstone and awaits_replacement(tables, grant.uid):
        state = "awaits replacement"
    if presence is not None and presence.cloned_at_s is not None:
        state = "cloned"
    said = _builtins(grant)
    return {
        **{key: said[key] for key in _OF_A_GRANT},
        "roles": sorted(said["roles"]),
        "state": state,
        "problems": problems_of(tables, grant, time.time()),
        "joined_at_s": record.joined_at_s,
        "presence_at_s": presence.at_s if presence else None,
        "presence_sequence": presence.sequence if presence else None,
        "reported_at_s": reported_at_s,
        "replaced_by": record.replaced_by,
        "relay": relaying,
        **_node_object(tables, grant),
    }


def _node_object(tables: Tables, grant: Grant) -> dict[str, Any]:
    """What is known of its Node in Kubernetes."""
    record = tables.nodes[grant.uid]
    found = None if grant.tombstone else tables.source.nodes.objects.get(grant.name)
    cidrs = found.pod_cidrs if found is not None else ()
    return {
        "node_uid": record.node_uid,
        "node_deleted_at_s": record.node_gone_at_s,
        "node_pod_cidrs": list(map(str, cidrs)),
        "node_pod_cidrs_used": [str(each) for each in cidrs if each in grant.segments],
    }


def presence_document(presence: Presence) -> dict[str, Any]:
    return {
        **_builtins(presence),
        "endpoints": [f"[{at}]:{port}" for at, port in presence.endpoints],
        "vtep_macs": {f"ipv{version}": mac for version, mac in presence.vtep_macs.items()},
    }


def segment_document(tables: Tables, prefix: Prefix) -> dict[str, Any]:
    holding = tables.space.holdings[prefix]
    grant = tables.grants.get(holding.uid)
    if not holding.uid:
        state = "unknown"
    else:
        state = "held" if holding.resting_since_s is None else "resting"
    return {
        "segment": str(prefix),
        "state": state,
        "node": grant.name if grant else "",
        "uid": holding.uid,
        "resting_since_s": holding.resting_since_s,
    }


def community_document(tables: Tables, name: str) -> dict[str, Any]:
    """Raises: RefusedError."""
    record = find_community(tables, name)
    nodes = [
        {
            "name": grant.name,
            "uid": grant.uid,
            "roles": sorted(role.value for role in grant.roles),
            "by_name": is_named(tables, name, grant) or grant.name in record.members,
            "by_selector": chooses(record, grant.labels),
        }
        for grant in members_of(tables, name)
    ]
    backend = tables.network.community_backends.get(name)
    return {
        "name": name,
        "selector": record.selector,
        "tunnel_backend": None if backend is None else backend.value,
        "nodes": nodes,
    }


def network_document(network: Network) -> dict[str, Any]:
    return {
        **_builtins(network),
        "segment_lengths": {f"ipv{v}": length for v, length in network.segment_lengths.items()},
        "key": key_name(network.keys[-1].public_key) if network.keys else "",
        "keys": [base64.b64encode(key.public_key).decode() for key in network.keys],
    }


def _builtins(value: Grant | Presence | Network) -> dict[str, Any]:
    """Its fields as JSON has them: addresses and prefixes as text, bytes in base64."""
    document: dict[str, Any] = msgspec.to_builtins(value, enc_hook=str)
    return document
