"""The cluster's nodes as this one sees them: documents -> nodes, relays, communities. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from limpet.agent.status.relays import Relaying, RelayStatus
from limpet.base.addresses import Prefix, endpoint_text
from limpet.cluster.keys import key_name
from limpet.cluster.kinds.grant import Grant, Role
from limpet.cluster.kinds.network import Network as NetworkDocument
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.nodes import NodeEntry
from limpet.cluster.segments import SegmentUse
from limpet.cluster.topology.sites import By
from limpet.cluster.topology.sites import Site as Place
from limpet.picture.nodes import Machine, Node, NodeState, Relay, RelayLoad, Segment, Site
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


def own_segments(usage: Iterable[SegmentUse]) -> tuple[Segment, ...]:
    return tuple(
        Segment(
            prefix=str(each.prefix),
            size=each.size,
            free=each.size - each.live - each.bound,
            live=each.live,
            resting=each.resting,
            bound=each.bound,
        )
        for each in usage
    )


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


@dataclass(frozen=True, slots=True)
class PeerFacts:
    """What this node knows of another beside its documents."""

    state: NodeState = NodeState.UNKNOWN
    why: str = ""
    heard_at_s: float | None = None


def node_of(entry: NodeEntry, site: str, facts: PeerFacts) -> Node:
    """A peer of the node that looks."""
    grant = entry.grant
    return Node(
        uid=grant.uid,
        name=grant.name,
        site=site,
        roles=roles_of(grant),
        communities=tuple(sorted(grant.communities)),
        labels=dict(sorted(grant.labels.items())),
        state=facts.state,
        why=facts.why,
        segments=segments_of(grant),
        machine=machine_of(entry.presence, heard_at_s=facts.heard_at_s),
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


def relays_of(
    nodes: Mapping[str, NodeEntry],
    known: Iterable[RelayStatus],
    *,
    own: str,
    relaying: Relaying | None,
    tls_nodes: Collection[str] = (),
) -> tuple[Relay, ...]:
    """All of the cluster. `known`: those that this node uses, as it finds them. `relaying`: what it
    relays itself."""
    found = {each.uid: each for each in known}
    return tuple(
        _relay(
            nodes[uid],
            found.get(uid),
            _load(relaying, tls_nodes) if uid == own and relaying is not None else RelayLoad(),
            trouble=relaying.trouble if uid == own and relaying is not None else "",
        )
        for uid in sorted(nodes)
        if Role.RELAY in nodes[uid].grant.roles and not nodes[uid].grant.tombstone
    )


def _relay(entry: NodeEntry, known: RelayStatus | None, load: RelayLoad, *, trouble: str) -> Relay:
    presence = entry.presence
    endpoint = known.endpoint if known is not None else None
    named = presence.endpoints if presence is not None else ()
    tls = presence.relay_tls_port if presence is not None else 0
    return Relay(
        uid=entry.grant.uid,
        endpoint=endpoint or (endpoint_text(named[0]) if named else ""),
        tls=endpoint_text((named[0][0], tls)) if tls and named else "",
        answers=known.answers if known is not None else None,
        rtt_ms=known.rtt_ms if known is not None else None,
        trouble=trouble,
        load=load,
    )


def _load(relaying: Relaying, tls_nodes: Collection[str]) -> RelayLoad:
    return RelayLoad(pairs=len(relaying.pairs), connections=len(tls_nodes))
