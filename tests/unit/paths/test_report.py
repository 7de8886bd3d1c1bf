"""What the controller is told by difference is what the node has, whatever happened between."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from limpet.base.bounds.members import (
    PATHS_AT_ONCE,
    PATHS_BODY,
    PATHS_PER_MINUTE,
    REPORTED_PAIRS,
    REPORTED_WORDS,
)
from limpet.base.text.escaping import escaped
from limpet.cloud import path_reports
from limpet.cloud.path_reports import PathReports
from limpet.cluster.api import encode
from limpet.controller.picture.reported import ReportedPaths
from limpet.controller.registry.refusal import RefusedError
from limpet.paths.report import (
    NodeReport,
    PairReport,
    PathReport,
    cut,
    difference,
    merged,
    report_problem,
)
from limpet.picture.nodes import Segment
from limpet.picture.pair import Direction, Outward, Reach, Traffic, Way

PAIRS = st.dictionaries(
    st.sampled_from([f"u{number}" for number in range(6)]),
    st.sampled_from(["route", "vxlan", "tunnel"]),
    max_size=6,
)


def pairs(rungs: dict[str, str]) -> dict[str, PairReport]:
    return {
        uid: PairReport(uid, Direction(way=Way(reach=Reach.REACHED, rung=rung)))
        for uid, rung in rungs.items()
    }


@given(PAIRS, PAIRS)
def test_what_was_known_and_the_difference_are_what_is(
    before: dict[str, str], now: dict[str, str]
) -> None:
    changed, gone = difference(pairs(before), pairs(now))

    report = PathReport(2, NodeReport(), 1, changed, gone)

    assert merged(pairs(before), report) == pairs(now)
    if before == now:
        assert (changed, gone) == ((), ())


class Teller:
    """A node that tells, and a controller that may forget all, or whose answers may be lost."""

    def __init__(self) -> None:
        self.rungs: dict[str, str] = {}
        self.controller = ReportedPaths()
        self.reports = PathReports(
            lambda _told: (NodeReport(pods=len(self.rungs)), pairs(self.rungs))
        )

    def tell(self, *, answered: bool = True) -> None:
        report = self.reports.report()
        if report is None:
            return
        known = self.controller.known.get("a")
        if report.base is not None and (known is None or known.sequence != report.base):
            with pytest.raises(RefusedError, match="tell all"):
                self.controller.put("a", report, 0.0)
            self.reports.begin()
            return
        self.controller.put("a", report, 0.0)
        if answered:
            self.reports.acknowledged()


@given(st.lists(st.tuples(PAIRS, st.sampled_from(["answered", "lost", "forgotten"])), max_size=12))
def test_the_controller_has_all_in_the_end_also_after_lost_answers_and_restarts(
    steps: list[tuple[dict[str, str], str]],
) -> None:
    teller = Teller()
    for rungs, fate in steps:
        teller.rungs = rungs
        teller.reports.changed()
        if fate == "forgotten":
            teller.controller = ReportedPaths()
        teller.tell(answered=fate != "lost")
    teller.rungs = {**teller.rungs, "u9": "route"}  # or it would be told by the next sign of life
    for _ in range(3):
        teller.reports.changed()
        teller.tell()

    known = teller.controller.known["a"]
    assert dict(known.pairs) == pairs(teller.rungs)
    assert known.node.pods == len(teller.rungs)


def test_nothing_is_told_where_nothing_changed_but_a_sign_of_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    teller = Teller()
    teller.tell()
    sequence = teller.controller.known["a"].sequence

    for _ in range(50):
        teller.reports.changed()
        teller.tell()
    assert teller.controller.known["a"].sequence == sequence

    now_s += path_reports.ALIVE_EVERY_S
    report = teller.reports.report()
    assert report is not None
    assert (report.pairs, report.gone, report.base) == ((), (), sequence)


def test_figures_wait_for_the_next_look_and_hold_up_no_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A peer that is lost is in doubt before, and its loss rises first."""
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    way, node = Way(reach=Reach.REACHED, rung="vxlan", rtt_ms=1.0, loss=0.0), NodeReport()
    reports = PathReports(lambda _told: (node, {"b": PairReport("b", Direction(way=way))}))

    def told() -> Way | None:
        reports.changed()
        report = reports.report()
        reports.acknowledged()
        return None if report is None else report.pairs[0].direction.way

    assert told() == way
    way = replace(way, loss=0.4)
    node = NodeReport(pods=1)
    assert told() is None
    assert reports.due_s == now_s + path_reports.LOOK_EVERY_S

    way = replace(way, reach=Reach.LOST)
    assert told() == way
    way = replace(way, loss=0.9)
    assert told() is None

    now_s = reports.due_s
    assert told() == way


