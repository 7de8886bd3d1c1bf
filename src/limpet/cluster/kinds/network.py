"""What holds for all of a cluster; signed by the cluster key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import ip_network
from typing import Any

from limpet.base.addresses import Address, Prefix
from limpet.cluster.documents import Head, Kind, Lookup
from limpet.cluster.keys import ClusterKey, trusted_keys
from limpet.cluster.kinds.fields import by_version, bytes_of


class DefaultCommunity(Enum):
    """What a node that is in no community shares with the other nodes of the edge."""

    ALL = "all"
    """One flat network."""
    NONE = "none"
    """Nothing: it talks to the cloud only."""


class Encryption(Enum):
    """Which pod traffic between nodes is encrypted."""

    BETWEEN_SITES = "between-sites"
    """What leaves a site: inside one, plain routes and VXLAN are used."""
    ALL = "all"
    """All of it: peers are reached through tunnels only, neighbours too."""


class TunnelBackend(Enum):
    """What makes the tunnels between nodes."""

    WIREGUARD = "wireguard"
    IPSEC = "ipsec"
    """IKEv2, by strongSwan."""


class ServicesMode(Enum):
    """Which nodes serve Kubernetes' Services themselves, where their own settings do not say it."""

    OFF = "off"
    AUTO = "auto"
    """Those on which no kube-proxy is found."""
    ON = "on"
    """All of them: a kube-proxy that is there, too, finds nothing left to do."""


@dataclass(frozen=True, slots=True)
class Network:
    """What holds for all of a cluster; signed by the cluster key, the higher generation counts."""

    cluster: str
    """Name of the cluster, chosen once."""
    generation: int
    revision: int
    """Of the whole cluster, at the time that this was made; grants count on the same scale."""
    keys: tuple[ClusterKey, ...]
    """All that the cluster has signed with, oldest first; the last one signs now."""
    pod_cidrs: tuple[Prefix, ...]
    """One for each family at most; segments are cut out of them."""
    segment_lengths: Mapping[int, int] = field(default_factory=lambda: {4: 24, 6: 64})
    """Prefix length of a segment by IP version."""
    service_cidrs: tuple[Prefix, ...] = ()
    vxlan_id: int = 1
    vxlan_port: int = 8472
    default_community: DefaultCommunity = DefaultCommunity.ALL
    segment_quota: int = 8
    """Segments of one family that one node may have."""
    encryption: Encryption = Encryption.BETWEEN_SITES
    tunnel_backend: TunnelBackend = TunnelBackend.WIREGUARD
    """Of the tunnels between nodes that share no community with another one."""
    community_backends: Mapping[str, TunnelBackend] = field(default_factory=dict)
    """By community: of the tunnels between its nodes, where it is not that of the network."""
    services: ServicesMode = ServicesMode.OFF

    def holds(self, address: Address) -> bool:
        """Whether it is of a pod or a Service: no node of the underlay is found there."""
        return any(
            address.version == each.version and address in each
            for each in (*self.pod_cidrs, *self.service_cidrs)
        )


NAME = "network"
"""Of the one document of this kind, too."""


def _parse(found: dict[str, Any]) -> Network:
    return Network(
        **{
            **found,
            "keys": tuple(
                ClusterKey(bytes_of(key["public_key"]), bytes_of(key["endorsement"]))
                for key in found["keys"]
            ),
            "pod_cidrs": tuple(map(ip_network, found["pod_cidrs"])),
            "segment_lengths": by_version(found["segment_lengths"]),
            "service_cidrs": tuple(map(ip_network, found["service_cidrs"])),
            "default_community": DefaultCommunity(found["default_community"]),
            "encryption": Encryption(found["encryption"]),
            "tunnel_backend": TunnelBackend(found["tunnel_backend"]),
            "community_backends": {
                name: TunnelBackend(each) for name, each in found["community_backends"].items()
            },
            "services": ServicesMode(found.get("services", ServicesMode.OFF.value)),
        }
    )


NETWORK = Kind(
    NAME,
    _parse,
    signers=lambda network, known: trusted_keys(known.pinned, network.keys),
    head=lambda network: Head(NAME, network.generation),
    root=True,
    unsaid={"services": ServicesMode.OFF.value},
)


def cluster_keys(_value: object, known: Lookup) -> frozenset[bytes]:
    """All that the cluster has signed with: who signs what comes from the controller."""
    network: Network | None = known.value(NAME, NAME)
    return trusted_keys(known.pinned, network.keys if network else ())
