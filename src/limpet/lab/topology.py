"""A topology file (TOML) -> Topology: which sites, nodes and pods a world of the lab has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from ipaddress import IPv6Network, ip_interface
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from limpet.base.configuration import parse_toml, read_prefixes, read_struct, read_value, written
from limpet.lab.command import LabError
from limpet.lab.world.site import (
    ACCESS,
    BACKBONE,
    CLOUD,
    FIRST_NODE,
    MOST_SITES,
    Interface,
    LabSite,
    Mtu,
    Nat,
    Prefix,
    SiteNode,
    SiteSettings,
    host,
)

_MOST_NODES = 200
_NAME = re.compile(r"[a-z][a-z0-9-]{0,11}")
"""A port of a switch is named after its node: 15 characters, and room for a prefix."""
_RESERVED = (CLOUD, "all", "backbone", "controller", "router")
_LOCAL = IPv6Network("fc00::/7")
"""Prefix of addresses that are one site's own. Source: RFC 4193."""


@dataclass(frozen=True, slots=True)
class Topology:
    """A world of the lab, checked: names are unique, no two networks overlap."""

    name: str
    controller_addresses: tuple[Interface, ...]
    """Addresses of the machine that the controller runs on."""
    cloud: LabSite
    """Its network, with the nodes that have public addresses there."""
    sites: tuple[LabSite, ...]
    ipsec: bool = False
    """Its nodes get strongSwan, for a cluster whose tunnels are made by IPsec."""
    kubernetes: bool = False
    """There is a control plane in the cloud, and its nodes have containerd and a kubelet."""
    bare: bool = False
    """Its nodes have no Limpet: whoever uses it installs that."""
    disk_mib: int = 16
    """Size of each node's own disk; 0: it has none, its files are on the machine's."""
    controller: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the controller's configuration, such as `segment_length_v4`."""
    agent: Mapping[str, Any] = field(default_factory=dict)
    """Keys of every agent's configuration, such as `rest_s`."""
    text: str = ""
    """Text of the file that it was read from."""

    @property
    def nodes(self) -> Iterator[tuple[LabSite, SiteNode]]:
        return ((site, node) for site in (self.cloud, *self.sites) for node in site.nodes)

    def site(self, name: str) -> LabSite | None:
        """The site of the edge with this name; None: there is none."""
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
        document = parse_toml(text)
    except ValueError as error:
        raise LabError(f"parse topology {source}: {error}") from error
    try:
        return replace(_topology(document, name), text=text)
    except ValueError as error:
        raise LabError(f"read topology {source}: {error}") from error


# What a file says. Each of the functions raises ValueError with words for `read topology FILE:`.


def _lan(value: list[str]) -> tuple[Prefix, ...]:
    found = read_prefixes(value)
    _check_families(found)
    return found


def _controller_addresses(value: list[str]) -> tuple[Interface, ...]:
    found = tuple(map(ip_interface, value))
    for each in found:
        if each.network.num_addresses < 4 or each.ip == each.network[1]:
            raise ValueError(
                f"{each}: the first address of its network is the backbone's "
                "(take another one, in a network of at least 4 addresses)"
            )
    _check_families(tuple(each.network for each in found))
    return found


def _check_families(prefixes: tuple[Prefix, ...]) -> None:
    for version in (4, 6):
        if sum(prefix.version == version for prefix in prefixes) > 1:
            raise ValueError(f"more than one of IPv{version}")


_TEXTS = Annotated[list[str], Meta(min_length=1)]
_Pods = Annotated[int, Meta(ge=0, le=200)]
_Table = dict[str, Any]
_Relays = Annotated[tuple[str, ...], Meta(min_length=1, description='a list such as ["hub"]')]


class _CloudTable(Struct, frozen=True, kw_only=True):
    addresses: Annotated[
        tuple[Interface, ...],
        written(
            _TEXTS,
            _controller_addresses,
            'a list such as ["203.0.113.10/24", "2001:db8:c::10/64"]',
        ),
    ]
    mtu_bytes: Mtu = 1500
    nodes: _Table | None = None
    relays: _Relays = ()


