"""`limpet status`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import typer
from msgspec.structs import asdict

from limpet.agent.client import ask
from limpet.agent.settings import load_settings
from limpet.agent.status.cluster import (
    ApiServerStatus,
    ClusterStatus,
    ControllerStatus,
    LinkStatus,
    NatTraversalStatus,
    TunnelStatus,
)
from limpet.agent.status.node import Status
from limpet.agent.status.relays import RelayStatus, TlsRelay
from limpet.agent.status.services import ServicesStatus
from limpet.cli.on_node import on_node
from limpet.cli.options import Config, Format
from limpet.cli.output import Output, duration, off_by, put, put_document, put_table
from limpet.cluster.topology.transports import by_preference


@on_node
def status(config: Config = None, output: Format = Output.TABLE) -> None:
    """What the agent of this node does; exit code 1 when it is not ready."""
    found = ask(load_settings(config).folders.socket, "status", Status)
    if output.is_document:
        put_document(found, output)
    else:
        _print_table(found)
    if not found.ready:
        raise typer.Exit(1)


def _print_table(status: Status) -> None:
    ready = "ready" if status.ready else f"not ready: {'; '.join(status.reasons)}"
    put(f"agent {status.version}, process {status.pid}, up {duration(status.uptime_s)}")
    put(ready)
    put(f"{status.attachments} pods attached, bridge {status.bridge}")
    last = status.last_round
    put(f"last round: {last.changes} changes, {len(last.failed)} failed, {last.took_ms:.1f} ms")
    for failure in last.failed:
        put(f"  failed: {failure}")
    if status.cluster is not None:
        put("")
        for line in cluster_lines(status.cluster):
            put(line)
    if status.segments:
        put("")
        put_table(
            [{**asdict(segment), "segment": segment.prefix} for segment in status.segments],
            ("segment", "size", "live", "resting", "bound", "free"),
        )
    if status.networks:
        put("")
        put_table(
            [{**asdict(network), "network": network.name} for network in status.networks],
            ("network", "live", "bound"),
        )
    found = len(status.findings) + len(status.unknown_keys)
    if found:
        put("")
        put(f"{found} findings; `limpet doctor` explains them")


def cluster_lines(cluster: ClusterStatus) -> Iterator[str]:
    """How the node stands in its cluster, for a person."""
    key = f" (key {cluster.key})" if cluster.key else ""
    yield f"cluster {cluster.name or 'not known yet'}{key}, node {cluster.node} ({cluster.uid})"
    if cluster.removed:
        yield "THIS NODE WAS REMOVED from the cluster: it reaches no other node any more"
    elif not cluster.granted:
        yield "no grant of this node is known here"
    if cluster.cloned:
        yield "ANOTHER MACHINE HAS THIS NODE'S IDENTITY: nothing is published any more"
    for told in cluster.by_former_keys:
        yield (
            f"SOMEBODY HAS A FORMER KEY OF THE CLUSTER: {told.by or 'the controller'} tells "
            f"{told.what}, refused ({told.count} times); here {cluster.key} signs"
        )
    for each in cluster.claims:
        yield f"NODE {each.node} CLAIMS WHAT IS NOT ITS OWN: {each.what}"
    yield _controller(cluster.controller)
    if cluster.controller.refused:
        yield f"  no further segment now: {cluster.controller.refused}"
    for words in cluster.controller.told:
        yield f"  the controller says: {words}"
    if cluster.api_server is not None:
        yield from _api_server(cluster.api_server)
    if cluster.services is not None:
        yield from services_lines(cluster.services)
    links = [f"{each.ifname} ({', '.join(each.addresses)})" for each in cluster.links]
    yield f"links to other nodes: {', '.join(links) or 'none'}"
    yield from _tunnel(cluster.tunnel, "NO ENCRYPTED TUNNEL")
    if cluster.ipsec is not None:
        yield from _tunnel(cluster.ipsec, "NO TUNNEL BY IPSEC")
    yield from nat_traversal_lines(cluster.nat_traversal, cluster.links)
    peers = cluster.peers
    reached = "".join(
        f"{peers.get(row.name, 0)} by {row.words}, "
        for row in by_preference()
        if peers.get(row.name) or not row.encrypted
    )
    yield (
        f"{sum(peers.values())} other nodes: {reached}{peers.get('unreached', 0)} not reached, "
        f"{peers.get('apart', 0)} in other communities; revision {cluster.revision}"
    )
    for failure in cluster.last_round.failed:
        yield f"  failed: {failure}"
    for problem in cluster.disk:
        yield f"  on disk: {problem}"


MADE_BY = {
    "kernel": "kernel WireGuard",
    "userspace": "userspace WireGuard",
    "strongswan": "IPsec with ESP in userspace, strongSwan",
    "strongswan-kernel": "IPsec with the kernel's ESP, strongSwan",
}
"""What the agent calls a tunnel's backend, in words; a version may follow."""