def test_what_a_node_reports_at_most_is_less_than_a_controller_takes_of_one() -> None:
    assert PATHS_AT_ONCE.most > path_reports.AT_ONCE
    assert PATHS_PER_MINUTE.most > path_reports.PER_S * 60


def test_ways_that_flap_are_told_a_few_times_at_once_and_then_as_often_as_is_kept_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    teller = Teller()
    told_s = []
    while now_s < 1600.0:
        teller.rungs = {"b": "vxlan" if teller.rungs == {"b": "route"} else "route"}
        teller.reports.changed()
        teller.tell()
        told_s.append(now_s)
        now_s += teller.reports.pause_s()

    assert told_s[path_reports.AT_ONCE - 1] < 1003.0
    assert len(told_s) <= path_reports.AT_ONCE + 600 * path_reports.PER_S


def test_what_came_of_documents_alone_is_looked_at_within_seconds_all_of_it_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    teller = Teller()
    teller.tell()

    for _ in range(49):
        teller.reports.changed(soon=False)
        assert teller.reports.due_s == pytest.approx(1005.0)
        assert teller.reports.report() is None
        now_s += 0.1

    teller.rungs = {"b": "route"}
    now_s = 1005.1
    teller.tell()
    assert teller.controller.known["a"].pairs == pairs(teller.rungs)

    teller.reports.changed(soon=False)
    teller.reports.changed()
    assert teller.reports.due_s < now_s


@pytest.mark.parametrize(("took_s", "rest_s"), [(0.0001, 0.5), (0.03, 1.5), (0.4, 3.0)])
def test_the_more_a_look_takes_the_less_often_ways_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, took_s: float, rest_s: float
) -> None:
    """A thousand peers of which one changes again and again kept a tenth of a core busy."""
    spent_s = 0.0
    monkeypatch.setattr(time, "thread_time", lambda: spent_s)

    def look(_told: object) -> tuple[NodeReport, dict[str, PairReport]]:
        nonlocal spent_s
        spent_s += took_s
        return NodeReport(), {}

    reports = PathReports(look)
    reports.report()

    assert reports.pause_s() == pytest.approx(rest_s)


def test_the_longest_report_fits_into_a_request() -> None:
    words = "ä" * REPORTED_WORDS.most
    direction = cut(
        Direction(
            way=Way(reach=Reach.LOST, rung="relay-tls", relay="u" * 24, rtt_ms=12.3, loss=0.5),
            outward=Outward(device="limwg0", endpoint="[2001:db8::1]:51820", mtu_bytes=1380),
            why_not_direct="w" * 1000,
            mend=("m" * 200,) * 9,
            notes=(words,),
        )
    )
    told = tuple(PairReport(f"u{number:023}", direction) for number in range(REPORTED_PAIRS.most))
    report = PathReport(1, NodeReport(), None, told)

    assert report_problem(report) == ""
    assert len(encode(report)) < PATHS_BODY.most


def of_node(**said: Any) -> PathReport:
    return PathReport(1, NodeReport(**said))


def of_pair(peer: str = "b", **said: Any) -> PathReport:
    direction = Direction(**{"way": Way(), **said})
    return PathReport(1, NodeReport(), None, (PairReport(peer, direction),))


WORDS: dict[str, Callable[[str], PathReport]] = {
    "version": lambda text: of_node(version=text),
    "backend": lambda text: of_node(backend=text),
    "near": lambda text: of_node(near=text),
    "kind of NAT": lambda text: of_node(nat={"ipv4": text}),
    "IP version": lambda text: of_node(nat={text: "none"}),
    "rung of the rest": lambda text: of_node(rungs={text: 1}),
    "gone": lambda text: PathReport(1, NodeReport(), gone=(text,)),
    "peer": lambda text: of_pair(text),
    "rung": lambda text: of_pair(way=Way(rung=text)),
    "relay": lambda text: of_pair(way=Way(relay=text)),
    "NAT of a pair": lambda text: of_pair(nat=text),
}
SENTENCES: dict[str, Callable[[str], PathReport]] = {
    "why not direct": lambda text: of_pair(why_not_direct=text),
    "device": lambda text: of_pair(outward=Outward(device=text)),
    "mend": lambda text: of_pair(mend=(text,)),
    "note": lambda text: of_pair(notes=("in order", text)),
}
ADDRESSES: dict[str, Callable[[str], PathReport]] = {
    "segment": lambda text: of_node(segments=(Segment(prefix=text, size=1),)),
    "next hop": lambda text: of_pair(outward=Outward(next_hop=text)),
    "another next hop": lambda text: of_pair(outward=Outward(next_hop=f"192.0.2.1, {text}")),
    "underlay": lambda text: of_pair(outward=Outward(underlay=text)),
    "endpoint": lambda text: of_pair(outward=Outward(endpoint=f"[{text}]:51820")),
}
UNSEEN = ["a\nb", "\x1b[2J", "a\u202eb", "\x00", "\x7f", "a\u2028b", "\u3164"]


