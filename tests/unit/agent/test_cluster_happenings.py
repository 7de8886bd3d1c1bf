"""What a node's timeline says of those that tell it of its cluster."""

from __future__ import annotations

from collections.abc import Mapping

from limpet.agent.happenings.of_cluster import (
    changed_silence,
    cloud_facts,
    nat_facts,
)
from limpet.agent.happenings.words import Fact, Who, by_name, differences
from limpet.cloud.session import SessionState


def state(*, connected: bool = True, refused: str = "", segment_refused: str = "") -> SessionState:
    return SessionState(
        "c:7470",
        connected=connected,
        since_s=0.0,
        error="" if connected else "timed out",
        refused=refused,
        segment_refused=segment_refused,
        over=False,
    )


def told(before: Mapping[str, Fact], now: SessionState) -> tuple[list[str], dict[str, Fact]]:
    """Words of what is new, and what is known then."""
    facts = list(cloud_facts(now, None, before))
    return [each.words for each in differences(Who("u", "n1"), before, facts)], by_name(facts)


def test_only_what_is_refused_of_segments_is_told_as_a_request_for_addresses() -> None:
    _, well = told({}, state())

    said, facts = told(well, state(segment_refused="quota of 8"))
    assert said == ["a request for addresses: quota of 8"]
    assert told(facts, state())[0] == ["a request for addresses is not refused any more"]
    assert told(well, state(refused="too often"))[0] == [
        "what this node tells the controller: too often"
    ]


def test_what_was_refused_stays_so_in_the_timeline_while_the_controller_is_away() -> None:
    _, refused = told(told({}, state())[1], state(refused="too often", segment_refused="quota"))

    said, away = told(refused, state(connected=False))
    assert said == ["the controller: lost: timed out"]
    again = state(refused="too often", segment_refused="quota")
    assert told(away, again)[0] == ["the controller is there again (controller at c:7470)"]


def test_a_silent_peer_that_is_no_peer_any_more_is_not_told_to_answer_again() -> None:
    before, now = frozenset({"removed", "back", "silent"}), frozenset({"silent", "new"})

    assert changed_silence(before, now, {"back", "silent", "new"}.__contains__) == ["new", "back"]


def test_a_nat_that_is_not_known_for_a_while_is_no_news() -> None:
    said = []
    before: dict[str, Fact] = {}
    for kind in ("unknown", "same", "unknown", "same", "symmetric"):
        facts = list(nat_facts("NAT of IPv4", kind, before))
        said += [each.words for each in differences(Who("u", "n1"), before, facts)]
        before = by_name(facts)

    assert said == [
        "NAT of IPv4: shows all others one port",
        "NAT of IPv4: symmetric: shows each other node another port",
    ]
