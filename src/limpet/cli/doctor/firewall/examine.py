"""Others' firewall chains on this machine that stop pods, or what nodes send each other.

What a chain does is judged by reading it. Where a rule asks for what is not known here (a mark, a
rate, a set that programs fill) the finding says `may`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from limpet.base.addresses import Prefix
from limpet.base.errors import LimpetError
from limpet.base.ownership import ALIAS, TUNNEL_GROUP, VXLAN_GROUPS
from limpet.base.settings import Settings
from limpet.cli.doctor.findings import Finding, error, ok, warn
from limpet.cli.doctor.firewall.chains import Firewall, FirewallReader, reading
from limpet.cli.doctor.firewall.values import Chain, Dropped, Field, Traffic
from limpet.cli.install.joining import own_snapshot
from limpet.datapath.node.forward import (
    ForwardChain,
    HandleNftables,
    read_forward_chains,
    unreadable_legacy_tables,
)
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.underlay import read_underlay

_FORWARDED = ("prerouting", "forward", "postrouting")
_INBOUND = ("prerouting", "input")
_OUTWARD = frozenset({Field.IIF, Field.SOURCE})
_INWARD = frozenset({Field.OIF, Field.TARGET})
_BY_PORT = frozenset({Field.PORT, Field.PORTS_UNREAD})


@dataclass(frozen=True, slots=True)
class InboundPort:
    """Where others send to."""

    port: int
    harm: str
    """What does not work while it is closed."""
    protocol: str = "udp"
    state: str = "new"
    last: int = 0
    """Of a range of ports."""

    def __str__(self) -> str:
        span = f"s {self.port} to {self.last}" if self.last else f" {self.port}"
        return f"{self.protocol.upper()} port{span}"


def peer_ports(settings: Settings) -> Iterator[InboundPort]:
    """Those of nodes of one site, as far as they are known."""
    harm = "other nodes may not reach this one, nor its pods"
    network = own_snapshot(settings).network
    yield InboundPort(settings.peer_port, harm)
    if network is not None:
        yield InboundPort(network.vxlan_port, harm)


@dataclass(frozen=True, slots=True)
class _Way:
    """Links that pods' packets take, and what a person calls them."""

    words: str
    links: frozenset[str]
    to_pods: bool = True
    """They lead to pods only."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Of this node, as far as firewalls are concerned."""

    settings: Settings
    ways: tuple[_Way, ...]
    uplinks: frozenset[str]
    versions: tuple[int, ...]
    """IP versions of the uplinks."""


def examine_firewall(
    settings: Settings, ports: Iterable[InboundPort], *, allowed: bool, running: bool
) -> Iterator[Finding]:
    """What stops pods' packets, and what others send to `ports`. Changes nothing."""
    place = _read_place(settings)
    try:
        with reading() as reader:
            firewall = reader.read()
            yield from _forward(reader, firewall, place, allowed=allowed, running=running)
            yield from _inbound(reader, firewall, place, ports)
    except LimpetError as problem:
        yield warn(
            f"others' firewall rules are not known: {problem}",
            "they may drop what pods and nodes send each other",
            "see nft list ruleset (package nftables)",
        )


def _read_place(settings: Settings) -> _Place:
    with RouteSocket() as route:
        links = route.links().values()
        underlay = read_underlay(
            route, patterns=settings.underlay_links, not_in=settings.cluster_cidrs
        )
    uplinks = frozenset(link.ifname for link in underlay)
    ours = {link.ifname: link.group for link in links}
    tunnel = frozenset(name for name, group in ours.items() if group == TUNNEL_GROUP)
    vxlan = frozenset(name for name, group in ours.items() if group in VXLAN_GROUPS.values())
    others = frozenset(link.ifname for link in links if link.alias != ALIAS) - {"lo"}
    ways = (
        _Way("through the tunnel", tunnel),
        _Way("through VXLAN", vxlan),
        _Way("over", uplinks, to_pods=False),
    )
    found = {address.version for link in underlay for address in link.addresses}
    return _Place(
        settings,
        tuple(way for way in ways if way.links),
        uplinks or others - tunnel - vxlan - {settings.bridge},
        tuple(sorted(found)) or (4, 6),
    )


# Pods' packets.


def _forward(
    reader: FirewallReader, firewall: Firewall, place: _Place, *, allowed: bool, running: bool
) -> Iterator[Finding]:
    stopped: dict[Chain, list[tuple[_Way, Dropped]]] = {}
    for way in place.ways:
        for traffic in _pods_traffic(place.settings, way):
            for base, dropped in firewall.drops(_FORWARDED, traffic):
                if (way, dropped) not in stopped.setdefault(base, []):
                    stopped[base].append((way, dropped))
    nft = HandleNftables()
    try:
        chains = [chain for chain in read_forward_chains(nft) if chain.cause]
    finally:
        nft.close()
    bridge = place.settings.bridge
    for chain in chains:
        ways = next((ways for base, ways in stopped.items() if str(base) == str(chain)), [])
        if chain.tool != "nft" or not place.ways or any(_is_end(dropped) for _, dropped in ways):
            yield _closed(chain, bridge, allowed=allowed, running=running)
        elif not ways:
            yield ok(f"{chain} drops ({chain.cause}), but lets pods' packets of {bridge} pass")
    said = {str(chain) for chain in chains}
    for base, ways in stopped.items():
        rest = [(w, d) for w, d in ways if str(base) not in said or not _is_end(d)]
        yield from _by_rules(reader, base, rest, bridge)
    for command in unreadable_legacy_tables():
        yield warn(
            f"the kernel has {command} tables, but {command} is not installed",
            "a FORWARD chain there may drop what pods send, and nobody can see it",
            "install iptables, or find out what loaded those tables",
        )
    if not chains and not stopped:
        yield ok("no FORWARD chain of others drops pods' packets")


