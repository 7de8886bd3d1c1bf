"""What pages find, put together and cut."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from limpet.picture.nodes import NodeState, Segment
from limpet.picture.pair import Pair, Reach, Way
from limpet.picture.said import Level
from limpet.web.live.words import ago, counted, milliseconds, moment, percent, site_by, size, span
from limpet.web.views import PictureView, SegmentRow, by_site, page_of
from tests.beds.pictured import world


def test_pages_hold_every_row_once_and_a_number_beyond_is_the_last() -> None:
    rows = list(range(257))

    assert [row for at in (1, 2, 3) for row in page_of(rows, at).rows] == rows
    assert page_of(rows, 99) == page_of(rows, 3)
    assert page_of([], 1).pages == 1


def test_nodes_are_found_by_name_site_label_and_address_and_stand_by_site() -> None:
    view = PictureView(world(60))
    node = view.living[20]

    for text in (node.name, node.site.upper(), f"site={node.site}", node.machine.addresses[0]):
        assert node in view.nodes_by_site(text)
    sites = [site for site, _ in by_site(view.nodes_by_site(""))]
    assert len(sites) == len(set(sites))
    silent = view.nodes_by_site("", "silent")
    assert all(each.state is NodeState.SILENT for each in silent)


def test_bad_pairs_come_before_good_ones() -> None:
    view = PictureView(world(300))
    reaches = [row.worse.reach for row in view.pair_rows("")]

    assert len(reaches) == len(view.picture.pairs)
    assert reaches == sorted(reaches, key=[Reach.LOST, Reach.NO_PATH, Reach.REACHED].index)
    assert sum(count for _, count in view.rungs) == len(reaches)


def test_a_search_for_many_words_looks_at_each_node_once_for_each_and_at_no_pair() -> None:
    """There are many more pairs, and who looks could keep the page from all others."""
    looked_at: list[str] = []

    class Name(str):
        __slots__ = ()

        def casefold(self) -> str:
            looked_at.append(self)
            return super().casefold()

    seen = world(300)
    nodes = tuple(replace(each, name=Name(each.name)) for each in seen.nodes)
    names = [each.name for each in nodes]
    words = [names[0][:length] for length in range(1, len(names[0]) + 1)]

    rows = PictureView(replace(seen, nodes=nodes)).pair_rows(" ".join(words * 4))

    assert names[0] in [each.name for row in rows for each in (row.one, row.other)]
    assert len(seen.pairs) > len(nodes)
    assert len(looked_at) <= len(words) * len(nodes)


@pytest.mark.parametrize("measured", ["there", "back"])
def test_figures_of_a_pair_are_shown_whichever_end_has_measured_them(measured: str) -> None:
    """A node knows its own direction alone, and may have the higher uid or the lower one."""
    seen = world(3)
    mine = Way(reach=Reach.REACHED, rung="route", rtt_ms=3.0, loss=0.25, since_at_s=7.0)
    told = Way(reach=Reach.REACHED, rung="route")
    ways = {"there": told, "back": told, measured: mine}
    one, other = seen.nodes[:2]
    pair = Pair(one=one.uid, other=other.uid, **ways)

    (row,) = PictureView(replace(seen, pairs=(pair,))).pair_rows("")

    assert (row.rtt_ms, row.loss, row.since_at_s) == (3.0, 0.25, 7.0)


def test_of_two_measured_ways_the_worse_figures_are_shown() -> None:
    seen = world(3)
    there = Way(reach=Reach.REACHED, rung="route", rtt_ms=3.0, loss=0.0)
    back = Way(reach=Reach.REACHED, rung="route", rtt_ms=5.0, loss=0.1)
    pair = Pair(one=seen.nodes[0].uid, other=seen.nodes[1].uid, there=there, back=back)
    unknown = replace(pair, there=Way(), back=Way())

    (row,) = PictureView(replace(seen, pairs=(pair,))).pair_rows("")
    (dark,) = PictureView(replace(seen, pairs=(unknown,))).pair_rows("")

    assert (row.rtt_ms, row.loss) == (5.0, 0.1)
    assert (dark.rtt_ms, dark.loss, dark.since_at_s) == (None, None, None)


def test_findings_that_matter_are_counted_and_the_worst_is_first() -> None:
    view = PictureView(world(300))

    assert view.findings[0].level is Level.FAIL
    assert view.findings[-1].level is Level.OK
    assert view.harm == len(view.findings) - 1


def test_before_anybody_has_looked_it_is_not_said_that_nothing_is_wrong() -> None:
    cloud = world(3)
    node = replace(cloud, viewer=replace(cloud.viewer, kind="node"))

    assert PictureView(replace(cloud, viewer=replace(cloud.viewer, kind="controller"))).is_examined
    assert not PictureView(node).is_examined
    assert PictureView(node, ()).is_examined


def test_full_segments_come_first() -> None:
    used = [row.used or 0 for row in PictureView(world(60)).segment_rows("")]

    assert used == sorted(used, reverse=True)


@pytest.mark.parametrize(
    ("live", "bound", "words"),
    [(0, 61, ""), (55, 6, "nearly full"), (55, 0, "nearly full"), (54, 0, ""), (61, 0, "full")],
)
def test_a_segment_is_full_when_pods_that_run_have_it_all(
    live: int, bound: int, words: str
) -> None:
    """Addresses that are kept for absent pods are given where nothing else is left."""
    free = 61 - live - bound
    segment = Segment(prefix="10.244.0.0/26", size=61, free=free, live=live, bound=bound)
    row = SegmentRow(PictureView(world(1)).living[0], segment)

    assert (row.used, row.fullness) == (live, words)


def test_numbers_are_read_by_people() -> None:
    assert [span(each) for each in (None, 0, 59, 61, 7200, 200_000)] == [
        *("–", "now", "59 s", "1 min", "2 h", "2 d")
    ]
    assert ago(100.0, 50.0) == "now", "a clock that went back"
    assert moment(1e30) == ""
    assert milliseconds(0.42) == "0.42 ms"
    assert percent(0.001) == "1 %"
    assert size(1536) == "1.5 KiB"
    assert (counted(1, "node"), counted(2000, "node")) == ("1 node", "2,000 nodes")


def test_a_site_that_one_public_address_makes_is_told_as_a_guess() -> None:
    assert site_by("label") == "by label"
    assert site_by("proven").startswith("proven:")
    assert site_by("nat").startswith("a guess:")
    assert site_by("later") == "later"
