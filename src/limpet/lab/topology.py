"""A topology file (TOML) -> Topology: which sites, nodes and pods a world of the lab has."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from ipaddress import IPv6Network, ip_interface, ip_network
from pathlib import Path
from typing import Any

from limpet.lab.command import LabError
from limpet.lab.fields import (
    check_keys,
    check_name,
    read_flag,
    read_mtu,
    read_table,
    read_texts,
    read_whole,
    read_word,
)
from limpet.lab.world.site import (
    ACCESS,
    BACKBONE,
    CLOUD,
    FIRST_NODE,
    MOST_SITES,
    Interface,
    Nat,
    Node,
    Prefix,
    Site,
    host,
)

_MOST_NODES, _MOST_PODS, _MOST_DISK_MIB = 200, 200, 4096
_LONGEST_DELAY_MS = 5000
_LOCAL = IPv6Network("fc00::/7")
"""Of one site's own. Source: RFC 4193."""


@dataclass(frozen=True, slots=True)
class Topology:
    """A world of the lab, checked: names are unique, no two networks overlap."""

    name: str
    controller_addresses: tuple[Interface, ...]
    """Of the machine that the controller runs on."""
    cloud: Site
    """Its network, with the nodes that have public addresses there."""
    sites: tuple[Site, ...]
    ipsec: bool = False
    """Its nodes get strongSwan, for a cluster whose tunnels are made by IPsec."""
    disk_mib: int = 16
    """Size of each node's own disk; 0: it has none, its files are on the machine's."""
    controller: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the controller's configuration, such as `segment_length_v4`."""
    agent: Mapping[str, Any] = field(default_factory=dict)
    """Keys of every agent's configuration, such as `rest_s`."""
    text: str = ""
    """That it was read from."""

    @property
    def nodes(self) -> Iterator[tuple[Site, Node]]:
        return ((site, node) for site in (self.cloud, *self.sites) for node in site.nodes)

    def site(self, name: str) -> Site | None:
        """Of the edge."""
        return next((site for site in self.sites if site.name == name), None)


def topology_names() -> list[str]:
    """Topologies that come with Limpet."""
    folder = resources.files("limpet.lab") / "topologies"
    return sorted(
        file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml")
    )


def load_topology(name_or_file: str) -> Topology:
    """One that comes with Limpet, by its name, or a file. Raises: LabError that names the field."""
    if name_or_file in topology_names():
        file = resources.files("limpet.lab") / "topologies" / f"{name_or_file}.toml"
        return parse_topology(file.read_text(encoding="utf-8"), name_or_file, name_or_file)
    path = Path(name_or_file)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise LabError(
            f"read topology {name_or_file}: there is no such file, and none of that name comes "
            f"with Limpet (there are: {', '.join(topology_names())})"
        ) from error
    except UnicodeDecodeError as error:
        raise LabError(f"read topology {path}: it is no text: {error}") from error
    except OSError as error:
        raise LabError(f"read topology {path}: {error.strerror or error}") from error
    return parse_topology(text, path.stem, str(path))


