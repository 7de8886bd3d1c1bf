"""What the agent says of itself and of its pods."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from limpet import __version__
from limpet.agent.client import AnotherVersion
from limpet.agent.settings import Settings
from limpet.agent.status.node import FEW_ADDRESSES, SegmentUse, Status
from limpet.agent.status.said import LastRound
from limpet.base.errors import AgentUnavailable, LimpetError
from limpet.base.node_state import PORTS_OF_A_NODE, PortRange
from limpet.cli.doctor.findings import Finding, error, ok, warn
from limpet.cli.install.units.agent_pod import BY_UNIT, AgentCare
from limpet.cli.output import count, counted
from limpet.datapath.node.pod.attachment import Attachment
from limpet.datapath.node.ruleset import HostPort, plan_host_ports_of


def unheard(settings: Settings, problem: LimpetError, care: AgentCare = BY_UNIT) -> Finding:
    """What it means that the agent said nothing that is understood."""
    if isinstance(problem, AgentUnavailable):
        return error(
            "agent-silent",
            f"the agent does not answer at {settings.folders.socket}",
            f"pods can neither be started nor removed: {problem}",
            care.start,
        )
    if isinstance(problem, AnotherVersion):
        return error(
            "agent-version",
            str(problem),
            "it was not restarted after an upgrade, and its state is not known here",
            care.restart,
        )
    return error(
        "agent-unclear", str(problem), "the state of this node is not known", "limpet status"
    )


def agent_findings(status: Status, care: AgentCare = BY_UNIT) -> Iterator[Finding]:
    """What the agent's own words amount to. Pure."""
    if status.ready:
        yield ok(f"the agent answers and is ready ({counted(status.attachments, 'pod')} attached)")
    else:
        yield error(
            "agent-not-ready",
            f"the agent is not ready: {'; '.join(status.reasons)}",
            "pods cannot be started",
            "do what it says; `limpet status` shows whether that was it",
        )
    if status.closed:
        yield error(
            "policies-unheard",
            status.closed,
            "nothing but this node itself reaches its pods, and they reach nothing",
            "only the cluster's controller tells all of them, no neighbour does: limpet status "
            'says whether it is reached; with policies = "on" it is the API server',
        )
    if status.version != __version__:
        yield warn(
            "agent-version",
            f"the agent that runs is version {status.version}, this is {__version__}",
            "it was not restarted after an upgrade",
            care.restart,
        )
    yield from _round(status.last_round)
    for version in (4, 6):
        segments = [each for each in status.segments if each.version == version]
        yield from _segments(segments, in_cluster=status.cluster is not None)
    for found in status.findings:
        yield warn(
            "record-damaged",
            f"{found.path}: {found.problem}",
            "it is part of the record of addresses",
            found.advice,
        )
    for unknown in status.unknown_keys:
        yield warn(
            "network-key-unknown",
            f"network {unknown.network!r} has the key {unknown.key!r} in its configuration",
            "Limpet does not know it and leaves it out of account",
            "correct or remove it",
        )


def _round(last: LastRound) -> Iterator[Finding]:
    for failure in last.failed:
        yield error(
            "not-as-planned",
            f"the node is not as planned: {failure}",
            "the agent tries again in every round",
            "do what the message says; if it says nothing, read the agent's log (journalctl -u "
            "limpet-agent; of a pod, kubectl logs)",
        )
    if not last.failed:
        yield ok("links, routes, rules and nftables table are as planned")


def _segments(segments: Sequence[SegmentUse], *, in_cluster: bool) -> Iterator[Finding]:
    """`segments`: all of one IP version. A pod takes an address of any of them."""
    # A node of a cluster does not start with segments of its own configuration.
    how = (
        "in a cluster the controller grants it: limpet status says why it does not"
        if in_cluster
        else "segments in the agent's configuration"
    )
    another = f"give the node another segment ({how})"
    left, size = sum(each.left for each in segments), sum(each.size for each in segments)
    for each in segments:
        words = (
            f"segment {each.prefix}: {count(each.free)} of {count(each.size)} addresses free, "
            f"{count(each.bound)} kept for absent pods"
        )
        if left <= 0:
            yield error(
                "segment-full",
                words,
                "no more pods can be started on this node",
                f"{another}, or remove pods",
            )
        elif left < size * FEW_ADDRESSES and each.left < each.size * FEW_ADDRESSES:
            yield warn(
                "segment-nearly-full",
                words,
                "soon no more pods can be started on this node",
                another,
            )
        elif each.left <= 0:
            yield warn(
                "segment-used-up",
                words,
                f"new pods get addresses of the node's other segments: {count(left)} are left",
                "nothing, while the agent gets further segments (limpet status says if it does "
                "not)",
            )
        else:
            yield ok(words)


# Its pods.


def host_port_findings(
    pods: Iterable[Attachment], own_ports: Collection[PortRange] = ()
) -> Iterator[Finding]:
    """`pods`: in the order in which they were made; the last that asks for a port has it.
    `own_ports`: of the node, beside those that every node has. Pure."""
    own_ports = (*PORTS_OF_A_NODE, *own_ports)
    by_port: dict[tuple[str, str], list[tuple[HostPort, Attachment]]] = {}
    for pod in pods:
        for port in plan_host_ports_of([pod]):
            by_port.setdefault((port.map_name, port.key), []).append((port, pod))
    kept: dict[str, list[str]] = {}
    shared: dict[str, list[str]] = {}
    # A pod with both IP versions asks twice.
    for each in by_port.values():
        port, names = each[0][0], [_name(pod) for _, pod in each]
        if any(port.protocol.upper() == x and a <= port.port <= b for x, a, b in own_ports):
            kept[_port(port)] = list(dict.fromkeys((*kept.get(_port(port), ()), *names)))
        elif len(each) > 1:
            shared[_port(port)] = names
    for port_words, names in kept.items():
        yield warn(
            "host-port-of-node",
            f"{port_words} is the node's own, and the hostPort of {', '.join(names)}",
            "nobody reaches the pod by it: else other nodes, or people, would not reach the node",
            "give the pod another hostPort, or the node another port where it can have one "
            "(relay_tls_listen in a relay's configuration)",
        )
    for port_words, names in shared.items():
        yield warn(
            "host-port-shared",
            f"{port_words} is asked for by {len(names)} pods ({', '.join(names)}): "
            f"{names[-1]}, which was started last, has it",
            "nobody reaches the others by that port; each gets it when those after it are gone",
            "stop all of them but one, or give each a hostPort of its own",
        )


def _port(port: HostPort) -> str:
    at = f" at {port.host_address}" if port.host_address else ""
    return f"{port.protocol.upper()} port {port.port} of this node{at}"


def _name(pod: Attachment) -> str:
    name = f"{pod.pod.namespace}/{pod.pod.name}".strip("/")
    return name or f"container {pod.holder.container_id}"
