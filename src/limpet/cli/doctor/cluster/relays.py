"""Relays: whether those that this node uses answer, and whether it is reached as one itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from limpet.agent.settings import Settings
from limpet.agent.status.cluster import ClusterStatus, SharedEndpoint
from limpet.base.errors import LimpetError
from limpet.cli.doctor.findings import Finding, error, ok, warn
from limpet.cli.doctor.target import InboundPort
from limpet.cli.output import counted
from limpet.cluster.topology.transports import TRANSPORTS
from limpet.linux.ports import PortHolder, port_holders
from limpet.linux.sysctl import read_sysctl
from limpet.relay.server.forwarding import blocked_versions
from limpet.relay.status import RelayedPair, Relaying, RelayingTls, RelaysStatus

_ASKED_WITHIN_S = 300.0
"""Every node greets every relay within three minutes."""
_CHECKED_WITHIN_S = 5.0


def inbound_ports(cluster: ClusterStatus, settings: Settings) -> tuple[InboundPort, ...]:
    """Ports that nodes of other sites send to, beside those that every node has open."""
    relays = cluster.nat_traversal.relaying is not None
    tunnels = [each for each in (cluster.tunnel, cluster.ipsec) if each is not None]
    harm = "nodes of other sites may reach this one, and its pods, through a relay only"
    if relays:
        harm = "nodes of other sites may not reach this one, and it is of no use to them as a relay"
    needed = {each.port for each in tunnels if each.port and (each.needed or relays)}
    found = [InboundPort(port, harm) for port in sorted(needed)]
    if relays:
        first, last = settings.relay.ports
        harm = "of relayed packets those get lost that the agent hands on (from or to TLS)"
        found.append(InboundPort(first, harm, untracked=True, last=last))
        harm = "sites where UDP is blocked may not reach this relay"
        ports = sorted({port for _, port in settings.relay.tls_listen})
        found += [InboundPort(port, harm, protocol="tcp") for port in ports]
    return tuple(found)


def examine_relays(
    cluster: ClusterStatus, settings: Settings, *, agent_pid: int | None
) -> Iterator[Finding]:
    """All that concerns relays. `cluster`: that part of the agent's status.

    Reads which programs use the relay's ports.
    """
    nat_traversal, peers = cluster.nat_traversal, cluster.peers
    yield from shared_endpoint_findings(cluster.shared_endpoints)
    relaying = nat_traversal.relaying
    yield from used_relay_findings(
        nat_traversal.relays,
        peers,
        tunnels=not (cluster.tunnel.needed and cluster.tunnel.problem),
        is_relay=relaying is not None,
    )
    if relaying is not None:
        far = any(peers.get(row.name) for row in TRANSPORTS.values() if row.encrypted)
        far = far or bool(peers.get("unreached"))
        yield from own_relay_findings(relaying, cluster.tunnel.port, far=far)
        yield from relay_port_findings(settings, agent_pid)
        yield from relay_tls_findings(nat_traversal.relaying_tls)
        if relaying.active:
            yield from _forwarding()


def shared_endpoint_findings(shared: Iterable[SharedEndpoint]) -> Iterator[Finding]:
    """A warning for each endpoint of this node that other nodes name too. Pure."""
    for each in shared:
        yield warn(
            "endpoint-shared",
            f"the endpoint {each.endpoint} of this node is also that of {', '.join(each.nodes)}",
            "at most one of them is reached there",
            "forward a port of its own to each, and name that in `tunnel_endpoints` of its "
            "agent's configuration",
        )


# Relays that this node uses


def used_relay_findings(
    relays: RelaysStatus,
    peers: Mapping[str, int],
    *,
    tunnels: bool = True,
    is_relay: bool = False,
) -> Iterator[Finding]:
    """Whether the relays that this node knows answer it, and lead to each peer. Pure.

    `tunnels`: this node has what it needs for them; without, it asks no relay, and none would help.
    `is_relay`: it is one itself, so the cluster has one.
    """
    if not tunnels:
        return
    silent = [each.name for each in relays.relays if not each.answers]
    answering = len(relays.relays) - len(silent)
    if silent and not answering:
        yield warn(
            "relays-silent",
            f"no relay answers over UDP ({', '.join(silent)})",
            "nodes that cannot be reached directly are reached over TLS (TCP 443), which is slow, "
            "or not at all",
            "let UDP out of the site to the relays; if that is so, look at the relays: their "
            "agents, and the firewalls in front of them (limpet doctor there)",
        )
    elif silent:
        yield warn(
            "relays-silent",
            f"{len(silent)} of {len(relays.relays)} relays do not answer over UDP: "
            f"{', '.join(silent)}",
            "the others take their place; when those go too, some pods are not reached",
            "look at them: limpet doctor there",
        )
    elif answering:
        yield ok(f"relays that answer: {', '.join(each.name for each in relays.relays)}")
    elif peers["unreached"] and not is_relay:
        yield warn(
            "no-relay",
            "the cluster has no relay, and there are nodes that are not reached",
            "where NATs or firewalls let neither end reach the other, only a relay helps",
            "give a node with a public address the role: limpet node set NAME --add-role relay",
        )
    yield from _pairs(relays.pairs)


def _pairs(pairs: Iterable[RelayedPair]) -> Iterator[Finding]:
    by_peer: dict[str, list[RelayedPair]] = {}
    for pair in pairs:
        by_peer.setdefault(pair.peer, []).append(pair)
    for peer, ways in by_peer.items():
        problems = [f"{way.relay} over {way.over}: {way.problem}" for way in ways]
        if all(way.problem and not way.endpoint for way in ways):
            yield warn(
                "relay-not-leading",
                f"no relay leads to {peer} ({'; '.join(problems)})",
                "its pods are reached directly or not at all",
                f"limpet path, to an address of {peer} and with --probe, tells what was tried",
            )


# The relay that it is


def own_relay_findings(relaying: Relaying, tunnel_port: int, *, far: bool) -> Iterator[Finding]:
    """Whether this relay works and is reached. `far`: there are nodes of other sites. Pure."""
    if relaying.trouble:
        yield error(
            "relay-role",
            f"this node is a relay, and of little use: {relaying.trouble}",
            "nodes behind NATs do not reach each other by it",
            "do what the message says, or: limpet node set NAME --remove-role relay",
        )
    if not relaying.active:
        if not relaying.trouble:
            yield error(
                "relay-role",
                "this node has the role relay, and relays nothing",
                "nodes behind NATs do not reach each other by it",
                "it has no tunnel's port: see what doctor says of the tunnel",
            )
        return
    span = "{} to {}".format(*relaying.ports)
    hello_s, ask_s, check_s = (relaying.heard_s[kind] for kind in ("hello", "ask", "check"))
    silent_s = relaying.for_s if hello_s is None else hello_s
    if far and silent_s > _ASKED_WITHIN_S:
        yield warn(
            "relay-not-greeted",
            f"no node has greeted this relay for {silent_s / 60:.0f} minutes, as each that reaches "
            "it does",
            f"UDP port {tunnel_port} is perhaps closed in front of it, or its public address is "
            "another",
            f"let UDP to {tunnel_port} and {span} in, and TCP to its TLS port; behind a "
            "port-forward name the outer address in tunnel_endpoints",
        )
    elif ask_s is not None and ask_s > _CHECKED_WITHIN_S and (check_s is None or check_s > ask_s):
        yield warn(
            "relay-ports-closed",
            "nodes ask this relay for ports, and nothing comes to these",
            f"UDP ports {span} are perhaps closed in front of it",
            f"let UDP to {span} in; a port-forward has to keep these numbers",
        )
    elif not relaying.trouble:
        yield ok(
            f"a relay on UDP ports {tunnel_port} and {span}: {counted(len(relaying.pairs), 'pair')}"
        )


def relay_port_findings(settings: Settings, agent_pid: int | None) -> Iterator[Finding]:
    """Whether no other program uses the relay's UDP ports."""
    first, last = settings.relay.ports
    held = [each for each in port_holders("udp", first, last) if each.pid != agent_pid]
    if held:
        names = ", ".join(f"{each.port} by {each}" for each in held[:5])
        yield error(
            "relay-ports-taken",
            f"UDP ports of relay_ports ({first} to {last}) are used by others: {names}"
            + (", …" if len(held) > 5 else ""),
            "those programs hear nothing there, since these ports are the relay's alone; and of "
            "pairs that get them some packets are lost",
            "move those programs, or set other relay_ports in the agent's configuration and "
            "restart it",
        )
    yield from _given_out(first, last)


