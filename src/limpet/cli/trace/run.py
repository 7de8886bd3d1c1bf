"""A packet is sent and followed, and what became of it is said in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from ipaddress import ip_address

from limpet.agent.client import ask
from limpet.agent.settings import Settings
from limpet.agent.status.node import Status
from limpet.agent.status.paths import PathAnswer, PathStatus
from limpet.base.addresses import Address
from limpet.base.errors import LimpetError
from limpet.base.ownership import POD_GROUP, ROUTE_TABLE
from limpet.cli.doctor.machine.traps import links_down
from limpet.cli.doctor.pods.attached import read_pods
from limpet.cli.trace.beyond import TraceQuestion, beyond
from limpet.cli.trace.packet import Sender
from limpet.cli.trace.tables import TracedFlow, ruleset
from limpet.cli.trace.verdict import (
    Station,
    Traced,
    dropped,
    link_out,
    passed,
    reached,
)
from limpet.cli.trace.watch import TraceWatch
from limpet.datapath.node.pod.attachment import Attachment
from limpet.linux.netlink.socket import RouteSocket

_UNREACHABLE = frozenset({6, 7, 8})
"""RTN_BLACKHOLE, RTN_UNREACHABLE, RTN_PROHIBIT. Source: include/uapi/linux/rtnetlink.h."""


def look_up(
    settings: Settings, origin: str, target: str, protocol: str, port: int
) -> TraceQuestion:
    """The ends by name or address; the agent knows pods of other nodes, this node's pods are found
    without it. Raises: LimpetError."""
    pods = read_pods(settings)
    sender, receiver = _find(pods, origin), _find(pods, target)
    path: PathStatus | None = None
    problem: LimpetError | None = None
    try:
        answer = ask(settings.folders.socket, "path", PathAnswer, origin=origin, target=target)
        path = next(iter(answer.paths), None)
    except LimpetError as error:
        problem = error
    source = _address(origin, sender, path.there.origin if path else "")
    end = _address(target, receiver, path.there.target if path else "")
    if source is not None and end is not None and sender is not None:
        own = [each.ip for each in sender.addresses]
        source = next((each for each in own if each.version == end.version), None)
    if source is None or end is None or source.version != end.version:
        raise LimpetError(
            f"trace {origin} to {target}: "
            + (str(problem) if problem else "no address of one IP version is known of both")
            + (" (without the agent: addresses, or pods of this node)" if problem else "")
        )
    if sender is None and receiver is None:
        raise LimpetError(
            f"trace: neither {origin} nor {target} is a pod of this node: run it on the "
            "node of one of them (limpet pod list, where the controller runs)"
        )
    why_no_path = str(problem or "")
    return TraceQuestion(source, end, protocol, port, sender, receiver, path, why_no_path)


def _find(pods: list[Attachment], word: str) -> Attachment | None:
    """By name or address. Raises: LimpetError where several pods have that name."""
    named: dict[str, Attachment] = {}
    for pod in pods:
        name = f"{pod.pod.namespace}/{pod.pod.name}"
        if word in map(str, (each.ip for each in pod.addresses)):
            return pod
        if word in (pod.pod.name, name):
            named.setdefault(name, pod)
    if len(named) > 1:
        raise LimpetError(
            f"trace: {word}: several pods of this node have that name: "
            f"{', '.join(sorted(named))} (say which, as NAMESPACE/NAME)"
        )
    return next(iter(named.values()), None)


def _address(name: str, pod: Attachment | None, told: str) -> Address | None:
    for text in (name, told, str(pod.addresses[0].ip) if pod is not None else ""):
        with suppress(ValueError):
            return ip_address(text)
    return None


def follow(settings: Settings, question: TraceQuestion, within_s: float) -> Traced:
    """Sends the packet, or waits for another node's; says where it stops. Raises: LimpetError."""
    with ExitStack() as stack:
        sender: Sender | None = None
        flow = TracedFlow(question.source, question.target, question.protocol, 0, question.port)
        if question.sender is not None:
            netns = question.sender.netns.path
            sender = Sender(
                netns, question.source, question.target, question.protocol, question.port
            )
            stack.callback(sender.close)
            flow = sender.flow
        port_link = question.sender.link.host_ifname if question.sender is not None else ""
        vxlan_port = _vxlan_port(settings)
        text = ruleset(flow, port_link=port_link, uplinks=_uplinks(), vxlan_port=vxlan_port)
        watch = TraceWatch(text)
        stack.callback(watch.close)
        said = ""

        def over() -> bool:
            nonlocal said
            said = said or (sender.answer() if sender is not None else "")
            return bool(said)

        if sender is not None:
            sender.send()
        watch.listen(question.source.packed, over, within_s)
        if sender is None:
            return _arrived_here(question, watch)
        return _sent(settings, question, sender, watch, said)


def _vxlan_port(settings: Settings) -> int:
    with suppress(LimpetError):
        cluster = ask(settings.folders.socket, "status", Status).cluster
        return cluster.vxlan_port if cluster is not None else 0
    return 0


