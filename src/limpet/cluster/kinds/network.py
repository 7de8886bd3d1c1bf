"""What holds for all of a cluster; signed by the cluster key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from limpet.base.addresses import Address, Prefix
from limpet.base.bounds.signers import MAX_VERSION
from limpet.cluster.documents import Head, Kind, Lookup
from limpet.cluster.keys import ClusterKey, has_word_of, is_chain
from limpet.cluster.kinds.fields import (
    by_version,
    bytes_of,
    known_fields,
    one_word,
    prefixes,
    whole,
)


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
    """Revision of the whole cluster when this was made; grants count on the same scale."""
    keys: tuple[ClusterKey, ...]
    """All that the cluster has signed with, oldest first; the last one signs now. The others are
    revoked: a node that knows this network takes nothing new that one of them has signed."""
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
    """Backend of the tunnels between nodes that share no community with another one."""
    community_backends: Mapping[str, TunnelBackend] = field(default_factory=dict)
    """Backend of the tunnels between a community's nodes, by community, where not the network's."""
    services: ServicesMode = ServicesMode.OFF
    rotated_at: tuple[int, ...] = ()
    """Revision from which on each of the keys but the first signs."""

    def holds(self, address: Address) -> bool:
        """Whether it is of a pod or a Service: no node of the underlay is found there."""
        return any(
            address.version == each.version and address in each
            for each in (*self.pod_cidrs, *self.service_cidrs)
        )

    def is_of_pods(self, address: Address) -> bool:
        """Whether it lies in a pod CIDR."""
        return any(address in each for each in self.pod_cidrs)


NAME = "network"
"""Name of the kind, and of its one document."""


def _parse(found: dict[str, Any]) -> Network:
    return Network(
        **{
            **known_fields(Network, found),
            "keys": tuple(
                ClusterKey(bytes_of(key["public_key"]), bytes_of(key["endorsement"]))
                for key in found["keys"]
            ),
            "rotated_at": tuple(
                whole(each, MAX_VERSION.most) for each in found.get("rotated_at", ())
            ),
            "pod_cidrs": prefixes(found["pod_cidrs"]),
            "segment_lengths": by_version(found["segment_lengths"]),
            "service_cidrs": prefixes(found["service_cidrs"]),
            "default_community": one_word(
                DefaultCommunity, found["default_community"], else_=DefaultCommunity.NONE
            ),
            "encryption": one_word(Encryption, found["encryption"], else_=Encryption.ALL),
            "tunnel_backend": one_word(
                TunnelBackend, found["tunnel_backend"], else_=TunnelBackend.WIREGUARD
            ),
            "community_backends": {
                name: one_word(TunnelBackend, each, else_=TunnelBackend.WIREGUARD)
                for name, each in found["community_backends"].items()
            },
            "services": one_word(
                ServicesMode,
                found.get("services", ServicesMode.OFF.value),
                else_=ServicesMode.AUTO,
            ),
        }
    )


def _signers(network: Network, known: Lookup) -> tuple[bytes, ...]:
    """What this node holds says whose word counts, not what comes in."""
    ours, theirs = signing_keys(known), _public_keys(network)
    shared = min(len(ours), len(theirs))
    if not shared or ours[:shared] != theirs[:shared] or not is_chain(network.keys):
        return ()
    return (theirs[-1],)


def _revoked(network: Network, known: Lookup) -> tuple[bytes, ...]:
    """Also the last key of another row, with another successor of a key that is revoked here: a
    thief has made it, or the one that this node has taken. The word for that successor says so;
    what comes behind it in the row is not looked at, since whoever has the key makes long ones."""
    ours, theirs = signing_keys(known), _public_keys(network)
    pairs = enumerate(zip(ours, theirs, strict=False))
    parts_at = next((at for at, (one, other) in pairs if one != other), 0)
    is_other = parts_at > 0 and has_word_of(ours[parts_at - 1], network.keys[parts_at])
    return (*revoked_keys(network, known), *(theirs[-1:] if is_other else ()))


def _public_keys(network: Network) -> tuple[bytes, ...]:
    return tuple(key.public_key for key in network.keys)


NETWORK = Kind(
    NAME,
    _parse,
    signers=_signers,
    revoked=_revoked,
    head=lambda network: Head(NAME, network.generation, era=max(0, len(network.keys) - 1)),
    root=True,
    unsaid={"services": ServicesMode.OFF.value, "rotated_at": ()},
)


def signing_keys(known: Lookup) -> tuple[bytes, ...]:
    """All that the cluster has signed with, oldest first, as far as it is known here."""
    network: Network | None = known.value(NAME, NAME)
    return _public_keys(network) if network is not None else (known.pinned,)


def cluster_keys(value: object, known: Lookup) -> tuple[bytes, ...]:
    """The key that signs now: who signs what comes from the controller. Raises: ValueError."""
    keys = signing_keys(known)
    if (era := getattr(value, "era", 0)) >= len(keys):
        raise ValueError(
            f"the cluster's key {era} is not known here, only those before {len(keys)}"
        )
    return keys[-1:]


def revoked_keys(value: object, known: Lookup) -> tuple[bytes, ...]:
    """Those that were not the cluster's any more when this was signed. What is of before then may
    come from anybody who has not heard of the rotation: it does not count, and accuses nobody."""
    network: Network | None = known.value(NAME, NAME)
    revision = getattr(value, "revision", 0)
    if network is None:
        return ()
    return tuple(
        key.public_key
        for key, until in zip(network.keys, network.rotated_at, strict=False)
        if until <= revision
    )
