"""What the controller is told by difference is what the node has, whatever happened between."""

from __future__ import annotations

import time

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
from limpet.picture.pair import Direction, Outward, Reach, Way

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
