"""What a person reads of pings."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import convert

from limpet.agent.status.ping import PingAnswer
from limpet.cli.answers import Pinged
from limpet.cli.commands.diagnosis.ping import Tally, conclusions, is_direct, round_line

WAY: dict[str, Any] = {
    "rung": "tunnel",
    "version": 4,
    "address": "198.51.100.7:4001",
    "device": "",
    "relay": "",
    "in_use": True,
    "rtt_ms": 9.5,
}
BY_RELAY = {**WAY, "rung": "relay", "relay": "hub", "in_use": False, "rtt_ms": 20.0}
PACKET: dict[str, Any] = {"address": "10.244.2.2", "rtt_ms": 10.0, "problem": ""}
ROUND: dict[str, Any] = {
    "node": "crane-1",
    "uid": "u1",
    "pod": "",
    "addresses": ["10.244.2.2"],
    "rung": "tunnel",
    "ways": [WAY, BY_RELAY],
    "packets": [PACKET],
    "why": "",
}


def answer(**changes: Any) -> PingAnswer:
    return convert({**ROUND, **changes}, PingAnswer)


def tally(*rounds: PingAnswer) -> Pinged:
    found = Tally()
    for each in rounds:
        found.add(each)
    return found.told("crane-1", [*rounds])


def test_a_round_says_by_which_rung_each_answer_came_and_which_is_in_use() -> None:
    silent = {**WAY, "rung": "vxlan", "address": "192.168.1.5", "in_use": False, "rtt_ms": None}

    line = round_line(3, answer(ways=[WAY, BY_RELAY, silent], pod="shop/web-0"))

    assert line == (
        "3  shop/web-0 on crane-1: tunnel 198.51.100.7:4001 9.50 ms *, relay hub 20.00 ms, "
        "packet to 10.244.2.2 10.00 ms; no answer: vxlan 192.168.1.5"
    )


def test_the_summary_counts_what_was_lost_by_each_way() -> None:
    lost = answer(ways=[{**WAY, "rtt_ms": None}, BY_RELAY])

    told = tally(answer(), lost, answer(ways=[{**WAY, "rtt_ms": 11.5}]))

    tunnel, relay, packet = told.summary
    assert (tunnel.sent, tunnel.answered, tunnel.lost_percent) == (3, 2, 33.3)
    assert (tunnel.least_ms, tunnel.mean_ms, tunnel.most_ms) == (9.5, 10.5, 11.5)
    assert (relay.sent, relay.answered, relay.in_use) == (2, 2, False)
    assert (packet.rung, packet.by, packet.answered) == ("packet", "10.244.2.2", 3)


@pytest.mark.parametrize(
    ("changes", "direct"),
    [
        ({}, True),
        ({"rung": "relay"}, False),
        ({"rung": "relay-tls"}, False),
        ({"rung": ""}, False),
        ({"ways": [{**WAY, "rtt_ms": None}]}, False),
    ],
)
def test_direct_is_what_needs_no_relay_and_has_answered(
    changes: dict[str, Any], direct: bool
) -> None:
    assert is_direct(answer(**changes)) is direct


def test_a_pod_that_is_silent_is_not_reached_though_its_node_answers() -> None:
    silent = [{**PACKET, "rtt_ms": None}]

    told = tally(answer(pod="shop/web-0", packets=silent))

    assert told.answered is False
    assert any("a policy, the pod itself" in each for each in conclusions(told, until_direct=False))
    assert tally(answer(packets=silent)).answered is True, "of a node a probe does"
