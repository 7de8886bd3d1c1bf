"""What the controller is told by difference is what the node has, whatever happened between."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.base.bounds.members import PATHS_BODY, REPORTED_PAIRS, REPORTED_WORDS
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
