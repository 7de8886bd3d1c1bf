"""The network underneath a world: switches, routers, a backbone, and cables between namespaces."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from limpet.lab.command import LabError, run_command
from limpet.lab.netns import FOLDER, make_namespace
from limpet.lab.topology import Topology
from limpet.lab.world.site import CLOUD, Interface, LabSite

_PREFIX = "limpet-lab."
BRIDGE, ROUTER_PORT = "br0", "router"

# Or an address cannot be used for a second, until nobody else was heard to have it.
_QUICK = {"ipv6/conf/all/accept_dad": 0, "ipv6/conf/default/accept_dad": 0}
FORWARDING = {"ipv4/ip_forward": 1, "ipv6/conf/all/forwarding": 1}
_NO_IPV6 = {"ipv6/conf/all/disable_ipv6": 1, "ipv6/conf/default/disable_ipv6": 1}

# A provider's outage is silence: nothing comes through, and nobody says that it does not.
_CUTS = """
table inet cuts {
    set links { type ifname; }
    chain forward {
        type filter hook forward priority 0;
        iifname @links drop
        oifname @links drop
    }
    chain input { type filter hook input priority 0; iifname @links drop; }
    chain output { type filter hook output priority 0; oifname @links drop; }
}
"""


@dataclass(frozen=True, slots=True)
class Wires:
    """Names of a world's namespaces, and how they are joined."""

    world: str
    topology: Topology

    def namespace(self, *parts: str) -> str:
        return namespace_prefix(self.world) + ".".join(parts)

    def switch(self, site: LabSite) -> str:
        return self.namespace(site.name, "switch")

    def router(self, site: LabSite) -> str:
        return self.namespace(site.name, "router")

    def carrier(self, site: LabSite) -> str:
        """Namespace of the carrier's NAT, where the site is behind a second one."""
        return self.namespace(site.name, "carrier")

    def line(self, site: LabSite) -> str:
        """Namespace of a link with a delay, where the kernel has no netem."""
        return self.namespace(site.name, "line")

    @property
    def backbone(self) -> str:
        return self.namespace("backbone")

    @property
    def cloud(self) -> str:
        return self.namespace(CLOUD)

    # Building

    def build_backbone(self) -> None:
        """The backbone and the cloud on it. Raises: LabError."""
        create_namespace(self.backbone, FORWARDING)
        run_command("nft", "-f", "-", netns=self.backbone, stdin=_CUTS)
        cloud = self.topology.cloud
        self.build_switch(cloud)
        self.plug(cloud, ROUTER_PORT, self.backbone, CLOUD)
        configure(self.backbone, CLOUD, cloud.router_addresses)
        create_namespace(self.cloud)
        self.plug(cloud, "controller", self.cloud, "eth0")
        routers = [each.ip for each in cloud.router_addresses]
        configure(self.cloud, "eth0", self.topology.controller_addresses, via=routers)

    def build_switch(self, site: LabSite) -> None:
        """Builds a site's switch, with nothing plugged in. Raises: LabError."""
        create_namespace(self.switch(site), _NO_IPV6)
        batch(
            self.switch(site), [f"link add name {BRIDGE} type bridge", f"link set dev {BRIDGE} up"]
        )
        if site.drops_unknown_sources:
            run_command("nft", "-f", "-", netns=self.switch(site), stdin=_source_guard(site))

    def plug(
        self, site: LabSite, port: str, netns: str, ifname: str, mac: str | None = None
    ) -> None:
        """A cable from a port of the site's switch; one that is there goes. Raises: LabError."""
        self.unplug(site, port)
        connect((self.switch(site), port), (netns, ifname), site.mtu_bytes, mac=mac)
        batch(self.switch(site), [f"link set dev {port} master {BRIDGE}"])

    def unplug(self, site: LabSite, port: str) -> None:
        pull_cable(self.switch(site), port)

    # Cuts

    def cut(self, link: str) -> None:
        """Nothing comes through between the backbone and a site or the cloud. Raises: LabError."""
        self._nft("add", link)

    def restore(self, link: str) -> None:
        """Raises: LabError."""
        if link in self.cuts():
            self._nft("delete", link)

    def _nft(self, verb: str, link: str) -> None:
        run_command(
            *("nft", verb, "element", "inet", "cuts", "links", f'{{ "{link}" }}'),
            netns=self.backbone,
        )

    def cuts(self) -> list[str]:
        """Sites that are cut off, and the cloud. Raises: LabError."""
        text = run_command("nft", "-j", "list", "set", "inet", "cuts", "links", netns=self.backbone)
        sets = [each["set"] for each in json.loads(text)["nftables"] if "set" in each]
        return sorted(name for each in sets for name in each.get("elem", ()))


