"""What is said of a packet that left this node, by what is known of the node that it went to."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path

import pytest
from msgspec import convert

from limpet.agent.client import ask
from limpet.agent.settings import Settings
from limpet.agent.status.paths import PathAnswer, PathStatus, ProbeStatus
from limpet.base.settings import Folders
from limpet.cli.trace.beyond import beyond
from limpet.cli.trace.run import look_up
from limpet.cli.trace.tables import TABLE
from limpet.cli.trace.verdict import POLICY, TraceStep
from limpet.datapath.node.pod.attachments import Attachments
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


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Of a node with one pod, whose agent is stopped."""
    attachments = Attachments(tmp_path / "attachments")
    attachments.put(pod("web-0", f"{SOURCE}/24"))
    return Settings(folders=Folders(run_dir=tmp_path, socket=tmp_path / "agent.sock"))


@pytest.mark.parametrize(
    ("path", "probes", "arrived", "words"),
    [
        (PATH, [probe(3)], None, "node n2 answers probes, so the packet is lost on its side"),
        (PATH, [probe(0)], False, "and node n2 is silent: its agent answers no probe either"),
        (PATH, [], None, "whether node n2 answers is not known (no probe is sent to it"),
        (PATH, None, None, "whether node n2 answers is not known (ask the agent at "),
        (None, None, None, "no node of the cluster is known there"),
    ],
    ids=["answers", "silent", "by flannel", "agent ends", "no node's"],
)
def test_of_a_packet_that_left_no_more_is_said_than_is_known(
    settings: Settings,
    path: PathStatus | None,
    probes: list[ProbeStatus] | None,
    arrived: bool | None,
    words: str,
) -> None:
    """`probes`: what comes of them; None: the agent, asked for them, has ended."""
    question = look_up(settings, "web-0", str(TARGET), "tcp", 80)
    known = replace(question, path=path, why_no_path="")
    gone = partial(ask, settings.folders.socket, "path", PathAnswer)
    answer = PathAnswer(paths=[PATH], probes=probes or [], nat={}, failed=[])
    traced = beyond(known, LEFT, [], "it", gone if probes is None else lambda: answer)

    assert traced.arrived is arrived
    assert traced.conclusion.startswith("it left this node by eth0")
    assert words in traced.conclusion
    assert traced.advice or path is None


def test_where_the_agent_is_stopped_its_pods_are_found_and_the_way_is_not_known(
    settings: Settings,
) -> None:
    question = look_up(settings, "web-0", str(TARGET), "tcp", 80)
    traced = beyond(question, LEFT, [], "it", lambda: pytest.fail("nobody is there to be asked"))

    assert (question.source, question.target, question.path) == (SOURCE, TARGET, None)
    assert traced.arrived is None
    assert "which node has that address is not known (ask the agent at " in traced.conclusion
    assert traced.advice