def _tunnel(tunnel: TunnelStatus, lacking: str) -> Iterator[str]:
    """Nothing where there is no device, and none was needed yet."""
    if tunnel.problem:
        yield f"{lacking}: {tunnel.problem}"
    elif tunnel.backend:
        made_by = f"{MADE_BY[tunnel.backend]} {tunnel.version}".rstrip()
        yield (
            f"encrypted tunnel {tunnel.ifname}: {made_by}, UDP port {tunnel.port}, "
            f"MTU {tunnel.mtu_bytes}; {tunnel.peers} peers, {tunnel.sessions} with a "
            f"session, {tunnel.active} with traffic"
        )
    if tunnel.slow:
        yield "  slow: the userspace WireGuard is an old one, `limpet doctor` says what to do"


def _controller(controller: ControllerStatus) -> str:
    if controller.over:
        return f"no controller is asked any more: {controller.error}"
    for_ = duration(controller.for_s)
    if controller.connected:
        return f"connected to the controller at {controller.address} for {for_}"
    why = f": {controller.error}" if controller.error else ""
    return f"not connected to the controller at {controller.address} for {for_}{why}"


def _api_server(api: ApiServerStatus) -> Iterator[str]:
    at = f"API server at {api.server}" if api.server else "API server"
    for_ = duration(api.for_s)
    if api.connected:
        yield f"connected to the {at} for {for_}"
    else:
        yield f"not connected to the {at} for {for_}" + (f": {api.error}" if api.error else "")
    if api.refused:
        yield f"  this node's presence is not there: {api.refused}"
    if api.clock_ahead_s:
        yield f"  the clock of this machine is {off_by(api.clock_ahead_s)} of the API server's"
    for problem in api.unusable:
        yield f"  counts for nothing: {problem}"
    for words in api.told:
        yield f"  the controller says: {words}"


def services_lines(services: ServicesStatus) -> Iterator[str]:
    """Who serves Services here, and why."""
    by = f"served by this node, by {services.backend}" if services.on else "not served by Limpet"
    yield f"Services: {by} ({services.why})"
    if services.why_not_ebpf:
        yield f"  not by eBPF: {services.why_not_ebpf}"
    if services.kube_proxy:
        also = "has rules too" if services.on else "has rules"
        yield f"  kube-proxy {also}: {services.kube_proxy}"


# Between sites

_NATS = {
    "none": "no NAT in front of this node",
    "same": "behind a NAT that shows all others one port: most nodes can be reached directly",
    "symmetric": "behind a symmetric NAT, which shows each other node another port: those that let "
    "only known ports in are reached by a relay",
    "unknown": "whether a NAT is in front of this node is not known (only one other has seen it)",
    "blocked": "UDP does not get out of this site, as no relay answers: others are reached by a "
    "relay in TLS",
}


def nat_traversal_lines(
    nat_traversal: NatTraversalStatus, links: Iterable[LinkStatus]
) -> Iterator[str]:
    """NATs, relays that are used, and the relay that the node is; nothing where there are none."""
    relays = nat_traversal.relays
    has_ipv6 = any(":" in address for link in links for address in link.addresses)
    if relays.relays or relays.mapped:
        for version, kind in relays.nat.items():
            if version == "ipv4" or has_ipv6:
                yield f"{version.replace('ipv', 'IPv')}: {_NATS[kind]}"
    if relays.endpoints:
        yield f"  others are told of it at {', '.join(relays.endpoints)}"
    mapping = relays.port_mapping
    if mapping is not None and mapping.by:
        yield f"  the gateway {mapping.gateway} gives it a port, by {mapping.by}"
    if relays.relays:
        tls = nat_traversal.tls
        names = [_relay(each, tls.get(each.uid)) for each in relays.relays]
        yield f"relays: {', '.join(names)}"
    relaying = nat_traversal.relaying
    if relaying is not None and relaying.active:
        first, last = relaying.ports
        yield f"this node is a relay: {len(relaying.pairs)} pairs, UDP ports {first} to {last}"
    if relaying is not None and (relaying.trouble or not relaying.active):
        yield f"  OF LITTLE USE AS A RELAY: {relaying.trouble or 'it has no tunnel'}"
    troubles = nat_traversal.relaying_tls.troubles if nat_traversal.relaying_tls is not None else {}
    for at, why in troubles.items():
        yield f"  NOTHING IS RELAYED IN TLS at {at}: {why}"


def _relay(relay: RelayStatus, tls: TlsRelay | None) -> str:
    udp = f"{relay.rtt_ms:.1f} ms" if relay.answers else "no answer over UDP"
    return f"{relay.name} {udp}" + (f", {tls.rtt_ms:.1f} ms in TLS" if tls else "")
