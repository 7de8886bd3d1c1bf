"""What is said of a packet that left this node, by what is known of the node that it went to."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

import pytest
from msgspec import convert

from limpet.agent.settings import Settings
from limpet.agent.status.paths import PathAnswer, PathStatus, ProbeStatus
from limpet.base.errors import AgentUnavailable, LimpetError
from limpet.cli.trace import run
from limpet.cli.trace.run import follow, look_up
from limpet.cli.trace.tables import TABLE, TracedFlow
from limpet.cli.trace.verdict import POLICY, Traced, TraceStep
from tests.unit.cli.doctor.test_agent import pod

SOURCE, TARGET = ip_address("10.244.1.2"), ip_address("10.244.2.7")
LEG = {
    "origin": str(SOURCE),
    "origin_pod": "default/web-0",
    "origin_node": "n1",
    "target": str(TARGET),
    "target_pod": "",
    "target_node": "n2",
    "known": True,
    "reason": "",
    "let_in": None,
}
PATH = convert(
    {
        "there": LEG,
        "back": LEG,
        "reachable": True,
        "notes": [],
        "version": 4,
        "peer_uid": "u2",
    },
    PathStatus,
)
GONE = AgentUnavailable("ask the agent at /run/limpet/agent.sock: nobody listens there")
LEFT = [
    TraceStep(1, "inet", TABLE, chain, POLICY, 1, 0, "limpet0", "eth0")
    for chain in ("prerouting_first", "prerouting_last", "forward_last", "postrouting_last")
]


def probe(answered: int) -> ProbeStatus:
    return ProbeStatus(
        node="n2",
        uid="u2",
        asked="direct",
        address="192.0.2.2",
        endpoint="",
        relay="",
        device="eth0",
        version=4,
        in_use=True,
        sent=3,
        answered=answered,
        rtts_ms=[1.0] * answered,
    )


class PodSender:
    """A pod's packet to which nothing answers."""

    def __init__(self, _netns: str, *flow: Any) -> None:
        self.flow = TracedFlow(SOURCE, TARGET, "tcp", 40_000, 80)
        self.problem = ""

    def send(self) -> None:
        pass

    def answer(self) -> str:
        return ""

    def close(self) -> None:
        pass


class Watch:
    """Sees the packet leave."""

    def __init__(self, _text: str) -> None:
        self.events = LEFT

    def listen(self, *_arguments: object) -> None:
        pass

    def close(self) -> None:
        pass


Asked = Callable[..., Any]


def paths(probes: list[ProbeStatus] | LimpetError) -> Asked:
    """An agent that knows the way; `probes`: what comes of them."""

    def ask(_socket: object, verb: str, *_kind: object, **asked: Any) -> Any:
        if verb == "path" and not asked.get("probe"):
            return PathAnswer(paths=[PATH], probes=[], nat={}, failed=[])
        if verb == "path" and not isinstance(probes, LimpetError):
            return PathAnswer(paths=[PATH], probes=probes, nat={}, failed=[])
        raise probes if isinstance(probes, LimpetError) else GONE

    return ask


def nobody(*_arguments: object, **_asked: object) -> Any:
    raise GONE


def knows_no_way(_socket: object, verb: str, *_kind: object, **_asked: object) -> Any:
    if verb == "path":
        return PathAnswer(paths=[], probes=[], nat={}, failed=[])
    raise GONE


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> Callable[[Asked], Traced]:
    """Traces a packet that leaves by eth0."""
    monkeypatch.setattr(run, "read_pods", lambda _settings: [pod("web-0", f"{SOURCE}/24")])
    monkeypatch.setattr(run, "_uplinks", list)
    monkeypatch.setattr(run, "Sender", PodSender)
    monkeypatch.setattr(run, "TraceWatch", Watch)

    def traced(ask: Asked) -> Traced:
        monkeypatch.setattr(run, "ask", ask)
        question = look_up(Settings(), "web-0", str(TARGET), "tcp", 80)
        return follow(Settings(), question, 0.1)

    return traced


@pytest.mark.parametrize(
    ("ask", "arrived", "words"),
    [
        (paths([probe(3)]), None, "node n2 answers probes, so the packet is lost on its side"),
        (paths([probe(0)]), False, "and node n2 is silent: its agent answers no probe either"),
        (paths([]), None, "whether node n2 answers is not known (no probe is sent to it"),
        (paths(GONE), None, f"whether node n2 answers is not known ({GONE})"),
        (nobody, None, f"which node has that address is not known ({GONE})"),
        (knows_no_way, None, "no node of the cluster is known there"),
    ],
    ids=["answers", "silent", "by flannel", "agent ends", "agent is stopped", "no node's"],
)
def test_of_a_packet_that_left_no_more_is_said_than_is_known(
    trace: Callable[[Asked], Traced], ask: Asked, arrived: bool | None, words: str
) -> None:
    traced = trace(ask)

    assert traced.arrived is arrived
    assert words in traced.conclusion
    assert traced.advice or ask is knows_no_way
