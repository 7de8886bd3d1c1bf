"""`limpet path` and `limpet peer list`: how this node reaches others."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.structs import asdict

from limpet.agent.client import ask
from limpet.agent.policies.said import FlowLine, Judged
from limpet.agent.settings import load_settings
from limpet.agent.status.paths import Leg, PathAnswer, PathStatus, Peers, PeerStatus, ProbeStatus
from limpet.agent.status.services import EndpointStatus, ServiceWay
from limpet.cli.answers import PathJudged
from limpet.cli.on_node import on_node
from limpet.cli.options import Config, Format, group
from limpet.cli.output import Output, duration, put, put_table, say, show, show_table
from limpet.cluster.topology.transports import PROBE_WORDS, TRANSPORTS

_ASKED = {kind.name.lower(): words for kind, words in PROBE_WORDS.items()}
_PEER_WIDE = ("segments", "behind", "uid")


class PortProtocol(StrEnum):
    TCP = "tcp"
    UDP = "udp"
    SCTP = "sctp"


_WHAT = "An address, a pod of any node as NAMESPACE/NAME, or a node."
_TARGET = f"{_WHAT[:-1]}; a Service, by name or cluster address, leads to its endpoints."

peer = group("Other nodes, seen from this one.")


@peer.command("list")
@on_node
def peer_list(
    every: Annotated[bool, typer.Option("--all", help="Show removed nodes too.")] = False,
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """How each other node is reached, or why it is not."""
    answer = ask(load_settings(config).folders.socket, "peers", Peers, all=every)
    rows = [peer_row(each) for each in answer.peers]
    show_table(answer, output, rows, nothing="no other node is known here", wide=_PEER_WIDE)


@on_node
def path(
    origin: Annotated[str, typer.Argument(metavar="POD|NODE|IP", help=_WHAT)],
    target: Annotated[str, typer.Argument(metavar="POD|NODE|SERVICE|IP", help=_TARGET)],
    config: Config = None,
    output: Format = Output.TABLE,
    probe: Annotated[
        bool, typer.Option("--probe", help="Ask the other node too, and show round trips.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=1,
            max=65535,
            help="Tell also whether policies allow a connection to this port.",
        ),
    ] = None,
    protocol: Annotated[
        PortProtocol, typer.Option("--protocol", case_sensitive=False, help="Protocol of --port.")
    ] = PortProtocol.TCP,
) -> None:
    """The way between two addresses, in both directions; exit code 1 when there is none, or when
    policies allow no connection to --port, or the Service refuses it."""
    agent = load_settings(config).folders.socket
    answer = ask(agent, "path", PathAnswer, origin=origin, target=target, probe=probe)
    judged = None if port is None else _judged(agent, answer, protocol, port)
    refused = "" if port is None else refusal(answer.service, protocol, port)
    if output.is_document and judged is not None:
        known = asdict(answer)
        show(PathJudged(**known, policies=judged.flows, refused=refused), output)
    else:
        told = service_lines(answer.service, answer.paths) if answer.service is not None else []
        show(answer, output, *told, *(line for each in answer.paths for line in path_lines(each)))
    if not output.is_document:
        for flow in judged.flows if judged is not None else ():
            for line in flow_lines(flow):
                put(line)
        if refused:
            put(refused)
        _put_probes(answer)
        for failure in answer.failed:
            say(f"limpet: the node is not as planned: {failure}")
    is_served = answer.service is None or bool(answer.paths)
    if not is_served or silent(answer.probes) or not all(x.reachable for x in answer.paths):
        raise typer.Exit(1)
    if refused or any(each.allowed is False for each in (judged.flows if judged else ())):
        raise typer.Exit(1)


def _judged(agent: Path, answer: PathAnswer, protocol: PortProtocol, port: int) -> Judged:
    flows = []
    for number, pairs in _flows(answer, protocol, port).items():
        asked = {"pairs": pairs, "protocol": protocol.value, "port": number}
        flows += ask(agent, "policy.judge", Judged, **asked).flows
    return Judged(flows=flows)


def _flows(
    answer: PathAnswer, protocol: PortProtocol, port: int
) -> dict[int, list[tuple[str, str]]]:
    """Pairs of addresses by the port where the target is asked: of a Service its endpoint's."""
    found: dict[int, list[tuple[str, str]]] = {}
    for each in answer.paths:
        numbers = [port]
        if answer.service is not None:
            numbers = [
                end.target_port
                for end in answer.service.endpoints
                if end.address == each.there.target
                and (end.service_port, end.protocol.lower()) == (port, protocol.value)
            ]
        for number in numbers:
            found.setdefault(number, []).append((each.there.origin, each.there.target))
    return found


