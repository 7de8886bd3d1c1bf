"""What a node says about itself; signed by its own key."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from limpet.base.addresses import Address, may_be_anothers
from limpet.base.bounds.members import (
    PRESENCE_ADDRESSES,
    PRESENCE_BODY,
    PRESENCE_BOOT_ID,
    PRESENCE_ENDPOINTS,
    SEQUENCE,
)
from limpet.cluster.documents import ByCluster, Head, Kind, Lookup
from limpet.cluster.kinds.fields import address, by_version, few, known_fields, whole, word
from limpet.cluster.kinds.grant import GRANT
from limpet.cluster.kinds.network import cluster_keys, revoked_keys


@dataclass(frozen=True, slots=True)
class Presence:
    """What a node says about itself; signed by the node's key, the higher sequence counts."""

    uid: str
    sequence: int
    boot_id: str
    """Boot id of its kernel: two at once under one uid are two machines."""
    addresses: tuple[Address, ...] = ()
    """Addresses of its links, where neighbours may reach it."""
    endpoints: tuple[tuple[Address, int], ...] = ()
    """Address and UDP port of its tunnel as seen from outside, or forwarded to it."""
    port: int = 0
    """UDP port of probes and of the neighbour exchange."""
    vtep_macs: Mapping[int, str] = field(default_factory=dict)
    """MAC of the VXLAN device by IP version of the underlay."""
    tunnel_port: int = 0
    """UDP port that its tunnel listens on; 0: it has no tunnel."""
    relay_tls_port: int = 0
    """TCP port where it relays packets in TLS connections; 0: it does not."""
    link_mtu_bytes: int = 1500
    era: int = 0
    """Number of the cluster's key that has signed it, where it is a node of flannel's."""


_MAX_PORT = (1 << 16) - 1
_MAX_MTU_BYTES = 1 << 16
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


def _parse(found: dict[str, Any]) -> Presence:
    return Presence(
        **{
            **known_fields(Presence, found),
            "sequence": whole(found["sequence"], SEQUENCE.most),
            "boot_id": _boot_id(found["boot_id"]),
            # Nobody is sent to where no other node can be: on each node that is another party.
            "addresses": tuple(
                filter(may_be_anothers, map(address, few(found["addresses"], PRESENCE_ADDRESSES)))
            ),
            "endpoints": tuple(
                (end, whole(port, _MAX_PORT))
                for at, port in few(found["endpoints"], PRESENCE_ENDPOINTS)
                if may_be_anothers(end := address(at))
            ),
            "port": whole(found["port"], _MAX_PORT),
            "vtep_macs": {
                version: _mac(mac) for version, mac in by_version(found["vtep_macs"]).items()
            },
            "tunnel_port": whole(found["tunnel_port"], _MAX_PORT),
            "relay_tls_port": whole(found["relay_tls_port"], _MAX_PORT),
            "link_mtu_bytes": whole(found["link_mtu_bytes"], _MAX_MTU_BYTES),
        }
    )


def _boot_id(value: object) -> str:
    found = word(value)
    if len(found) > PRESENCE_BOOT_ID.most:
        raise ValueError(f"{found[:80]!r} has more than {PRESENCE_BOOT_ID.most} characters")
    return found


def _mac(value: object) -> str:
    if not isinstance(value, str) or _MAC.fullmatch(value) is None:
        raise ValueError(f"{value!r} is no MAC address")
    return value


def node_key(presence: Presence, known: Lookup) -> tuple[bytes, ...]:
    """The key that the grant of the node names: who signs what a node says of itself. A node of
    flannel's signs nothing: the cluster says it."""
    grant = known.value(GRANT.name, presence.uid)
    if grant is not None and grant.is_flannel:
        return cluster_keys(presence, known)
    if presence.era:
        raise ValueError("a node signs with one key for ever")
    return (grant.public_key,) if grant is not None else ()


def _is_of_flannel(presence: Presence, known: Lookup) -> bool:
    grant = known.find((GRANT.name, presence.uid))
    return grant is not None and grant.value.is_flannel


def _renewed(presence: Presence, sequence: int, _revision: Callable[[], int]) -> Presence:
    return replace(presence, sequence=sequence)


PRESENCE = Kind(
    "presence",
    _parse,
    signers=node_key,
    head=lambda presence: Head(presence.uid, presence.sequence, era=presence.era),
    revoked=revoked_keys,
    by_cluster=ByCluster(_renewed, signs=_is_of_flannel, of_one_node=True),
    under=GRANT.name,
    most_bytes=PRESENCE_BODY.most,
    unsaid={"era": 0},
)