@pytest.mark.parametrize("text", UNSEEN, ids=ascii)
@pytest.mark.parametrize("name", [*WORDS, *SENTENCES, *ADDRESSES])
def test_what_nobody_can_see_is_refused_and_the_refusal_shows_it(name: str, text: str) -> None:
    problem = report_problem({**WORDS, **SENTENCES, **ADDRESSES}[name](text))

    assert problem
    assert escaped(problem) == problem


@pytest.mark.parametrize("name", WORDS)
def test_a_word_of_a_program_is_ascii_and_a_sentence_is_in_any_letters(name: str) -> None:
    assert report_problem(WORDS[name]("wireguard, ipsec 1.2~rc1")) == ""
    assert "printable ASCII" in report_problem(WORDS[name]("d\u0456rect"))
    assert [report_problem(make("größer als 1500")) for make in SENTENCES.values()] == [""] * 4


@pytest.mark.parametrize(
    "text", ["fe80::1%eth0", "fe80::1%\x1b[2J", "crane-1", "10.0.0.300", "9" * 60, "1.2.3.4 5"]
)
@pytest.mark.parametrize("name", ADDRESSES)
def test_where_an_address_is_meant_nothing_else_is_taken(name: str, text: str) -> None:
    assert report_problem(ADDRESSES[name](text))
    assert report_problem(ADDRESSES[name]("fd00::5")) == ""


@pytest.mark.parametrize(
    "report",
    [
        of_pair(outward=Outward(next_hop=", ".join(["192.0.2.1"] * 20_000))),
        of_pair(outward=Outward(endpoint=f"192.0.2.1:{'0' * 4_000}80")),
        of_node(segments=(Segment(prefix=f"10.0.0.0/{'0' * 4_000}8", size=1),)),
    ],
    ids=["next hops", "endpoint", "segment"],
)
def test_where_addresses_are_meant_there_are_no_more_than_words(report: PathReport) -> None:
    """A controller keeps 64 such pairs of each node: they were 17 MB."""
    assert "characters" in report_problem(report)


@pytest.mark.parametrize("endpoint", ["192.0.2.1", "192.0.2.1:", ":80", "[::1]:70000", "a:1"])
def test_an_endpoint_is_an_address_and_a_port(endpoint: str) -> None:
    assert report_problem(of_pair(outward=Outward(endpoint=endpoint)))
    assert report_problem(of_pair(outward=Outward(endpoint="192.0.2.1:80"))) == ""


@pytest.mark.parametrize(
    "report",
    [
        of_pair(way=Way(rtt_ms=1e300)),
        of_pair(way=Way(loss=-1.0)),
        of_pair(way=Way(since_at_s=1e300)),
        of_pair(outward=Outward(mtu_bytes=10**400)),
        of_pair(traffic=Traffic(sent_bytes=10**400)),
        of_pair(traffic=Traffic(handshake_at_s=-1e300)),
        of_node(segments=(Segment(prefix="fd00::/64", size=10**400),)),
        of_node(segments=(Segment(prefix="fd00::/64", size=1, free=-(10**400)),)),
    ],
)
def test_a_figure_of_hundreds_of_digits_is_refused(report: PathReport) -> None:
    assert report_problem(report)


def test_a_large_segment_and_a_busy_tunnel_are_told() -> None:
    assert not report_problem(of_node(segments=(Segment(prefix="fd00::/48", size=2**80 - 2),)))
    assert not report_problem(of_pair(traffic=Traffic(sent_bytes=2**63, received_bytes=0)))


@given(st.text(max_size=600), st.lists(st.text(max_size=600), max_size=6))
def test_whatever_words_came_to_a_node_the_controller_takes_what_it_tells(
    text: str, texts: list[str]
) -> None:
    direction = cut(
        Direction(
            way=Way(),
            outward=Outward(device=text),
            why_not_direct=text,
            mend=tuple(texts),
            notes=tuple(texts),
        )
    )

    assert report_problem(PathReport(1, NodeReport(), None, (PairReport("b", direction),))) == ""
    assert cut(direction) == direction