def refusal(service: ServiceWay | None, protocol: PortProtocol, port: int) -> str:
    """Why whoever asks the Service at this port is refused, whatever policies say, in words; empty:
    an endpoint is asked, or no Service is."""
    if service is None:
        return ""
    asked = port, protocol.value.upper()
    of_it = f"{service.address} port {port}/{asked[1]}: refused"
    if asked not in ((each.number, each.protocol) for each in service.served):
        return f"{of_it}: Service {service.name} has no such port (it has {_ports(service)})"
    if not any(
        each.weight and (each.service_port, each.protocol) == asked for each in service.endpoints
    ):
        return f"{of_it}: no endpoint of that port is in rotation here"
    return ""


def flow_lines(flow: FlowLine) -> Iterator[str]:
    """What policies say of one pair of addresses, for a person."""
    words = {True: "allowed", False: "denied", None: "not known here"}
    what = f"{flow.protocol} {flow.port}"
    yield f"{what} from {flow.source} to {flow.target}: {words[flow.allowed]}"
    for end in flow.ends:
        where = f"{end.pod} ({end.address})" if end.pod else end.address
        yield f"  {end.direction} of {where}: {words[end.allowed]}: {end.why}"


def service_lines(service: ServiceWay, paths: Sequence[PathStatus]) -> Iterator[str]:
    """A Service and its endpoints, before the ways to those that are in rotation."""
    yield f"{service.address} is Service {service.name} ({_ports(service)})"
    used = [each for each in service.endpoints if each.weight]
    for each in used:
        total = sum(other.weight for other in used if other.port == each.port)
        share = f"{each.weight} of {total}" if len(used) > 1 else "all"
        doubt = f": {each.why}" if each.why else ""
        yield f"  {each.port}: {share} to {_endpoint(each)}{doubt}"
    for each in service.endpoints:
        if not each.weight:
            yield f"  {each.port}: none to {_endpoint(each)}: {each.why}"
    if not used:
        yield "  no endpoint is in rotation here: whoever asks is refused"
    hidden = len({each.address for each in used}) - len({each.there.target for each in paths})
    if hidden > 0:
        yield f"  ways to the first of them; {hidden} more are not told"


def _ports(service: ServiceWay) -> str:
    return _joined(service.ports) or "none"


def _endpoint(each: EndpointStatus) -> str:
    where = f"{each.address} port {each.target_port}"
    on = f" on {each.node}" if each.node else ""
    return f"{each.pod} ({where}){on}" if each.pod else f"{where}{on}"


def _put_probes(answer: PathAnswer) -> None:
    if answer.probes:
        put("")
        put_table([_probe_row(each) for each in answer.probes])
        for words in why_relayed(answer.paths, answer.probes, answer.nat):
            put(words)
        for name in silent(answer.probes):
            put(f"{name} does not answer: it is off or cut off, or its agent does not run")


def silent(probes: Iterable[ProbeStatus]) -> list[str]:
    """Names of nodes that were asked and do not answer at all."""
    heard: dict[tuple[str, str], bool] = {}
    for each in probes:
        key = each.node, each.uid
        heard[key] = heard.get(key, False) or each.answered > 0
    return [name for (name, _), has_answered in heard.items() if not has_answered]


