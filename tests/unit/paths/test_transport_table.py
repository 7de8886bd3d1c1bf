"""A further way to a peer is one row of the table, and one part that plans it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address, ip_interface
from pathlib import Path

import pytest

import limpet.web
from limpet.agent.answers.own_pods import OwnNodeWords
from limpet.agent.answers.path import path_status
from limpet.agent.answers.peers import count_peers, peer_kinds, peer_statuses
from limpet.agent.names.here import distance
from limpet.agent.status.ping import PingAnswer, PingWay
from limpet.base.addresses import Prefix, UnderlayLink
from limpet.cli.commands.diagnosis.ping import is_direct
from limpet.cli.commands.path import path_lines, peer_row
from limpet.cluster.nodes import NodeEntry
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath
from limpet.cluster.topology.transports import ProbeKind, Transport
from limpet.cluster.topology.view import View
from limpet.datapath.overlay.hop import HOP_PLANNERS, Hop
from limpet.datapath.overlay.plan import plan_overlay
from limpet.paths.ladder.candidates import CandidateFacts
from limpet.paths.ladder.ladder import Ladder
from limpet.paths.probe.codec import encode_answer, parse_answer
from limpet.paths.probe.messages import AnsweredBy, Candidate, ProbeAnswer
from limpet.paths.proven import read_paths, write_paths
from limpet.paths.summary import why_indirect
from limpet.picture.pair import Pair, Reach, Way
from limpet.web.live.map_rows import map_rows, worse
from limpet.web.live.words import rung_words
from tests.beds.pictured import world
from tests.unit.datapath.overlay.overlay_values import PEER, a_presence, node, view, vxlan

UNDERLAY = ip_address("192.0.2.2")
ETH0 = UnderlayLink("eth0", 2, "02:00:00:00:00:01", 1500, (ip_interface("192.0.2.1/24"),))
TOY = Transport(
    "toy",
    preference=transports.VXLAN.preference - 1,
    number=200,
    proof=ProbeKind.SITE,
    part="toy",
    overhead_bytes={4: 28, 6: 48},
    words="toy",
    path_words="toy, over {device} to {underlay}",
    via_words="toy at {underlay}",
    versions=lambda presence: presence.vtep_macs,
)
"""Proven by the same probe as VXLAN, and better."""
PATH = PeerPath(TOY, 1500, underlay=UNDERLAY)
TUNNEL_TOY = replace(
    transports.TUNNEL,
    name="tunnel-toy",
    preference=transports.TUNNEL.preference - 1,
    number=201,
    versions=lambda presence: presence.vtep_macs,
)
"""Proven by the same probe as the tunnel, and better."""


def toy_hops(
    _view: View, _entry: NodeEntry, path: PeerPath, firsts: Mapping[int, Prefix]
) -> dict[int, Hop | str]:
    """What the toy's part plans."""
    assert path.underlay is not None
    mtu_bytes = path.mtu_bytes - path.rung.overhead_bytes[path.underlay.version]
    return {version: Hop("toy0", first[0], mtu_bytes) for version, first in firsts.items()}


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(transports.TRANSPORTS, TOY.name, TOY)
    monkeypatch.setitem(HOP_PLANNERS, TOY.part, toy_hops)


def climbed(devices: frozenset[tuple[str, int]]) -> PeerPath | None:
    """Where a peer is reached that answers at its underlay address only."""
    ladder = Ladder()
    ladder.settle(
        CandidateFacts((UNDERLAY,), 7471, devices=devices), (ETH0,), at_s=0.0, urgent=True
    )
    for now_s in (0.0, 0.5, 1.0, 1.5):
        for question in ladder.take_due(now_s, vital=True):
            if question.candidate.kind is ProbeKind.SITE:
                ladder.answered(
                    question.candidate, now_s + 0.01, rtt_s=0.01, via=AnsweredBy("eth0")
                )
    return replace(ladder.path, prefixes=()) if ladder.path is not None else None


def test_the_ladder_takes_what_the_row_prefers_where_both_ends_have_a_device_for_it() -> None:
    both = transports.devices_of(a_presence(1)) & transports.devices_of(a_presence(2))

    assert climbed(both) == PATH
    assert climbed(frozenset({("vxlan", 4)})) == vxlan(2)


def by_tunnel(devices: frozenset[tuple[str, int]]) -> tuple[Transport, Transport]:
    """Rung of a peer whose tunnel alone answers, and what its answer is said to stand for."""
    ladder = Ladder()
    facts = CandidateFacts(
        (UNDERLAY,), 7471, devices=devices, clear=False, tunnel=True, endpoints=((UNDERLAY, 51820),)
    )
    ladder.settle(facts, (ETH0,), at_s=0.0, urgent=True)
    (candidate,) = ladder.candidates
    indirect = why_indirect(ladder, "cone")
    assert indirect is not None
    assert "none of the peer's 1 endpoints answers" in indirect.why
    for now_s in (0.0, 0.5, 1.0, 1.5):
        for question in ladder.take_due(now_s, vital=True):
            ladder.answered(question.candidate, now_s + 0.01, rtt_s=0.01, via=AnsweredBy())
    assert candidate.kind is ProbeKind.TUNNEL
    assert ladder.path is not None
    return ladder.path.rung, ladder.choice().rung(candidate)


