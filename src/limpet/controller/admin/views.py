"""What the commands show: nodes, presences, segments, the network."""

from __future__ import annotations

import base64
import time

from limpet.base.addresses import Prefix
from limpet.cluster.keys import key_name
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import Network
from limpet.cluster.kinds.presence import Presence
from limpet.controller.admin.answers import (
    CommunityShown,
    Member,
    NetworkChanged,
    NodeLine,
    PresenceShown,
    SegmentLine,
)
from limpet.controller.communities.communities import find_community, is_named, members_of
from limpet.controller.communities.membership import chooses, is_declared
from limpet.controller.orchestrator.node_keeper.lifecycle import awaits_replacement
from limpet.controller.picture.reported import NodePaths
from limpet.controller.registry.tables import Tables
from limpet.controller.state.problems import problems_of


def node_line(
    tables: Tables,
    grant: Grant,
    reported_at_s: float | None,
    paths: NodePaths | None,
) -> NodeLine:
    """`paths`: what the node has told of its ways, and of what it relays."""
    presence = tables.presences.get(grant.uid)
    record = tables.nodes[grant.uid]
    state = "removed" if grant.tombstone else "granted"
    if record.node_gone_at_s is not None:
        state = "node deleted"
    if not grant.tombstone and awaits_replacement(tables, grant.uid):
        state = "awaits replacement"
    if presence is not None and presence.cloned_at_s is not None:
        state = "cloned"
    # As its Node in Kubernetes has them.
    found = None if grant.tombstone else tables.source.nodes.objects.get(grant.name)
    cidrs = found.pod_cidrs if found is not None else ()
    return NodeLine(
        name=grant.name,
        uid=grant.uid,
        communities=list(grant.communities),
        labels=dict(grant.labels),
        roles=sorted(each.value for each in grant.roles),
        segments=list(map(str, grant.segments)),
        prefixes_behind=list(map(str, grant.prefixes_behind)),
        generation=grant.generation,
        revision=grant.revision,
        joined_at_s=record.joined_at_s,
        presence_at_s=presence.at_s if presence else None,
        presence_sequence=presence.sequence if presence else None,
        reported_at_s=reported_at_s,
        state=state,
        problems=problems_of(tables, grant, time.time()),
        replaced_by=record.replaced_by,
        relay=paths.node.relay if paths is not None else None,
        node_uid=record.node_uid,
        node_deleted_at_s=record.node_gone_at_s,
        node_pod_cidrs=list(map(str, cidrs)),
        node_pod_cidrs_used=[str(each) for each in cidrs if each in grant.segments],
    )


def presence_shown(presence: Presence) -> PresenceShown:
    return PresenceShown(
        uid=presence.uid,
        sequence=presence.sequence,
        boot_id=presence.boot_id,
        addresses=list(map(str, presence.addresses)),
        endpoints=[f"[{at}]:{port}" for at, port in presence.endpoints],
        port=presence.port,
        vtep_macs={f"ipv{version}": mac for version, mac in presence.vtep_macs.items()},
        tunnel_port=presence.tunnel_port,
        relay_tls_port=presence.relay_tls_port,
        link_mtu_bytes=presence.link_mtu_bytes,
        era=presence.era,
    )


def segment_line(tables: Tables, prefix: Prefix) -> SegmentLine:
    holding = tables.space.holdings[prefix]
    grant = tables.grants.get(holding.uid)
    if not holding.uid:
        state = "unknown"
    else:
        state = "held" if holding.resting_since_s is None else "resting"
    return SegmentLine(
        segment=str(prefix),
        state=state,
        node=grant.name if grant else "",
        uid=holding.uid,
        resting_since_s=holding.resting_since_s,
    )


def community_shown(tables: Tables, name: str) -> CommunityShown:
    """Raises: RefusedError."""
    record = find_community(tables, name)
    nodes = [
        Member(
            name=grant.name,
            uid=grant.uid,
            roles=sorted(role.value for role in grant.roles),
            by_name=is_named(tables, name, grant)
            or is_declared(tables, record, grant.uid, grant.name),
            by_selector=chooses(record, grant.labels),
        )
        for grant in members_of(tables, name)
    ]
    return CommunityShown(
        name=name,
        selector=record.selector,
        tunnel_backend=tables.network.community_backends.get(name),
        nodes=nodes,
    )


def network_shown(network: Network) -> NetworkChanged:
    return NetworkChanged(
        cluster=network.cluster,
        generation=network.generation,
        revision=network.revision,
        pod_cidrs=list(map(str, network.pod_cidrs)),
        segment_lengths={f"ipv{v}": length for v, length in network.segment_lengths.items()},
        service_cidrs=list(map(str, network.service_cidrs)),
        segment_quota=network.segment_quota,
        vxlan_id=network.vxlan_id,
        vxlan_port=network.vxlan_port,
        default_community=network.default_community,
        encryption=network.encryption,
        tunnel_backend=network.tunnel_backend,
        community_backends=dict(network.community_backends),
        services=network.services,
        rotated_at=list(network.rotated_at),
        key=key_name(network.keys[-1].public_key) if network.keys else "",
        keys=[base64.b64encode(key.public_key).decode() for key in network.keys],
    )