def _pods_traffic(settings: Settings, way: _Way) -> Iterator[Traffic]:
    """Both directions, of each IP version that pods have."""
    bridge = frozenset({settings.bridge})
    prefixes = (*settings.segments, *settings.cluster_cidrs)
    for version in sorted({each.version for each in prefixes}) or [4]:
        own, cluster = _of(settings.segments, version), _of(settings.cluster_cidrs, version)
        far = cluster if way.to_pods else ()
        out, back = (_OUTWARD, _INWARD) if far == () else (_OUTWARD | _INWARD,) * 2
        yield Traffic(version, bridge, way.links, sources=own, targets=far, telling=out)
        yield Traffic(version, way.links, bridge, sources=far, targets=own, telling=back)


def _of(prefixes: Iterable[Prefix], version: int) -> tuple[Prefix, ...]:
    return tuple(each for each in prefixes if each.version == version)


def _is_end(dropped: Dropped) -> bool:
    """The policy, or a rule for whatever gets there."""
    return dropped.surely and (dropped.rule is None or not dropped.rule.matches)


def _closed(chain: ForwardChain, bridge: str, *, allowed: bool, running: bool) -> Finding:
    """Of a chain that drops what no rule of it accepts."""
    if chain.tool != "nft" and chain.accepts(bridge):
        return ok(f"{chain} drops ({chain.cause}), but for {bridge}: it has Limpet's accept rules")
    if allowed and not running:
        return ok(f"{chain} drops ({chain.cause}); accept rules for {bridge} will be kept in it")
    if chain.accepts(bridge):
        return error(
            f"{chain} drops ({chain.cause}), and Limpet's accept rules for {bridge} come too late",
            "pods may reach nothing beyond their node",
            f"see what stands before them: nft list chain {chain.family} {chain.table} "
            f"{chain.name}",
        )
    if allowed:
        return error(
            f"{chain} drops ({chain.cause}), and the accept rules for {bridge} are not in it",
            "pods may reach nothing beyond their node",
            "the agent puts them there: see `limpet status`, journalctl -u limpet-agent",
        )
    return error(
        f"{chain} drops ({chain.cause}) and has no accept rule of Limpet for {bridge}",
        "pods may reach nothing beyond their node, and on some nodes not even each other",
        "install with --allow-forward (allow_forward = true in the agent's configuration), "
        "which keeps one marked accept rule for each direction there",
    )


def _by_rules(
    reader: FirewallReader, base: Chain, ways: Iterable[tuple[_Way, Dropped]], bridge: str
) -> Iterator[Finding]:
    by_cause: dict[Dropped, list[_Way]] = {}
    for way, dropped in ways:
        if way not in by_cause.setdefault(dropped, []):
            by_cause[dropped].append(way)
    for dropped, stopped in by_cause.items():
        through = " and ".join(f"{way.words} {', '.join(sorted(way.links))}" for way in stopped)
        said = error if dropped.surely else warn
        yield said(
            f"{base} {_drops(dropped)} pods' packets {through}: {_cause(reader, base, dropped)}",
            f"pods of this node and others {'do' if dropped.surely else 'may'} not reach each "
            "other that way",
            f"if no person wants that, take it out, or accept packets of {bridge} before it "
            "(iifname and oifname)",
        )


# What comes to the node itself.


def _inbound(
    reader: FirewallReader, firewall: Firewall, place: _Place, ports: Iterable[InboundPort]
) -> Iterator[Finding]:
    stopped: dict[tuple[Chain, Dropped], list[InboundPort]] = {}
    for port in ports:
        for number in dict.fromkeys((port.port, port.last or port.port)):
            for version in place.versions:
                traffic = Traffic(
                    version,
                    place.uplinks,
                    protocol=port.protocol,
                    port=number,
                    state=port.state,
                    telling=_BY_PORT,
                )
                for base, dropped in firewall.drops(_INBOUND, traffic):
                    found = stopped.setdefault((base, dropped), [])
                    found += [port] if port not in found else []
    for (base, dropped), closed in stopped.items():
        names = _joined(closed)
        cause = _cause(reader, base, dropped)
        what = f"{base} {_drops(dropped)} what is sent to {names}: {cause}"
        if _is_end(dropped):
            what = f"{base} drops ({cause}), and no rule of it seems to let {names} in"
        yield warn(
            what,
            "; ".join(dict.fromkeys(port.harm for port in closed)),
            "accept it there from the other nodes, unless a rule does so in another way",
        )


def _joined(ports: Iterable[InboundPort]) -> str:
    """`UDP port 7471 and 8472 and TCP port 443`."""
    found: dict[str, list[str]] = {}
    for port in ports:
        kind, _, numbers = str(port).partition(" port")
        found.setdefault(kind, []).append(numbers.removeprefix("s").strip())
    return " and ".join(f"{kind} port {' and '.join(all_)}" for kind, all_ in found.items())


# Words.


def _drops(dropped: Dropped) -> str:
    return "drops" if dropped.surely else "may drop"


def _cause(reader: FirewallReader, base: Chain, dropped: Dropped) -> str:
    if dropped.rule is None:
        return "policy drop"
    try:
        words = reader.words(dropped.chain, dropped.rule)
    except LimpetError:
        words = ""
    where = "" if dropped.chain.name == base.name else f" in chain {dropped.chain.name}"
    return f"rule `{words or f'handle {dropped.rule.handle}'}`{where}"