def test_a_row_that_a_probe_through_the_tunnel_proves_is_taken_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(transports.TRANSPORTS, TUNNEL_TOY.name, TUNNEL_TOY)
    both = transports.devices_of(a_presence(1)) & transports.devices_of(a_presence(2))

    assert by_tunnel(both) == (TUNNEL_TOY, TUNNEL_TOY)
    assert by_tunnel(frozenset()) == (transports.TUNNEL, transports.TUNNEL)


def test_what_answers_is_said_to_be_what_the_pair_would_use() -> None:
    both = transports.devices_of(a_presence(1)) & transports.devices_of(a_presence(2))
    site = Candidate(ProbeKind.SITE, UNDERLAY, 7471)
    link = Candidate(ProbeKind.LINK, UNDERLAY, 7471, "eth0")

    def said(candidate: Candidate, devices: frozenset[tuple[str, int]]) -> Transport:
        ladder = Ladder()
        facts = CandidateFacts((UNDERLAY,), 7471, devices=devices)
        ladder.settle(facts, (ETH0,), at_s=0.0, urgent=True)
        return ladder.choice().rung(candidate)

    assert said(site, both) is TOY
    assert said(site, frozenset({("vxlan", 4)})) is transports.VXLAN
    assert said(site, frozenset()) is transports.VXLAN, "the last row, where no device is"
    assert said(link, both) is transports.ROUTE


def test_a_peer_can_tell_it_and_a_node_keeps_it(tmp_path: Path) -> None:
    answer = ProbeAnswer(bytes(8), 1, UNDERLAY, 7471, UNDERLAY, PATH)
    file = tmp_path / "paths.json"

    write_paths(file, {PEER: PATH})

    assert parse_answer(encode_answer(answer)) == answer
    assert read_paths(file) == {PEER: PATH}


def test_the_plan_asks_the_rows_part_and_a_person_reads_the_rows_words() -> None:
    here = view(node(2), paths={PEER: PATH})
    plan = plan_overlay(here)
    ends = ip_address("10.244.1.2"), ip_address("10.244.2.2")

    found = path_status(here, plan, *ends, OwnNodeWords((), "limpet0", 1450), {})
    (peer,) = peer_statuses(here, plan, heard_s={}, every=True, readings={}, now_ns=0)

    assert {(route.device, route.mtu_bytes) for route in plan.parts[PEER].routes} == {
        ("toy0", 1472)
    }
    assert f"  there: toy, over toy0 to {UNDERLAY}, MTU 1472" in list(path_lines(found))
    assert (peer.rung, peer_row(peer)["via"]) == ("toy", f"toy at {UNDERLAY}")
    assert count_peers(peer_kinds(here, plan))["toy"] == 1


def test_names_take_the_rung_for_as_near_as_the_row_prefers_it() -> None:
    farthest, nearest = 7, 0  # classes of round trips

    assert distance(transports.ROUTE, farthest) < distance(TOY, nearest)
    assert distance(TOY, farthest) < distance(transports.VXLAN, nearest)


@pytest.mark.parametrize("relayed", [False, True])
def test_a_ping_that_waits_for_a_direct_way_goes_by_the_row(
    monkeypatch: pytest.MonkeyPatch, *, relayed: bool
) -> None:
    row = replace(TOY, path_words="toy, by {relay}") if relayed else TOY
    monkeypatch.setitem(transports.TRANSPORTS, row.name, row)
    way = PingWay(
        rung=row.name, version=4, address="x", device="", relay="", in_use=True, rtt_ms=1.0
    )
    answer = PingAnswer(
        node="b", uid="b", pod="", addresses=[], rung=row.name, ways=[way], packets=[], why=""
    )

    assert is_direct(answer) is not relayed


def test_the_page_has_a_colour_for_each_row_by_its_name() -> None:
    static = Path(limpet.web.__file__).parent / "static"
    style = (static / "page.css").read_text(encoding="utf-8")
    for name in transports.TRANSPORTS.keys() - {TOY.name}:
        for needed in (f"  --{name}: ", f".rung.{name}::before {{", f".line.{name} {{"):
            assert needed in style


def test_the_page_has_it_in_its_order_by_the_rows_words() -> None:
    picture = world(3)
    pair = Pair(
        one="a",
        other="b",
        there=Way(reach=Reach.REACHED, rung=TOY.name),
        back=Way(reach=Reach.REACHED, rung="route"),
    )

    assert list(rung_words().items())[1:3] == [("toy", "toy"), ("vxlan", "VXLAN")]
    assert map_rows(picture).document(picture)["rungs"] == list(rung_words().items())
    assert worse(pair) == pair.there
