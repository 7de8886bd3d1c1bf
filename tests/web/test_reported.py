"""What the page says of relays, segments, communities and pairs, of what nodes have reported."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from limpet.agent.answers.picture.nodes import load_of, own_segments, relays_of
from limpet.cluster.kinds.grant import Role
from limpet.cluster.kinds.network import DefaultCommunity
from limpet.cluster.segments import SegmentUse
from limpet.controller.picture.making import PictureRecords, make_picture
from limpet.controller.picture.nodes import NodeRecordFacts
from limpet.controller.picture.pairs import detail_of
from limpet.controller.picture.reported import NodePaths
from limpet.paths.report import NodeReport
from limpet.picture.pair import PairDetail
from limpet.picture.picture import Picture
from limpet.relay.status import Relaying, RelayingPair, RelayStatus
from tests.beds.page import PictureSource, page
from tests.unit.cluster_values import entry, network
from tests.web.test_access import TOKENS, Browser
from tests.web.test_lists import read

NOW_S = 1_800_000_000.0
NETWORK = network(default_community=DefaultCommunity.NONE)
HUB, CRANE, SECOND_CRANE, DIGGER = (
    entry(1, sequence=1, name="hub", roles=frozenset({Role.CLOUD, Role.RELAY})),
    entry(2, sequence=1, name="crane-1", communities=frozenset({"line-1"})),
    entry(3, sequence=1, name="crane-2", communities=frozenset({"line-1"})),
    entry(4, sequence=1, name="digger-1", communities=frozenset({"line-2"})),
)
NODES = {each.grant.uid: each for each in (HUB, CRANE, SECOND_CRANE, DIGGER)}
RELAYING = Relaying(
    active=True,
    trouble="",
    ports=(31000, 31099),
    pairs=[RelayingPair(nodes=["crane-1", "digger-1"], ways=["udp", "udp"])] * 7,
    bytes_per_s=2_400_000.0,
    node_bytes_per_s=25_000_000,
)
"""As a relay's agent says it: a hundred ports are for fifty pairs."""


def reported(number: int, live: int, **more: object) -> NodePaths:
    """What that node has told of itself: how full its one segment is."""
    (segment,) = list(NODES.values())[number - 1].grant.segments
    use = SegmentUse(segment, 253, live=live, resting=2, bound=0)
    return NodePaths(1, NOW_S, NodeReport(segments=own_segments([use]), pods=live, **more), {})  # type: ignore[arg-type]


REPORTED = {
    HUB.grant.uid: reported(1, 3, relay=load_of(RELAYING, ())),
    CRANE.grant.uid: reported(2, 253),
    SECOND_CRANE.grant.uid: reported(3, 240),
}


def of_the_cloud() -> Picture:
    """The controller's picture: digger-1 has not told anything."""
    facts = {uid: NodeRecordFacts(NOW_S - 3600, (), uid in REPORTED) for uid in NODES}
    records = PictureRecords(NODES, facts, NETWORK, 7, {"line-1": "line=1"}, ())
    return replace(make_picture(records, REPORTED, NOW_S - 60), as_of_s=NOW_S, version="1")


class Reported(PictureSource):
    """Pairs are told as the controller tells them, too."""

    async def pair(self, one: str, other: str) -> PairDetail:
        return detail_of(one, other, NODES, NETWORK, REPORTED, as_of_s=NOW_S)


@pytest.fixture(scope="module")
def cloud() -> Iterator[Browser]:
    with page(Reported(of_the_cloud()), lambda: TOKENS) as (address, _):
        browser = Browser(address)
        browser.enter("read")
        yield browser


def test_a_relay_is_told_with_what_it_carries_and_how_much_more_it_could(cloud: Browser) -> None:
    text = read(cloud, "/relays")

    assert "hub" in text
    assert "7 / 50" in text
    assert "2.3 MiB/s takes 24 MiB/s of each node" in text


def test_on_a_nodes_page_a_relay_answers_as_that_node_finds_it() -> None:
    known = RelayStatus(
        name="hub",
        uid=HUB.grant.uid,
        answers=True,
        endpoint="203.0.113.7:51820",
        rtt_ms=18.4,
    )
    as_seen = relays_of(NODES, [known], own=CRANE.grant.uid, relaying=None)
    silent = relays_of(NODES, [replace(known, answers=False)], own=CRANE.grant.uid, relaying=None)

    for relays, words in (
        (as_seen, "hub answers 203.0.113.7:51820 18 ms 0 that are seen from here"),
        (silent, "hub silent 203.0.113.7:51820"),
    ):
        source = PictureSource(replace(of_the_cloud(), relays=relays))
        with page(source, lambda: TOKENS) as (address, _):
            browser = Browser(address)
            browser.enter("read")
            assert words in read(browser, "/relays")


def test_segments_are_told_with_how_full_they_are_the_fullest_first(cloud: Browser) -> None:
    text = read(cloud, "/segments")

    full, nearly, empty, untold = (
        "10.244.2.0/24 crane-1 253 / 253 full",
        "10.244.3.0/24 crane-2 240 / 253 nearly full",
        "10.244.1.0/24 hub 3 / 253 3 2 0",
        "10.244.4.0/24 digger-1 only the node knows",
    )
    places = [text.find(each) for each in (full, nearly, empty, untold)]
    assert -1 not in places
    assert places == sorted(places)
    shown = cloud.ask("GET", "/segments").text
    assert '<span class="tag fail">full</span>' in shown
    assert '<span class="tag warn">nearly full</span>' in shown


def test_communities_are_told_with_their_members(cloud: Browser) -> None:
    text = read(cloud, "/communities")

    assert "Nodes that are in none: reach the cloud alone." in text
    assert "line-1 2 nodes · by line=1 crane-1, crane-2" in text
    assert "line-2 1 node digger-1" in text


def test_of_two_nodes_that_are_kept_apart_the_page_says_why_and_what_would_join_them(
    cloud: Browser,
) -> None:
    text = read(cloud, "/pairs/crane-1/digger-1")

    assert "not allowed they share no community: " in text
    assert "crane-1 is in line-1" in text
    assert "digger-1 is in line-2" in text
    assert "(limpet community add puts nodes into one)" in text
    assert "Both are in" not in text
    together = read(cloud, "/pairs/crane-1/crane-2")
    assert "not allowed" not in together
    assert "Both are in line-1." in together
