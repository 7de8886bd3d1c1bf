"""What became of a packet that left this node, by what is known of the node that it went to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from limpet.agent.status.paths import PathAnswer, PathStatus
from limpet.base.addresses import Address
from limpet.base.errors import LimpetError
from limpet.base.ownership import VXLAN_IFNAME_PREFIX
from limpet.cli.commands.path import silent
from limpet.cli.trace.verdict import Traced, TraceStep, link_out, passed, reached
from limpet.datapath.node.pod.attachment import Attachment


@dataclass(frozen=True, slots=True)
class TraceQuestion:
    """What a person asks, with the ends found."""

    source: Address
    target: Address
    protocol: str
    port: int
    sender: Attachment | None
    """The pod that sends; None: it is on another node."""
    receiver: Attachment | None
    """The pod that gets it, where it is here."""
    path: PathStatus | None = None
    """As the agent plans it."""
    why_no_path: str = ""
    """Why the agent did not tell it; empty: it did, or plans none."""


def beyond(
    question: TraceQuestion,
    there: Sequence[TraceStep],
    back: Sequence[TraceStep],
    words: str,
    probed: Callable[[], PathAnswer],
) -> Traced:
    """It left this node, or went to a pod of it, and nothing came back to the pod.

    `probed`: what the agent says after it has probed the way; its LimpetError is told.
    """
    stations, left = passed(there), link_out(there)
    if back:
        came = "an answer came back to this node, and did not get to the pod"
        return Traced(words, False, [*stations, *passed(back)], came, "limpet doctor")
    if question.receiver is not None:
        got = "it was delivered to the pod's interface on this node, and the pod does not answer"
        return Traced(words, None, stations, got, "see what listens in that pod, and its firewall")
    if not left:
        return Traced(words, None, stations, "it went out by the bridge, and nothing answers", "")
    where = f"it left this node by {left}"
    path = question.path
    node = path.there.target_node if path is not None else ""
    outer = reached(there, "inet", "output_first") or question.source.version == 6
    if left.startswith(VXLAN_IFNAME_PREFIX) and not outer:
        why = f"{left} took it and sent nothing: it knows no MAC or no node for that address"
        return Traced(words, False, stations, why, "bridge fdb; ip neigh; limpet doctor")
    if question.why_no_path:
        unknown = f"{where}; which node has that address is not known ({question.why_no_path})"
        return Traced(words, None, stations, unknown, "limpet doctor")
    if not node:
        return Traced(words, None, stations, f"{where}; no node of the cluster is known there", "")
    is_silent, why_unknown = _is_silent(probed)
    if is_silent:
        return Traced(
            words,
            False,
            stations,
            f"{where}, and node {node} is silent: its agent answers no probe either",
            f"it is off or cut off, or the way to it is closed: limpet path {question.source} "
            f"{question.target} --probe",
        )
    same = f"limpet trace {question.source} {question.target}"
    answers = (
        f"whether node {node} answers is not known ({why_unknown})"
        if is_silent is None
        else f"node {node} answers probes, so the packet is lost on its side or after it"
    )
    advice = f"run `{same}` on {node}, which waits for packets, and again here meanwhile"
    return Traced(words, None, stations, f"{where}; {answers}", advice)


def _is_silent(probed: Callable[[], PathAnswer]) -> tuple[bool | None, str]:
    """Whether the target's node answers no probe; None: why that is not known is told beside it."""
    try:
        answer = probed()
    except LimpetError as error:
        return None, str(error)
    if not answer.probes:
        return None, "no probe is sent to it, as to nodes that flannel runs"
    return bool(silent(answer.probes)), ""
