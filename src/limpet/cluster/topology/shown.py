"""What documents say of the cluster, as a picture shows it at nodes and controller. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from limpet.base.addresses import Prefix, endpoint_text
from limpet.cluster.keys import key_name
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import Network as NetworkDocument
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.nodes import NodeEntry
from limpet.cluster.topology.sites import By
from limpet.cluster.topology.sites import Site as Place
from limpet.picture.nodes import Machine, Segment, Site
from limpet.picture.picture import Community, Network


def network_of(network: NetworkDocument | None) -> Network:
    if network is None:
        return Network()
    return Network(
        name=network.cluster,
        pod_cidrs=tuple(map(str, network.pod_cidrs)),
        service_cidrs=tuple(map(str, network.service_cidrs)),
        default_community=network.default_community.value,
        encryption=network.encryption.value,
        backend=network.tunnel_backend.value,
        key=key_name(network.keys[-1].public_key) if network.keys else "",
    )


def size_of(prefix: Prefix) -> int:
    """Addresses for pods: without network, gateway and broadcast; IPv6 has no broadcast."""
    return prefix.num_addresses - (3 if prefix.version == 4 else 2)


def segments_of(grant: Grant) -> tuple[Segment, ...]:
    """As everybody knows them: how full they are only the node itself does."""
    return tuple(Segment(prefix=str(each), size=size_of(each)) for each in grant.segments)


def machine_of(presence: Presence | None, **known: object) -> Machine:
    """As the node's presence says it, and what else is known."""
    if presence is None:
        return Machine(**known)  # type: ignore[arg-type]
    return Machine(
        addresses=tuple(map(str, presence.addresses)),
        endpoints=tuple(map(endpoint_text, presence.endpoints)),
        link_mtu_bytes=presence.link_mtu_bytes,
        **known,  # type: ignore[arg-type]
    )


def roles_of(grant: Grant) -> tuple[str, ...]:
    return tuple(sorted(role.value for role in grant.roles))


def site_values(sites: Mapping[str, Place], nat: Mapping[str, str]) -> tuple[Site, ...]:
    """Each once, by name. `nat`: kind of NAT in front of the nodes of which it is known, by uid."""
    seen: dict[str, set[str]] = defaultdict(set)
    by: dict[str, By] = {}
    for uid, place in sites.items():
        by[place.name] = place.by
        if uid in nat:
            seen[place.name].add(nat[uid])
    return tuple(
        Site(
            name=name, by=by[name].value, nat=next(iter(seen[name])) if len(seen[name]) == 1 else ""
        )
        for name in sorted(by)
    )


def communities_of(
    nodes: Mapping[str, NodeEntry], network: NetworkDocument | None
) -> tuple[Community, ...]:
    """As the grants say them, so they are known without a cloud."""
    members: dict[str, list[str]] = defaultdict(list)
    for uid, entry in nodes.items():
        for name in entry.grant.communities if not entry.grant.tombstone else ():
            members[name].append(uid)
    backends = network.community_backends if network is not None else {}
    return tuple(
        Community(
            name=name,
            members=tuple(sorted(members[name])),
            backend=backends[name].value if name in backends else "",
        )
        for name in sorted(members)
    )