def namespace_prefix(world: str) -> str:
    """Prefix of this world's namespaces and no other's: no name of a world holds a dot."""
    return f"{_PREFIX}{world}."


def existing_namespaces(world: str) -> list[str]:
    """Names of a world's namespaces, pods' too, whoever made them."""
    if not FOLDER.is_dir():
        return []
    prefix = namespace_prefix(world)
    return sorted(each.name for each in FOLDER.iterdir() if each.name.startswith(prefix))


def create_namespace(name: str, sysctls: dict[str, int] | None = None) -> None:
    """Makes a namespace: loopback is up, addresses are usable at once. Raises: LabError."""
    make_namespace(name)
    lines = [f"echo {value} > /proc/sys/net/{key}" for key, value in _QUICK.items()]
    lines += [f"echo {value} > /proc/sys/net/{key}" for key, value in (sysctls or {}).items()]
    run_command("sh", "-ec", "\n".join(lines), netns=name)


def batch(netns: str, lines: Iterable[str]) -> None:
    """Lines of `ip` in a namespace. Raises: LabError with the first that fails."""
    run_command("ip", "-batch", "-", netns=netns, stdin="\n".join(lines) + "\n")


def connect(
    one: tuple[str, str], other: tuple[str, str], mtu_bytes: int, *, mac: str | None = None
) -> None:
    """A cable between two (namespace, device); `mac` is the other's. Raises: LabError.

    Both ends are made where they belong: the machine's own namespace never sees them.
    """
    (netns, ifname), (other_netns, other_ifname) = one, other
    address = ("address", mac) if mac else ()
    run_command(
        *("ip", "link", "add", "name", ifname, "mtu", str(mtu_bytes), "netns", netns),
        *("type", "veth", "peer", "name", other_ifname, "mtu", str(mtu_bytes), *address),
        *("netns", other_netns),
    )
    batch(netns, [f"link set dev {ifname} up"])
    batch(other_netns, [f"link set dev {other_ifname} up"])


def pull_cable(netns: str, ifname: str) -> None:
    """It goes at once, with both ends; does nothing when it has gone.

    A namespace's devices go some time after it, and their names are taken until then.
    """
    with contextlib.suppress(LabError):
        run_command("ip", "link", "del", "dev", ifname, netns=netns)


def configure(
    netns: str,
    ifname: str,
    addresses: Iterable[Interface],
    *,
    via: Sequence[IPv4Address | IPv6Address] = (),
) -> None:
    """Addresses of a device, and default routes over it. Raises: LabError."""
    lines = [f"addr add {each} dev {ifname}" for each in addresses]
    batch(netns, [*lines, *(f"route replace default via {each} dev {ifname}" for each in via)])


def _source_guard(site: LabSite) -> str:
    rules = []
    for prefix in site.lan:
        if prefix.version == 4:
            rules.append(f"ip saddr != {{ {prefix}, 0.0.0.0 }} drop")
        else:
            rules.append(f"ip6 saddr != {{ {prefix}, fe80::/10, :: }} drop")
    lines = "\n".join(f'        iifname != "{ROUTER_PORT}" {rule}' for rule in rules)
    return f"""
table bridge source_guard {{
    chain forward {{
        type filter hook forward priority 0;
{lines}
    }}
}}
"""
