"""A topology file (TOML) -> Topology: which sites, nodes and pods a world of the lab has."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from ipaddress import (
    IPv4Interface,
    IPv4Network,
    IPv6Interface,
    IPv6Network,
    ip_interface,
    ip_network,
)
from pathlib import Path
from typing import Any

from limpet.lab.command import LabError

Interface = IPv4Interface | IPv6Interface
Prefix = IPv4Network | IPv6Network

CLOUD = "cloud"
_FIRST_NODE, _ROUTER = 11, 1
"""Host numbers in a LAN."""
_NAME = re.compile(r"[a-z][a-z0-9-]{0,11}")
"""A port of a switch is named after its node: 15 characters, and room for a prefix."""
_RESERVED = (CLOUD, "all", "backbone", "controller")
_BACKBONE = (ip_network("100.64.0.0/16"), ip_network("fd64::/48"))
"""Of the links between sites, one /30 and one /64 each."""
_SMALLEST_MTU, _LARGEST_MTU = 1280, 9000
_MOST_NODES, _MOST_PODS, _MOST_DISK_MIB = 200, 200, 4096


@dataclass(frozen=True, slots=True)
class Node:
    """A machine on its site's LAN."""

    name: str
    pods: int
    mac: str
    number: int
    """Of its addresses in the LAN, at first."""
    addresses: tuple[Interface, ...]


@dataclass(frozen=True, slots=True)
class Site:
    """A LAN: a switch, a router to the backbone, nodes."""

    name: str
    lan: tuple[Prefix, ...]
    """One prefix of each family at most."""
    nodes: tuple[Node, ...]
    number: int
    """From 1; it is in the addresses of the link to the backbone."""
    mtu_bytes: int = 1500
    """Of the LAN."""
    wan_mtu_bytes: int = 1500
    """Of the link to the backbone."""
    drops_unknown_sources: bool = False
    """The switch lets only the LAN's own addresses pass between its ports."""

    @property
    def router_addresses(self) -> tuple[Interface, ...]:
        return tuple(host(prefix, _ROUTER) for prefix in self.lan)

    @property
    def backbone_addresses(self) -> tuple[Interface, ...]:
        """Of the backbone's end of the link."""
        return tuple(host(prefix, 1) for prefix in link_prefixes(self.number))

    @property
    def wan_addresses(self) -> tuple[Interface, ...]:
        """Of the router's end of it."""
        return tuple(host(prefix, 2) for prefix in link_prefixes(self.number))


@dataclass(frozen=True, slots=True)
class Topology:
    """A world of the lab, checked: names are unique, no two networks overlap."""

    name: str
    cloud: tuple[Interface, ...]
    """Addresses of the machine that the controller runs on."""
    sites: tuple[Site, ...]
    cloud_mtu_bytes: int = 1500
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
        return ((site, node) for site in self.sites for node in site.nodes)

    def site(self, name: str) -> Site | None:
        return next((site for site in self.sites if site.name == name), None)


def host(prefix: Prefix, number: int) -> Interface:
    """Address `number` of a prefix, with its length."""
    return ip_interface(f"{prefix[number]}/{prefix.prefixlen}")


def link_prefixes(number: int) -> tuple[Prefix, Prefix]:
    """Of the link between the backbone and site `number`."""
    v4, v6 = _BACKBONE
    return (
        IPv4Network((int(v4.network_address) + 4 * number, 30)),
        IPv6Network((int(v6.network_address) + (number << 64), 64)),
    )


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

_KEYS = ("cloud", "site", "controller", "agent", "disk_mib")
_CLOUD_KEYS = ("addresses", "mtu_bytes")
_SITE_KEYS = ("lan", "nodes", "mtu_bytes", "wan_mtu_bytes", "drops_unknown_sources")


def _topology(document: Mapping[str, Any], name: str) -> Topology:
    _check_keys(document, _KEYS, "the file")
    cloud = _table(document.get("cloud"), "cloud")
    _check_keys(cloud, _CLOUD_KEYS, "[cloud]")
    sites = _table(document.get("site"), "site")
    topology = Topology(
        name=name,
        cloud=_cloud_addresses(cloud.get("addresses")),
        sites=tuple(
            _site(_table(table, f"site.{site}"), site, number)
            for number, (site, table) in enumerate(sites.items(), 1)
        ),
        cloud_mtu_bytes=_mtu(cloud, "mtu_bytes", "cloud"),
        disk_mib=_whole(document.get("disk_mib", 16), "disk_mib", 0, _MOST_DISK_MIB),
        controller=_table(document.get("controller", {}), "controller"),
        agent=_table(document.get("agent", {}), "agent"),
    )
    _check_whole(topology)
    return topology