def _uplinks() -> list[str]:
    """By which packets of other nodes come in."""
    with RouteSocket() as route:
        links = route.links().values()
    return [
        each.ifname
        for each in links
        if each.up and each.ifname != "lo" and each.group != POD_GROUP and each.kind != "bridge"
        and not each.master_ifindex
    ]  # fmt: skip


def _arrived_here(question: TraceQuestion, watch: TraceWatch) -> Traced:
    words = f"packets from {question.source} to {question.target}"
    events = [each for each in watch.events if each.outward]
    if drop := dropped(events):
        where = passed(events)
        by = watch.words(drop)
        return Traced(words, False, _stopped(where, by), f"stopped on this node by {by}", "")
    if not events:
        return Traced(
            words,
            None,
            conclusion="nothing came to this node",
            advice="run `limpet trace` with the same ends on the node that sends, meanwhile",
        )
    if reached(events, "bridge", "postrouting_last"):
        done = "they got to the pod's own interface"
        return Traced(words, True, passed(events), done, "whether it answers is the pod's business")
    if reached(events, "inet", "prerouting_last"):
        return Traced(words, False, passed(events), _no_route(question.target), "limpet doctor")
    return Traced(words, False, passed(events), "they came in and got no further", "limpet doctor")


def _sent(
    settings: Settings, question: TraceQuestion, sender: Sender, watch: TraceWatch, said: str
) -> Traced:
    words = sender.flow.words
    there = [each for each in watch.events if each.outward and not each.arp]
    requests = [each for each in watch.events if each.arp]
    back = [each for each in watch.events if not each.outward]
    if said:
        return Traced(words, True, passed(there), f"it arrived, and {said}")
    if drop := dropped(there):
        by = watch.words(drop)
        return Traced(words, False, _stopped(passed(there), by), f"stopped on this node by {by}")
    if (drop := dropped(requests)) and not there:
        by = watch.words(drop)
        return Traced(
            words,
            False,
            _stopped(passed(requests), by),
            f"the pod's question for its gateway's MAC is stopped by {by}",
            "it sends from a MAC or an address that is not its own: see what changed in the pod "
            "(limpet help decisions/port-security)",
        )
    if drop := dropped(back):
        by = watch.words(drop)
        stations = _stopped([*passed(there), *passed(back)], by)
        return Traced(words, False, stations, f"the answer came back and was stopped by {by}")
    if not there:
        why = sender.problem or _link_problem(question.sender)
        return Traced(words, False, [], f"nothing left the pod: {why}", "limpet doctor")
    left = link_out(there)
    if not left and reached(there, "inet", "prerouting_last"):
        if reached(there, "inet", "forward_last"):
            lost = "it was let through by forwarding, and left by no link (limpet doctor)"
            return Traced(words, False, passed(there), lost)
        return Traced(words, False, passed(there), _no_route(question.target), "limpet doctor")
    ends = {"origin": str(question.source), "target": str(question.target)}
    probed = partial(ask, settings.folders.socket, "path", PathAnswer, **ends, probe=True)
    return beyond(question, there, back, words, probed)


def _stopped(stations: list[Station], by: str) -> list[Station]:
    if not stations:
        return [Station("the node", stopped=True, by=by)]
    last = stations[-1]
    return [*stations[:-1], Station(last.words, last.link, stopped=True, by=by)]


def _link_problem(pod: Attachment | None) -> str:
    if pod is None:
        return "it is on another node"
    with RouteSocket() as route:
        link = route.link(pod.link.host_ifname)
    if link is None:
        return f"its host end {pod.link.host_ifname} is gone"
    if not link.up:
        return f"its host end {pod.link.host_ifname} is down"
    return "its interface is down, has no route, or nobody answers for its gateway's MAC"


def _no_route(target: Address) -> str:
    """Why routing dropped it."""
    with RouteSocket() as route:
        routes = [each for each in route.routes(table=ROUTE_TABLE) if target in each.prefix]
    down = _down()
    best = max(routes, key=lambda each: (each.prefix_length, -each.metric), default=None)
    if best is None:
        return f"routing dropped it: table {ROUTE_TABLE} has no route to {target}{down}"
    if best.type in _UNREACHABLE:
        return (
            f"routing dropped it: no route leads to {target}, so that of table {ROUTE_TABLE} for "
            f"{best.prefix} says unreachable (no way to its node is planned or proven){down}"
        )
    return f"routing dropped it, though table {ROUTE_TABLE} has a route to {best.prefix}{down}"


def _down() -> str:
    found = links_down()
    return f"; {', '.join(found)} is down" if found else ""


def lines(traced: Traced) -> Iterator[str]:
    """For a person."""
    yield traced.words
    for each in traced.stations:
        link = f" ({each.link})" if each.link else ""
        yield f"  {'stop' if each.stopped else 'pass'}  {each.words}{link}"
        if each.by:
            yield f"        by {each.by}"
    yield traced.conclusion
    if traced.advice:
        yield f"do: {traced.advice}"
