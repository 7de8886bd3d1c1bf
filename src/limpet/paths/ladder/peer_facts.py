"""What decides which ways to a peer may be proven, of all that is known of it and of us. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from limpet.base.addresses import Endpoint, UnderlayLink
from limpet.cluster.kinds.network import Encryption
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.nodes import NodeEntry
from limpet.cluster.topology.paths import RelayEnd
from limpet.cluster.topology.transports import devices_of
from limpet.cluster.topology.view import View
from limpet.paths.ladder.candidates import Facts, tunnel_endpoints, usable

T = TypeVar("T")


class Same(Protocol):
    def __call__(self, value: T, /) -> T: ...


@dataclass(frozen=True, slots=True)
class Learnt:
    """What a peer's presence does not say."""

    heard: Endpoint | None = None
    """That it wrote from, when its presence did not name the address."""
    tunnel_heard: tuple[Endpoint, ...] = ()
    """The same of its tunnel, the newest first."""
    relay_ends: tuple[RelayEnd, ...] = ()


def peer_facts(
    view: View,
    entry: NodeEntry,
    own: Presence | None,
    learnt: Learnt,
    links: tuple[UnderlayLink, ...],
    *,
    port: int,
    ipv6_last: bool,
    same: Same,
) -> Facts:
    """`port`: of a peer that tells none. `ipv6_last`: of our tunnel (`candidates.nearness`).

    `same`: the object that is kept for equal values.
    """
    presence, network = entry.presence, view.network
    devices = devices_of(own) if own is not None else frozenset()
    theirs = {prefix.version for prefix in view.segments.get(entry.grant.uid, ())}
    addresses = usable(presence.addresses) if presence is not None else ()
    endpoints: tuple[Endpoint, ...] = ()
    tunnel = bool(own and own.tunnel_port and presence and presence.tunnel_port)
    if tunnel and presence is not None:
        cidrs = network.pod_cidrs if network is not None else ()
        endpoints = tunnel_endpoints(
            presence, learnt.tunnel_heard, links, overlay=cidrs, ipv6_last=ipv6_last
        )
    return Facts(
        addresses,
        (presence.port if presence is not None else 0) or port,
        learnt.heard if learnt.heard is not None and learnt.heard[0] not in addresses else None,
        same(tuple(each for each in view.sources if each in theirs)),
        devices if presence is None else same(devices & devices_of(presence)),
        clear=network is None or network.encryption is not Encryption.ALL,
        tunnel=tunnel,
        endpoints=endpoints,
        relay_ends=learnt.relay_ends,
        ipv6_last=ipv6_last,
    )


def own_facts(view: View) -> tuple[object, ...]:
    """What of this node decides what can be proven with any peer."""
    own, network = view.snapshot.nodes.get(view.uid), view.network
    presence = own.presence if own is not None else None
    return (
        view.grant,
        (network.default_community, network.encryption, network.pod_cidrs) if network else None,
        view.sources,
        (devices_of(presence), presence.tunnel_port) if presence is not None else None,
    )