def _cloud_addresses(value: Any) -> tuple[Interface, ...]:
    texts = _texts(value, "cloud.addresses", '["203.0.113.10/24", "2001:db8:c::10/64"]')
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


def _site(table: Mapping[str, Any], name: str, number: int) -> Site:
    where = f"site.{name}"
    _check_name(name, where)
    _check_keys(table, _SITE_KEYS, f"[{where}]")
    lan = _lan(table.get("lan"), f"{where}.lan")
    pods = _table(table.get("nodes"), f"{where}.nodes")
    room = min(prefix.num_addresses for prefix in lan) - _FIRST_NODE - 1
    if len(pods) > room:
        raise ValueError(f"{where}.nodes: {len(pods)} nodes do not fit into {lan[0]}")
    flag = table.get("drops_unknown_sources", False)
    if not isinstance(flag, bool):
        raise ValueError(f"{where}.drops_unknown_sources = {flag!r}: neither true nor false")
    return Site(
        name=name,
        lan=lan,
        nodes=tuple(
            _node(each, count, lan, number, place, where)
            for place, (each, count) in enumerate(pods.items())
        ),
        number=number,
        mtu_bytes=_mtu(table, "mtu_bytes", where),
        wan_mtu_bytes=_mtu(table, "wan_mtu_bytes", where),
        drops_unknown_sources=flag,
    )


def _node(
    name: str, pods: Any, lan: tuple[Prefix, ...], site_number: int, place: int, where: str
) -> Node:
    _check_name(name, f"{where}.nodes.{name}")
    return Node(
        name=name,
        pods=_whole(pods, f"{where}.nodes.{name} (its number of pods)", 0, _MOST_PODS),
        mac=f"02:4c:00:{site_number:02x}:{place >> 8:02x}:{place & 255:02x}",
        number=_FIRST_NODE + place,
        addresses=tuple(host(prefix, _FIRST_NODE + place) for prefix in lan),
    )


def _lan(value: Any, where: str) -> tuple[Prefix, ...]:
    found = []
    for text in _texts(value, where, '["192.168.10.0/24", "fd00:10::/64"]'):
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
    versions = {each.version for each in topology.cloud}
    for site in topology.sites:
        if not versions & {prefix.version for prefix in site.lan}:
            raise ValueError(f"site.{site.name}.lan and the cloud have no IP version in common")
    _check_apart(topology)


def _check_apart(topology: Topology) -> None:
    seen: list[tuple[str, Prefix]] = [("the links between sites", each) for each in _BACKBONE]
    seen += [("the cloud", interface.network) for interface in topology.cloud]
    for site in topology.sites:
        for prefix in site.lan:
            for owner, other in seen:
                if prefix.version == other.version and prefix.overlaps(other):
                    raise ValueError(
                        f"site.{site.name}.lan: {prefix} overlaps {other} of {owner}, and sites "
                        "are joined by plain routing here, which can't tell them apart (number "
                        "each LAN differently)"
                    )
            seen.append((f"site {site.name}", prefix))


def _check_name(name: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{where}: {name!r} is no name for the lab (a lower-case letter, then letters, "
            "digits and '-', at most 12 in all)"
        )
    if name in _RESERVED:
        raise ValueError(f"{where}: {name!r} is the lab's own word (take another name)")


def _check_keys(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    unknown = sorted(table.keys() - set(known))
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r} in {where} (known: {', '.join(known)})")


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if value is None:
        raise ValueError(f"[{where}] is missing")
    if not isinstance(value, dict):
        raise ValueError(f"{where} = {value!r}: not a table")
    return value


def _texts(value: Any, where: str, example: str) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise ValueError(f"{where} = {value!r}: not a list such as {example}")
    return value


def _mtu(table: Mapping[str, Any], key: str, where: str) -> int:
    return _whole(table.get(key, 1500), f"{where}.{key}", _SMALLEST_MTU, _LARGEST_MTU)


def _whole(value: Any, where: str, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{where} = {value!r}: not a whole number from {low} to {high}")
    return value