class _SiteTable(SiteSettings, frozen=True, kw_only=True):
    lan: Annotated[
        tuple[Prefix, ...],
        written(_TEXTS, _lan, 'a list such as ["192.168.10.0/24", "fd00:10::/64"]'),
    ]
    nodes: _Table
    relays: _Relays = ()


class _File(Struct, frozen=True, kw_only=True):
    cloud: _Table
    site: _Table
    controller: _Table = {}
    agent: _Table = {}
    disk_mib: Annotated[int, Meta(ge=0, le=4096)] = 16
    ipsec: bool = False
    kubernetes: bool = False
    bare: bool = False


def _topology(document: Mapping[str, Any], name: str) -> Topology:
    file = read_struct(_File, document)
    cloud = read_struct(_CloudTable, file.cloud, "cloud")
    if len(file.site) > MOST_SITES:
        raise ValueError(f"more than {MOST_SITES} sites")
    topology = Topology(
        name=name,
        controller_addresses=cloud.addresses,
        cloud=_cloud(cloud),
        sites=tuple(
            _site(table, site, number) for number, (site, table) in enumerate(file.site.items(), 1)
        ),
        ipsec=file.ipsec,
        kubernetes=file.kubernetes,
        bare=file.bare,
        disk_mib=file.disk_mib,
        controller=file.controller,
        agent=file.agent,
    )
    _check_whole(topology)
    return topology


def _cloud(table: _CloudTable) -> LabSite:
    lan = tuple(each.network for each in table.addresses)
    if table.nodes is None and table.relays:
        raise ValueError("[cloud.nodes] is missing")
    nodes = _nodes(table.nodes or {}, table.relays, lan, number=0, where=CLOUD, role="cloud")
    for node in nodes:
        for address in set(node.addresses) & set(table.addresses):
            raise ValueError(
                f"cloud.addresses: {address} is the one that node {node.name} gets (nodes are "
                f"numbered from .{FIRST_NODE}: give the controller a lower one)"
            )
    return LabSite(name=CLOUD, lan=lan, nodes=nodes, number=0, mtu_bytes=table.mtu_bytes)


def _site(document: Any, name: str, number: int) -> LabSite:
    where = f"site.{name}"
    _check_name(name, where)
    if not isinstance(document, dict):
        raise ValueError(f"{where} = {document!r}: not a table")
    table = read_struct(_SiteTable, document, where)
    nodes = _nodes(table.nodes, table.relays, table.lan, number=number, where=where, role="edge")
    kept = {key: getattr(table, key) for key in SiteSettings.__struct_fields__}
    site = LabSite(name=name, lan=table.lan, nodes=nodes, number=number, **kept)
    _check_nat(site, where)
    return site


def _check_name(name: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{where}: {name!r} is no name for the lab (a lower-case letter, then letters, "
            "digits and '-', at most 12 in all)"
        )
    if name in _RESERVED:
        raise ValueError(f"{where}: {name!r} is the lab's own word (take another name)")


def _check_nat(site: LabSite, where: str) -> None:
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
    pods: Mapping[str, Any],
    relays: tuple[str, ...],
    lan: tuple[Prefix, ...],
    *,
    number: int,
    where: str,
    role: str,
) -> tuple[SiteNode, ...]:
    room = min(prefix.num_addresses for prefix in lan) - FIRST_NODE - 1
    if len(pods) > room:
        raise ValueError(f"{where}.nodes: {len(pods)} nodes do not fit into {lan[0]}")
    for name in relays:
        if name not in pods:
            raise ValueError(f"{where}.relays: {name!r} is none of {', '.join(pods)}")
    return tuple(
        SiteNode(
            name=name,
            pods=_pods(count, f"{where}.nodes.{name}"),
            mac=f"02:4c:00:{number:02x}:{place >> 8:02x}:{place & 255:02x}",
            number=FIRST_NODE + place,
            addresses=tuple(host(prefix, FIRST_NODE + place) for prefix in lan),
            roles=(role, "relay") if name in relays else (role,),
        )
        for place, (name, count) in enumerate(pods.items())
    )


def _pods(count: Any, where: str) -> int:
    _check_name(where.rpartition(".")[2], where)
    try:
        return int(read_value(count, _Pods))
    except ValueError as error:
        raise ValueError(f"{where} (its number of pods) = {count!r}: {error}") from error


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
