"""A site's gateway: a router, or a NAT, or two NATs in a row; and what befalls it."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from limpet.lab.command import LabError, run_command
from limpet.lab.netns import delete_namespace
from limpet.lab.world.nat import LAN, WAN, Translation, gate_rules, translation_rules
from limpet.lab.world.site import Interface, LabSite, Nat
from limpet.lab.world.uplink import Uplink
from limpet.lab.world.wires import (
    FORWARDING,
    ROUTER_PORT,
    Wires,
    batch,
    configure,
    connect,
    create_namespace,
    pull_cable,
)

_DATAGRAMS = ("inet", "gate", "datagrams")


class Gateway:
    """What is kept over commands is in `memory`; everything else is in the kernel."""

    def __init__(self, wires: Wires, site: LabSite, folder: Path) -> None:
        """Describes it; `build` makes it. `folder`: of what runs for it."""
        self.wires = wires
        self.site = site
        self.uplink = Uplink(wires, site, folder)
        self.reboots = 0
        self.address_changes = 0
        self.udp_blocked = site.udp_blocked

    def memory(self) -> dict[str, Any]:
        return {
            "reboots": self.reboots,
            "address_changes": self.address_changes,
            "udp_blocked": self.udp_blocked,
        }

    def recall(self, memory: Mapping[str, Any]) -> None:
        """What `memory` was, in an earlier command."""
        self.reboots = int(memory["reboots"])
        self.address_changes = int(memory["address_changes"])
        self.udp_blocked = bool(memory["udp_blocked"])

    @property
    def translates(self) -> bool:
        return self.site.nat is not Nat.NONE

    @property
    def public_addresses(self) -> tuple[Interface, ...]:
        """Addresses of its end of the link to the backbone; what a NAT shows is the IPv4 one."""
        return self.site.wan_addresses(self.address_changes)

    @property
    def public(self) -> IPv4Address:
        """What the backbone sees of the site's IPv4, where there is a NAT."""
        (address,) = (each.ip for each in self.public_addresses if each.version == 4)
        return address

    # Building

    def build(self) -> None:
        """The gateway, a carrier's if need be, the link to the backbone. Raises: LabError."""
        if self.site.nat is Nat.CGN:
            self._build_carrier()
        self._build_router()

    def _build_carrier(self) -> None:
        name, site = self.wires.carrier(self.site), self.site
        create_namespace(name, FORWARDING)
        timeout_s = site.udp_timeout_s
        carrier = Translation(
            public=self.public,
            keeps_port=False,
            per_destination=False,
            lets_anybody_in=False,
            hairpin=site.hairpin,
            timeout_s=timeout_s,
        )
        self._load(name, gate_rules(guarded=True) + translation_rules(carrier))
        forget_after(name, timeout_s)
        self._join_backbone(name)

    def _build_router(self) -> None:
        name, site = self.wires.router(self.site), self.site
        create_namespace(name, FORWARDING)
        rules = gate_rules(guarded=self.translates)
        if self.translates:
            rules += translation_rules(self._translation())
        # Before any packet: a flow that is tracked before it is translated never is.
        self._load(name, rules)
        if self.translates:
            forget_after(name, site.udp_timeout_s)  # the rules have made the kernel load conntrack
        if self.udp_blocked:
            self._drop_udp()
        self.wires.plug(site, ROUTER_PORT, name, LAN, site.router_mac)
        configure(name, LAN, site.router_addresses)
        if site.nat is Nat.CGN:
            self._join_carrier(name)
        else:
            self._join_backbone(name)

    def _translation(self) -> Translation:
        site = self.site
        behind_carrier = site.nat is Nat.CGN
        (access,) = (each.ip for each in site.access_addresses if each.version == 4)
        return Translation(
            public=access if behind_carrier else self.public,
            keeps_port=site.nat in (Nat.PORT_RESTRICTED, Nat.CGN) and self.reboots == 0,
            per_destination=site.nat is Nat.SYMMETRIC,
            lets_anybody_in=site.nat is Nat.CONE,
            hairpin=site.hairpin and not behind_carrier,
            timeout_s=site.udp_timeout_s,
        )

    def _join_backbone(self, name: str) -> None:
        """The routes to what is behind lead through `name`."""
        site, backbone = self.site, self.wires.backbone
        self.uplink.lay(name)
        configure(backbone, site.name, site.backbone_addresses)
        configure(name, WAN, self.public_addresses, via=[e.ip for e in site.backbone_addresses])
        ways = {each.version: each.ip for each in self.public_addresses}
        batch(
            backbone,
            [f"route add {each} via {ways[each.version]} dev {site.name}" for each in site.routed],
        )

    def _join_carrier(self, name: str) -> None:
        site, carrier = self.site, self.wires.carrier(self.site)
        connect((carrier, LAN), (name, WAN), site.uplink.mtu_bytes)
        configure(carrier, LAN, site.carrier_addresses)
        configure(name, WAN, site.access_addresses, via=[e.ip for e in site.carrier_addresses])
        ways = {each.version: each.ip for each in site.access_addresses}
        batch(carrier, [f"route add {each} via {ways[each.version]}" for each in site.routed])

    def _load(self, name: str, rules: str) -> None:
        run_command("nft", "-f", "-", netns=name, stdin=rules)

    # Faults

    def reboot(self) -> None:
        """What it had mapped is gone, and it maps to other ports. Raises: LabError."""
        self.reboots += 1
        self._take_away(self.wires.router(self.site))
        self._build_router()

    def change_public_address(self) -> None:
        """The provider gives it another one; what it had mapped is gone. Raises: LabError."""
        if not self.translates:
            raise LabError(
                f"change the public address of {self.site.name}: it has no NAT, its nodes have "
                f"addresses of their own (limpet lab fault address {self.site.name})"
            )
        self.address_changes += 1
        if self.site.nat is Nat.CGN:
            self._take_away(self.wires.carrier(self.site))
        self._take_away(self.wires.router(self.site))
        self.build()

    def _take_away(self, name: str) -> None:
        outer = name == self.wires.carrier(self.site) or self.site.nat is not Nat.CGN
        if outer:
            self.uplink.take_up()
        else:
            pull_cable(self.wires.carrier(self.site), LAN)
        delete_namespace(name)

    def block_udp(self) -> None:
        """Not one UDP packet leaves the site or gets into it. Raises: LabError."""
        if not self.udp_blocked:
            self._drop_udp()
        self.udp_blocked = True

    def _drop_udp(self) -> None:
        router = self.wires.router(self.site)
        run_command("nft", "add", "rule", *_DATAGRAMS, "drop", netns=router)

    def allow_udp(self) -> None:
        """Raises: LabError."""
        router = self.wires.router(self.site)
        run_command("nft", "flush", "chain", *_DATAGRAMS, netns=router)
        self.udp_blocked = False


def forget_after(netns: str, timeout_s: int) -> None:
    """A silent UDP flow is forgotten then, answered or not. Raises: LabError."""
    folder = "/proc/sys/net/netfilter/nf_conntrack_udp_timeout"
    lines = [f"echo {timeout_s} > {folder}{each}" for each in ("", "_stream")]
    run_command("sh", "-ec", "\n".join(lines), netns=netns)
