"""`limpet status`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any

import typer

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
from limpet.agent.status.node import Room, SegmentUse, Status
from limpet.agent.status.paths import Watched
from limpet.agent.status.services import ServicesStatus
from limpet.base.errors import AgentUnavailable, LimpetError
from limpet.cli.on_node import on_node
from limpet.cli.options import Config, Format
from limpet.cli.output import (
    Output,
    clear_screen,
    counted,
    duration,
    off_by,
    put,
    put_document,
    put_table,
    say,
)
from limpet.cluster.topology.transports import by_preference
from limpet.paths.watching import LONGEST_LOOK_S
from limpet.relay.status import RelayStatus, TlsRelay

_LOOK_AGAIN_S = 0.5
_WATCH_S = 5.0
"""So much longer than until the next look of --watch the agent asks peers often."""


@on_node
def status(
    config: Config = None,
    output: Format = Output.TABLE,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it again and again, until Ctrl-C.")
    ] = False,
    interval: Annotated[
        float,
        typer.Option(
            "--interval", min=0.1, help="How many seconds --watch waits between two looks."
        ),
    ] = 2.0,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until pods can be started, or --timeout is over.")
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.0, help="How many seconds --wait waits at most.")
    ] = 300.0,
) -> None:
    """What the agent of this node does; exit code 1 when no pod can be started."""
    if watch and wait:
        raise typer.BadParameter("--watch and --wait exclude each other", param_hint="--wait")
    agent = load_settings(config).folders.socket
    if watch:
        raise typer.Exit(_watch(agent, output, interval))
    if wait:
        _wait(agent, timeout)
    raise typer.Exit(_show(ask(agent, "status", Status), output))


def _show(found: Status, output: Output) -> int:
    """The exit code."""
    if output.is_document:
        put_document(found, output)
    else:
        _print_table(found)
    return 0 if takes_pods(found) else 1


def takes_pods(status: Status) -> bool:
    """Whether a pod could be started now: the agent is ready, and there is an address for it."""
    return status.ready and status.room is not Room.FULL


def _watch(agent: Path, output: Output, interval_s: float) -> int:
    """Until Ctrl-C; the exit code of the last look. An agent that is away may come back."""
    code = 1
    try:
        while True:
            try:
                found = ask(agent, "status", Status)
                if found.cluster is not None:
                    ask(agent, "watch", Watched, for_s=min(interval_s + _WATCH_S, LONGEST_LOOK_S))
            except AgentUnavailable as error:
                clear_screen()
                code = 1
                say(f"limpet: {error}")
            else:
                clear_screen()
                code = _show(found, output)
                if not output.is_document:
                    put("")
            time.sleep(interval_s)
    except KeyboardInterrupt:
        return code


def _wait(agent: Path, timeout_s: float) -> None:
    """Returns when a pod could be started. Raises: LimpetError when the time is over."""
    end_s = time.monotonic() + timeout_s
    told = ""
    while True:
        try:
            found = ask(agent, "status", Status)
            if takes_pods(found):
                return
            why = _readiness(found)
        except AgentUnavailable as error:
            why = str(error)
        if time.monotonic() >= end_s:
            raise LimpetError(f"status --wait: not ready within {timeout_s:g} s: {why}")
        if why != told:
            say(f"waiting: {why}")
            told = why
        time.sleep(_LOOK_AGAIN_S)


def _readiness(status: Status) -> str:
    if not status.ready:
        return f"not ready: {'; '.join(status.reasons)}"
    match status.room:
        case Room.FULL:
            return f"full, no further pod can be started: {status.why_full}"
        case Room.NEARLY_FULL:
            return f"ready, nearly full: {status.why_full}"
        case Room.FREE:
            return "ready"


def _print_table(status: Status) -> None:
    put(f"agent {status.version}, process {status.pid}, up {duration(status.uptime_s)}")
    put(_readiness(status))
    put(f"{counted(status.attachments, 'pod')} attached, bridge {status.bridge}")
    if status.closed:
        put(f"PODS ARE CLOSED: {status.closed}")
    last = status.last_round
    changes = counted(last.changes, "change")
    put(f"last round: {changes}, {len(last.failed)} failed, {last.took_ms:.1f} ms")
    for failure in last.failed:
        put(f"  failed: {failure}")
    if status.cluster is not None:
        put("")
        for line in cluster_lines(status.cluster):
            put(line)
    if status.segments:
        put("")
        put_table(
            [segment_row(segment) for segment in status.segments],
            ("segment", "size", "live", "resting", "bound", "free"),
        )
    if status.networks:
        put("")
        put_table(
            [
                {"network": each.name, "live": each.live, "bound": each.bound}
                for each in status.networks
            ],
            ("network", "live", "bound"),
        )
    found = len(status.findings) + len(status.unknown_keys)
    if found:
        put("")
        put(f"{counted(found, 'finding')}; `limpet doctor` explains them")


_UNCOUNTED = 1 << 32
"""Addresses that nobody fills a segment with."""


def segment_row(segment: SegmentUse) -> dict[str, Any]:
    """One segment, for a person."""
    found = {
        "segment": segment.prefix,
        "size": segment.size,
        "live": segment.live,
        "resting": segment.resting,
        "bound": segment.bound,
        "free": segment.free,
    }
    if segment.size >= _UNCOUNTED:
        found |= {"size": f"/{ip_network(segment.prefix).prefixlen}", "free": "never full"}
    return found


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
            f"{told.what}, refused ({counted(told.count, 'time')}); here {cluster.key} signs"
        )
    for each in cluster.claims:
        yield f"NODE {each.node} CLAIMS WHAT IS NOT ITS OWN: {each.what}"
    yield _controller(cluster.controller)
    if cluster.controller.segment_refused:
        yield f"  no further segment now: {cluster.controller.segment_refused}"
    if cluster.controller.refused:
        yield f"  the controller does not take now: {cluster.controller.refused}"
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
    silent = f"{cluster.silent_peers} of these silent, " if cluster.silent_peers else ""
    partly = f"{cluster.partly_reached_peers} of these in part, "
    silent += partly if cluster.partly_reached_peers else ""
    yield (
        f"{counted(sum(peers.values()), 'other node')}: {reached}{silent}"
        f"{peers.get('unreached', 0)} not reached, {peers.get('apart', 0)} in other communities; "
        f"revision {cluster.revision}"
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
            f"MTU {tunnel.mtu_bytes}; {counted(tunnel.peers, 'peer')}, {tunnel.sessions} with a "
            f"session, {tunnel.active} with traffic"
        )
    if tunnel.slow:
        yield "  slow: the userspace WireGuard is an old one, `limpet doctor` says what to do"


def _controller(controller: ControllerStatus) -> str:
    if controller.over:
        return (
            "this node was removed, and asks the controller only now and then whether it still is"
        )
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
    "unknown": "whether a NAT is in front of this node is not known (fewer than two others have "
    "seen it)",
    "blocked": "no relay answers over UDP: it does not get out of this site, or they are off",
}


def nat_traversal_lines(
    nat_traversal: NatTraversalStatus, links: Iterable[LinkStatus]
) -> Iterator[str]:
    """NATs, relays that are used, and the relay that the node is; nothing where there are none."""
    relays, tls = nat_traversal.relays, nat_traversal.tls
    addresses = [address for link in links for address in link.addresses]
    versions = {"ipv6" if ":" in address else "ipv4" for address in addresses}
    if relays.relays or relays.mapped:
        for version, kind in relays.nat.items():
            if version in versions:
                by_tls = (
                    "; others are reached by a relay in TLS" if kind == "blocked" and tls else ""
                )
                yield f"{version.replace('ipv', 'IPv')}: {_NATS[kind]}{by_tls}"
    if relays.endpoints:
        yield f"  others are told of it at {', '.join(relays.endpoints)}"
    mapping = relays.port_mapping
    if mapping is not None and mapping.by:
        yield f"  the gateway {mapping.gateway} gives it a port, by {mapping.by}"
    if relays.relays:
        names = [_relay(each, tls.get(each.uid)) for each in relays.relays]
        yield f"relays: {', '.join(names)}"
    relaying = nat_traversal.relaying
    if relaying is not None and relaying.active:
        first, last = relaying.ports
        pairs = counted(len(relaying.pairs), "pair")
        rate = relaying.bytes_per_s
        carried = "" if rate is None else f", {rate / 1e6:.3g} MB/s"
        yield (
            f"this node is a relay: {pairs} of at most {(last - first + 1) // 2}{carried}, "
            f"UDP ports {first} to {last}"
        )
        if relaying.node_bytes_per_s:
            yield f"  it takes {relaying.node_bytes_per_s / 1e6:.3g} MB/s of each node"
    if relaying is not None and (relaying.trouble or not relaying.active):
        yield f"  OF LITTLE USE AS A RELAY: {relaying.trouble or 'it has no tunnel'}"
    troubles = nat_traversal.relaying_tls.troubles if nat_traversal.relaying_tls is not None else {}
    for at, why in troubles.items():
        yield f"  NOTHING IS RELAYED IN TLS at {at}: {why}"


def _relay(relay: RelayStatus, tls: TlsRelay | None) -> str:
    udp = f"{relay.rtt_ms:.1f} ms" if relay.answers else "no answer over UDP"
    return f"{relay.name} {udp}" + (f", {tls.rtt_ms:.1f} ms in TLS" if tls else "")