def _given_out(first: int, last: int) -> Iterator[Finding]:
    """A warning where the kernel may give one of the relay's ports to any program."""
    words = (read_sysctl("net/ipv4/ip_local_port_range") or "").split()
    if len(words) != 2 or int(words[1]) < first or last < int(words[0]):
        return
    reserved = (read_sysctl("net/ipv4/ip_local_reserved_ports") or "").split(",")
    spans = [each.partition("-") for each in reserved if each.strip()]
    if not any(int(low) <= first and last <= int(high or low) for low, _, high in spans):
        yield warn(
            "relay-ports-given-out",
            f"relay_ports ({first} to {last}) are in the range that the kernel gives to programs "
            f"(net.ipv4.ip_local_port_range, {words[0]} to {words[1]})",
            "answers to a program that was given one of them get lost",
            f"sysctl -w net.ipv4.ip_local_reserved_ports={first}-{last}, or other relay_ports",
        )


def relay_tls_findings(relaying_tls: RelayingTls | None) -> Iterator[Finding]:
    """Whether the relay listens for TLS, and which program has the port if not."""
    if relaying_tls is None:
        return
    for at, why in relaying_tls.troubles.items():
        port = int(at.rpartition(":")[2])
        holders = port_holders("tcp", port, port)
        by = f", which {_joined(holders)} has" if holders else ""
        yield error(
            "relay-tls-port",
            f"this relay does not listen on TCP port {port}{by}: {why}",
            "sites where UDP is blocked do not reach others by it",
            "free the port (the agent tries again by itself), or set another relay_tls_listen in "
            "its configuration and restart it; few sites let TCP out to other ports than 443",
        )
    if not relaying_tls.troubles and relaying_tls.listen:
        ports = ", ".join(at.rpartition(":")[2] for at in relaying_tls.listen)
        yield ok(f"a relay in TLS on TCP port {ports}: {counted(len(relaying_tls.nodes), 'node')}")


def _joined(holders: Iterable[PortHolder]) -> str:
    return " and ".join(dict.fromkeys(map(str, holders)))


def _forwarding() -> Iterator[Finding]:
    try:
        blocked = blocked_versions()
    except LimpetError:
        return  # a finding of the features
    for version, chain in blocked.items():
        yield warn(
            "relay-by-agent",
            f"relayed packets of IPv{version} pass through the agent, since {chain}",
            "this relay is slower than it could be, and takes more of the processor",
            "nothing, while it is fast enough; else have that chain drop what it should by rules, "
            "and accept the rest",
        )