def parse_topology(text: str, name: str, source: str) -> Topology:
    """Raises: LabError that names value, field and `source`."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise LabError(f"parse topology {source}: {error}") from error
    try:
        return replace(_topology(document, name), text=text)
    except ValueError as error:
        raise LabError(f"read topology {source}: {error}") from error


# Each of these raises ValueError with words for `read topology FILE:`.

_KEYS = ("cloud", "site", "controller", "agent", "disk_mib", "ipsec")
_CLOUD_KEYS = ("addresses", "mtu_bytes", "nodes", "relays")
_SITE_KEYS = (
    *("lan", "nodes", "relays", "mtu_bytes", "wan_mtu_bytes", "drops_unknown_sources"),
    *("nat", "hairpin", "udp", "udp_timeout_s", "rate_mbit", "delay_ms", "loss_percent"),
)


def _topology(document: Mapping[str, Any], name: str) -> Topology:
    check_keys(document, _KEYS, "the file")
    cloud = read_table(document.get("cloud"), "cloud")
    check_keys(cloud, _CLOUD_KEYS, "[cloud]")
    sites = read_table(document.get("site"), "site")
    if len(sites) > MOST_SITES:
        raise ValueError(f"more than {MOST_SITES} sites")
    controller = _controller_addresses(cloud.get("addresses"))
    topology = Topology(
        name=name,
        controller_addresses=controller,
        cloud=_cloud(cloud, controller),
        sites=tuple(
            _site(read_table(table, f"site.{site}"), site, number)
            for number, (site, table) in enumerate(sites.items(), 1)
        ),
        ipsec=read_flag(document, "ipsec", "the file"),
        disk_mib=read_whole(document.get("disk_mib", 16), "disk_mib", 0, _MOST_DISK_MIB),
        controller=read_table(document.get("controller", {}), "controller"),
        agent=read_table(document.get("agent", {}), "agent"),
    )
    _check_whole(topology)
    return topology


def _controller_addresses(value: Any) -> tuple[Interface, ...]:
    texts = read_texts(value, "cloud.addresses", '["203.0.113.10/24", "2001:db8:c::10/64"]')
    found = []
    for text in texts:
        try:
            interface = ip_interface(text)
        except ValueError as error:
            raise ValueError(f"cloud.addresses: {error}") from error
        if interface.network.num_addresses < 4 or interface.ip == interface.network[1]:
            raise ValueError(
                f"cloud.addresses: {text}: the first address of its network is the backbone's "
                "(take another one, in a network of at least 4 addresses)"
            )
        found.append(interface)
    _check_families([each.network for each in found], "cloud.addresses")
    return tuple(found)


def _cloud(table: Mapping[str, Any], controller: tuple[Interface, ...]) -> Site:
    lan = tuple(each.network for each in controller)
    nodes: tuple[Node, ...] = ()
    if "nodes" in table or "relays" in table:
        nodes = _nodes(table, lan, number=0, where=CLOUD, role="cloud")
    for node in nodes:
        for address in set(node.addresses) & set(controller):
            raise ValueError(
                f"cloud.addresses: {address} is the one that node {node.name} gets (nodes are "
                f"numbered from .{FIRST_NODE}: give the controller a lower one)"
            )
    return Site(CLOUD, lan, nodes, number=0, mtu_bytes=read_mtu(table, "mtu_bytes", CLOUD))


def _site(table: Mapping[str, Any], name: str, number: int) -> Site:
    where = f"site.{name}"
    check_name(name, where)
    check_keys(table, _SITE_KEYS, f"[{where}]")
    lan = _lan(table.get("lan"), f"{where}.lan")
    site = Site(
        name=name,
        lan=lan,
        nodes=_nodes(table, lan, number=number, where=where, role="edge"),
        number=number,
        mtu_bytes=read_mtu(table, "mtu_bytes", where),
        wan_mtu_bytes=read_mtu(table, "wan_mtu_bytes", where),
        drops_unknown_sources=read_flag(table, "drops_unknown_sources", where),
        nat=Nat(read_word(table, "nat", where, tuple(Nat))),
        hairpin=read_flag(table, "hairpin", where),
        udp_blocked=read_word(table, "udp", where, ("open", "blocked")) == "blocked",
        udp_timeout_s=read_whole(table.get("udp_timeout_s", 30), f"{where}.udp_timeout_s", 1, 3600),
        rate_mbit=read_whole(table.get("rate_mbit", 0), f"{where}.rate_mbit", 0, 100_000),
        delay_ms=read_whole(table.get("delay_ms", 0), f"{where}.delay_ms", 0, _LONGEST_DELAY_MS),
        loss_percent=read_whole(table.get("loss_percent", 0), f"{where}.loss_percent", 0, 99),
    )
    _check_nat(site, where)
    return site


def _check_nat(site: Site, where: str) -> None:
    versions = {prefix.version for prefix in site.lan}
    if site.nat is Nat.NONE and site.hairpin:
        raise ValueError(f"{where}.hairpin: there is no NAT (set {where}.nat)")
    if site.nat is not Nat.NONE and 4 not in versions:
        raise ValueError(f'{where}.nat = "{site.nat}": {where}.lan has no IPv4 to translate')
    for prefix in site.lan:
        if site.nat is not Nat.NONE and prefix.version == 6 and prefix.subnet_of(_LOCAL):
            raise ValueError(
                f"{where}.lan: {prefix} is a site's own, and nothing translates IPv6 (take a "
                "global prefix such as 2001:db8:a::/64, or none)"
            )


def _nodes(
    table: Mapping[str, Any], lan: tuple[Prefix, ...], *, number: int, where: str, role: str
) -> tuple[Node, ...]:
    pods = read_table(table.get("nodes"), f"{where}.nodes")
    room = min(prefix.num_addresses for prefix in lan) - FIRST_NODE - 1
    if len(pods) > room:
        raise ValueError(f"{where}.nodes: {len(pods)} nodes do not fit into {lan[0]}")
    relays: list[str] = []
    if "relays" in table:
        relays = read_texts(table["relays"], f"{where}.relays", '["hub"]')
    for name in relays:
        if name not in pods:
            raise ValueError(f"{where}.relays: {name!r} is none of {', '.join(pods)}")
    return tuple(
        _node(
            name, count, lan, number, place, where, (role, "relay") if name in relays else (role,)
        )
        for place, (name, count) in enumerate(pods.items())
    )


def _node(
    name: str,
    pods: Any,
    lan: tuple[Prefix, ...],
    site_number: int,
    place: int,
    where: str,
    roles: tuple[str, ...],
) -> Node:
    check_name(name, f"{where}.nodes.{name}")
    return Node(
        name=name,
        pods=read_whole(pods, f"{where}.nodes.{name} (its number of pods)", 0, _MOST_PODS),
        mac=f"02:4c:00:{site_number:02x}:{place >> 8:02x}:{place & 255:02x}",
        number=FIRST_NODE + place,
        addresses=tuple(host(prefix, FIRST_NODE + place) for prefix in lan),
        roles=roles,
    )


def _lan(value: Any, where: str) -> tuple[Prefix, ...]:
    found = []
    for text in read_texts(value, where, '["192.168.10.0/24", "fd00:10::/64"]'):
        try:
            found.append(ip_network(text))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
    _check_families(found, where)
    return tuple(found)


def _check_families(prefixes: list[Prefix], where: str) -> None:
    for version in (4, 6):
        if sum(prefix.version == version for prefix in prefixes) > 1:
            raise ValueError(f"{where}: more than one of IPv{version}")


def _check_whole(topology: Topology) -> None:
    if not topology.sites:
        raise ValueError("no site (add one: [site.NAME] with lan and nodes)")
    names = [site.name for site in topology.sites]
    names += [node.name for _, node in topology.nodes]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two nodes or sites have the name {name}")
    if len(names) - len(topology.sites) > _MOST_NODES:
        raise ValueError(f"more than {_MOST_NODES} nodes")
    versions = {prefix.version for prefix in topology.cloud.lan}
    for site in topology.sites:
        if not versions & {prefix.version for prefix in site.lan}:
            raise ValueError(f"site.{site.name}.lan and the cloud have no IP version in common")
    _check_apart(topology)


def _check_apart(topology: Topology) -> None:
    fixed = [("the links between sites", each) for each in (*BACKBONE, *ACCESS)]
    fixed += [("the cloud", each) for each in topology.cloud.lan]
    for number, site in enumerate(topology.sites):
        others = [
            (f"site {other.name}", prefix)
            for other in topology.sites[:number]
            for prefix in other.lan
            if prefix.version == 6 or Nat.NONE in (site.nat, other.nat)
        ]
        for prefix in site.lan:
            for owner, taken in (*fixed, *others):
                if prefix.version == taken.version and prefix.overlaps(taken):
                    raise ValueError(
                        f"site.{site.name}.lan: {prefix} overlaps {taken} of {owner}, and plain "
                        "routing can't tell them apart (number each LAN differently, or give "
                        "both sites a NAT)"
                    )
