"""Places of a world: sites with their LANs, what stands between them and the rest, nodes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from ipaddress import (
    IPv4Interface,
    IPv4Network,
    IPv6Interface,
    IPv6Network,
    ip_interface,
    ip_network,
)
from typing import Annotated, Literal

from msgspec import Meta, Struct

Interface = IPv4Interface | IPv6Interface
Prefix = IPv4Network | IPv6Network

CLOUD = "cloud"
FIRST_NODE, ROUTER = 11, 1
"""Host numbers in a LAN."""
BACKBONE = (ip_network("198.18.0.0/16"), ip_network("fd64::/48"))
"""Prefixes of the links of sites to the backbone, one /24 and one /64 each. Nobody takes these IPv4
addresses for a LAN's, so that what a NAT shows looks as public as it is."""
ACCESS = (ip_network("100.64.0.0/16"), ip_network("fd64:1::/48"))
"""Prefixes of the links between a site's gateway and its carrier's. Source: RFC 6598."""
MOST_SITES = 250


class Nat(StrEnum):
    """What a site's gateway does to IPv4; how each behaves: docs/lab.md."""

    NONE = "none"
    """It routes."""
    CONE = "cone"
    """One mapping for all destinations, and whoever knows it gets in."""
    PORT_RESTRICTED = "port-restricted"
    """One mapping for all destinations, and only who was spoken to gets in."""
    SYMMETRIC = "symmetric"
    """A mapping for each destination."""
    CGN = "cgn"
    """Port-restricted, behind another port-restricted one of the carrier's."""


@dataclass(frozen=True, slots=True)
class SiteNode:
    """A machine on its site's LAN."""

    name: str
    pods: int
    mac: str
    number: int
    """Host number of its addresses in the LAN, at first."""
    addresses: tuple[Interface, ...]
    roles: tuple[str, ...] = ("edge",)
    """Roles that it gets when it joins."""


Mtu = Annotated[int, Meta(ge=1280, le=9000)]


class UplinkSettings(Struct, frozen=True, rename={"mtu_bytes": "wan_mtu_bytes"}):
    """A site's link to the backbone, by the keys of a topology file."""

    mtu_bytes: Mtu = 1500
    rate_mbit: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """Each way; 0: as fast as the machine is."""
    delay_ms: Annotated[int, Meta(ge=0, le=5000)] = 0
    """Each way: a round trip takes twice as long."""
    loss_percent: Annotated[int, Meta(ge=0, le=99)] = 0
    """Share of packets that get lost on the link, each way."""

    @property
    def is_late(self) -> bool:
        """Whether packets come late or get lost: then more than a plain cable is needed."""
        return bool(self.delay_ms or self.loss_percent)


class SiteSettings(Struct, frozen=True, kw_only=True):
    """How a site is, by the keys of a topology file."""

    mtu_bytes: Mtu = 1500
    """MTU of the LAN."""
    uplink: UplinkSettings = UplinkSettings()
    drops_unknown_sources: bool = False
    """The switch lets only the LAN's own addresses pass between its ports."""
    nat: Nat = Nat.NONE
    hairpin: bool = False
    """What the LAN sends to a mapped address of its own gateway comes back in."""
    udp: Literal["open", "blocked"] = "open"
    """Blocked: no UDP leaves the site, at first."""
    udp_timeout_s: Annotated[int, Meta(ge=1, le=3600)] = 30
    """Seconds of silence after which a NAT forgets a mapping."""


class LabSite(SiteSettings, frozen=True, kw_only=True):
    """A LAN: a switch, a gateway to the backbone, nodes. The cloud is one as well."""

    name: str
    lan: tuple[Prefix, ...]
    """One prefix of each family at most."""
    nodes: tuple[SiteNode, ...]
    number: int
    """From 1, it is in the addresses of its links; 0: the cloud."""

    @property
    def udp_blocked(self) -> bool:
        return self.udp == "blocked"

    @property
    def router_addresses(self) -> tuple[Interface, ...]:
        return tuple(host(prefix, ROUTER) for prefix in self.lan)

    @property
    def router_mac(self) -> str:
        """In the LAN; a gateway that was replaced has it too, or nodes would look for the old."""
        return f"02:4c:00:{self.number:02x}:ff:ff"

    @property
    def backbone_addresses(self) -> tuple[Interface, ...]:
        """Addresses of the backbone's end of the link to the site."""
        return tuple(host(prefix, 1) for prefix in link_prefixes(self.number))

    def wan_addresses(self, changes: int = 0) -> tuple[Interface, ...]:
        """Addresses of the outer gateway's end, when the IPv4 one has changed so often."""
        v4, v6 = link_prefixes(self.number)
        return host(v4, 2 + changes % (v4.num_addresses - 3)), host(v6, 2)

    @property
    def carrier_addresses(self) -> tuple[Interface, ...]:
        """Addresses of the carrier's end of its link to the site's gateway."""
        return tuple(host(prefix, 1) for prefix in link_prefixes(self.number, ACCESS))

    @property
    def access_addresses(self) -> tuple[Interface, ...]:
        """Addresses of the site's end of the link to its carrier."""
        return tuple(host(prefix, 2) for prefix in link_prefixes(self.number, ACCESS))

    @property
    def routed(self) -> tuple[Prefix, ...]:
        """What of the LAN others have a route to."""
        return tuple(prefix for prefix in self.lan if self.nat is Nat.NONE or prefix.version == 6)


def host(prefix: Prefix, number: int) -> Interface:
    """Address `number` of a prefix, with its length."""
    return ip_interface(f"{prefix[number]}/{prefix.prefixlen}")


def link_prefixes(
    number: int, within: tuple[Prefix, Prefix] = BACKBONE
) -> tuple[IPv4Network, IPv6Network]:
    """Prefixes of the link of site `number`; `within`: those of all such links."""
    v4, v6 = within
    return (
        IPv4Network((int(v4.network_address) + (number << 8), 24)),
        IPv6Network((int(v6.network_address) + (number << 64), 64)),
    )