def why_relayed(
    paths: Iterable[PathStatus],
    probes: Iterable[ProbeStatus],
    nat: Mapping[str, str],
) -> Iterator[str]:
    """Lines that say why nodes are reached by a relay. `nat`: before this node, by IP version."""
    relayed = {path.peer_uid for path in paths if path.there.relay}
    direct: dict[str, list[ProbeStatus]] = {}
    names = {}
    for each in probes:
        if each.uid in relayed:
            names[each.uid] = each.node
            direct.setdefault(each.uid, [])
            if each.asked == "tunnel" and not each.relay:
                direct[each.uid].append(each)
    for uid, ways in direct.items():
        name = names[uid]
        if any(each.answered for each in ways):
            yield f"{name} answers directly too: the pair leaves the relay when that has held"
            continue
        kinds = {nat[f"ipv{each.version}"] for each in ways} or set(nat.values())
        tried = _joined(each.endpoint for each in ways) or "nothing, no address of it is known"
        yield (
            f"{name} is reached by a relay, since it does not answer directly (tried: {tried}): "
            f"{_why_not_direct(name, kinds)}"
        )


def _why_not_direct(name: str, kinds: Container[str]) -> str:
    if "blocked" in kinds:
        return "no relay answers over UDP: it does not get out of this site, or they are off"
    there = f"`limpet status` on {name} tells what is in front of it"
    if "symmetric" in kinds:
        return (
            "this node's NAT is symmetric, and the other end's lets only known ports in, or is "
            f"symmetric too ({there})"
        )
    return f"perhaps its NAT is symmetric, or a firewall between the two drops UDP ({there})"


def _probe_row(each: ProbeStatus) -> dict[str, Any]:
    trips_ms = each.rtts_ms
    return {
        "node": each.node,
        "asked": _ASKED.get(each.asked, each.asked),
        "ip": f"IPv{each.version}",
        "address": each.endpoint or each.address,
        "by": f"relay {each.relay}" if each.relay else each.device,
        "path": "yes" if each.in_use else "",
        "answers": f"{each.answered}/{each.sent}",
        "rtt": f"{min(trips_ms):.2f} to {max(trips_ms):.2f} ms" if trips_ms else "",
    }


def path_lines(path: PathStatus) -> Iterator[str]:
    """One pair of addresses, for a person."""
    there, back = path.there, path.back
    origin = _end(there.origin, there.origin_pod, there.origin_node)
    yield f"{origin} -> {_end(there.target, there.target_pod, there.target_node)}"
    yield f"  there: {_leg(there)}"
    yield f"  back:  {_leg(back)}"
    for note in path.notes:
        yield f"  note:  {note}"
    match path.reachable:
        case True:
            yield "  reachable, as far as this node knows"
        case False:
            yield "  not reachable"
        case None:
            yield "  not known here"


def _end(address: str, pod: str, node: str) -> str:
    return " ".join([f"{pod} ({address})" if pod else address, *([f"on {node}"] if node else [])])


def _leg(leg: Leg) -> str:
    if leg.let_in is not None:
        sources, outer = _joined(leg.let_in.sources), _joined(leg.let_in.outer)
        ways = (
            *(["the tunnel"] if leg.let_in.tunnel else []),
            *([f"VXLAN from {outer}"] if outer else []),
        )
        return (
            f"{leg.origin_node} chooses (ask it); from it this node lets in {sources}, "
            f"by {' and by '.join(ways) or 'a plain route only'}"
        )
    if leg.reason:
        return f"{'no way' if leg.known else 'not known'}: {leg.reason}"
    size = f"MTU {leg.mtu_bytes}"
    if leg.rung == "local":
        return f"on this node, over {leg.device}, {size}"
    return f"{TRANSPORTS[leg.rung].path_words.format_map(asdict(leg))}, {size}"


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(texts)


def _via(each: PeerStatus) -> str:
    row = TRANSPORTS.get(each.rung)
    hops = _joined(each.next_hops)
    return hops if row is None else row.via_words.format_map({**asdict(each), "next_hops": hops})


def peer_row(each: PeerStatus) -> dict[str, Any]:
    """One peer, for a person."""
    return {
        "name": each.name,
        "state": each.state,
        "rung": each.rung,
        "device": _joined(each.devices),
        "via": _via(each),
        "mtu": each.mtu_bytes,
        "segments": _joined(each.segments),
        "behind": _joined(each.behind),
        "heard": "" if each.heard_s is None else f"{duration(each.heard_s)} ago",
        "uid": each.uid,
        "why": "; ".join([*filter(None, [each.why]), *each.without]),
    }
