"""What a node holds in its kernel, as planned and as observed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from limpet.base.addresses import Address, InterfaceAddress, Prefix


@dataclass(frozen=True, slots=True)
class Bridge:
    """A bridge. `mac` pinned, since an unpinned one follows its lowest port."""

    ifname: str
    mac: str
    addresses: frozenset[InterfaceAddress]
    promisc: bool = False
    up: bool = True
    learns_link_local: bool = False
    """It takes a MAC for a port's by frames that pass no filter: one pod could have another's."""
    ours: bool = True
    """False: somebody else made it; then only the addresses and its being up are our business."""


@dataclass(frozen=True, slots=True)
class Port:
    """The host end of a pod's veth pair, a port of a bridge."""

    ifname: str
    bridge: str
    hairpin: bool = False
    isolated: bool = False
    up: bool = True


@dataclass(frozen=True, slots=True)
class Route:
    """A route of our routing table. `device` None: unreachable."""

    prefix: Prefix
    device: str | None
    metric: int
    source: Address | None = None


@dataclass(frozen=True, slots=True, order=True)
class Rule:
    """`from all lookup` our table, one for each IP version."""

    version: int


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What should be; as an observation, what is."""

    bridges: Mapping[str, Bridge] = field(default_factory=dict)
    ports: Mapping[str, Port] = field(default_factory=dict)
    routes: frozenset[Route] = frozenset()
    rules: frozenset[Rule] = frozenset()
    sysctls: Mapping[str, str] = field(default_factory=dict)
    """Values by path below /proc/sys."""
    ruleset: str = ""
    """Our nftables table in nft's syntax; as an observation, empty where the kernel's differs."""
