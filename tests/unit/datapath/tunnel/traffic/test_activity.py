"""Who has traffic is told from counters that count everything."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.cluster.exchange.inner_traffic import InnerPackets
from limpet.datapath.tunnel.state import PeerReading, TunnelPeer
from limpet.datapath.tunnel.traffic.activity import (
    ACTIVE_S,
    TunnelActivity,
    began_and_answered,
    has_payload,
)

KEY, OTHER = b"k" * 32, b"o" * 32
HERE, THERE = (ip_address("192.0.2.1"), 7000), (ip_address("192.0.2.2"), 7000)
INITIATION, RESPONSE, KEEPALIVE = 148, 92, 32


def data_bytes(packet_bytes: int) -> int:
    """Of a message with one inner packet."""
    return 32 + -(-packet_bytes // 16) * 16


def reading(
    received: int = 0, sent: int = 0, *, handshake_ns: int = 0, key: bytes = KEY
) -> dict[bytes, PeerReading]:
    peer = TunnelPeer(key, endpoint=HERE)
    return {key: PeerReading(peer, handshake_ns, received, sent)}


@pytest.mark.parametrize("initiations", [0, 1, 2])
@pytest.mark.parametrize("responses", [0, 1])
@pytest.mark.parametrize("keepalives", [0, 1, 2])
def test_handshakes_and_keepalives_are_no_payload(
    initiations: int, responses: int, keepalives: int
) -> None:
    if initiations == 2 and responses:
        return  # three messages of handshakes within a second: those that follow too fast are lost
    if keepalives == 2 and not (initiations or responses):
        return  # nobody configures them so close together
    moved = initiations * INITIATION + responses * RESPONSE + keepalives * KEEPALIVE

    assert not has_payload(moved, within_s=1.0, handshaken=bool(initiations and responses))


@given(
    st.lists(st.integers(52, 1440), min_size=1, max_size=50),
    st.sampled_from([0, INITIATION, RESPONSE]),
)
def test_packets_are_payload_whatever_comes_with_them(
    packets: list[int], handshake_bytes: int
) -> None:
    moved = sum(map(data_bytes, packets)) + handshake_bytes

    assert has_payload(moved, within_s=1.0)


def test_a_peer_is_active_for_ten_seconds_after_its_last_packet() -> None:
    activity = TunnelActivity()
    activity.begin(reading(1000, 1000, handshake_ns=1), 0.0)
    activity.take(reading(1000, 1000, handshake_ns=1), 1.0)
    assert activity.active(1.0) == frozenset()

    activity.take(reading(1000 + data_bytes(84), 1000, handshake_ns=1), 2.0)

    assert activity.active(2.0) == {KEY}
    assert activity.active(2.0 + ACTIVE_S) == {KEY}
    assert activity.active(2.1 + ACTIVE_S) == frozenset()


def test_a_peer_that_was_made_anew_counts_from_zero() -> None:
    activity = TunnelActivity()
    activity.begin(reading(10_000, 10_000, handshake_ns=1), 0.0)

    activity.take(reading(RESPONSE, INITIATION + data_bytes(84), handshake_ns=2), 1.0)

    assert activity.active(1.0) == {KEY}


def test_a_peer_that_is_gone_is_forgotten() -> None:
    activity = TunnelActivity()
    activity.take(reading(0, INITIATION + data_bytes(84)), 1.0)

    activity.take({}, 2.0)

    assert activity.active(2.0) == frozenset()
    assert not activity.waits


def test_who_never_answers_is_told_after_a_second_and_again_after_five() -> None:
    activity = TunnelActivity()
    activity.take(reading(0, INITIATION), 1.0)
    assert activity.waits
    assert activity.unanswered(1.0) == []

    activity.take(reading(0, INITIATION), 2.0)
    assert activity.unanswered(2.0) == [KEY]

    assert activity.unanswered(6.9) == []
    activity.take(reading(0, 2 * INITIATION), 7.0)
    assert activity.unanswered(7.0) == [KEY]


def both_began(now_s: float) -> TunnelActivity:
    activity = TunnelActivity()
    activity.take(reading(sent=INITIATION), now_s - 0.5)
    activity.take(reading(INITIATION, INITIATION + RESPONSE), now_s)
    return activity


def crossed(activity: TunnelActivity, now_s: float, *, lower: bool = True) -> bool:
    return activity.crossed(now_s, own_key=bytes(32) if lower else b"z" * 32) == [KEY]


def test_initiations_that_have_crossed_are_told_first_at_the_end_with_the_lower_key() -> None:
    lower, higher = both_began(10.0), both_began(10.0)

    assert lower.waits
    assert lower.unanswered(12.0) == []
    assert not crossed(lower, 10.9)
    assert crossed(lower, 11.0)
    assert not crossed(higher, 12.9, lower=False)
    assert crossed(higher, 13.0, lower=False)
    lower.take(reading(RESPONSE, INITIATION, handshake_ns=1), 12.0)
    assert not lower.waits
    assert not crossed(lower, 30.0)


def test_whoever_was_made_anew_is_waited_for_twice_as_long_each_time() -> None:
    activity, now_s = both_began(10.0), 10.0
    for wait_s in (1, 2, 4, 8, 16, 16):
        assert not crossed(activity, now_s + wait_s - 0.1)
        assert crossed(activity, now_s + wait_s)
        assert not crossed(activity, now_s + wait_s)
        activity.take(reading(0, INITIATION), now_s + wait_s + 1)
        now_s += wait_s + 2
        activity.take(reading(INITIATION, INITIATION + RESPONSE), now_s)


@pytest.mark.parametrize(
    ("received", "sent"),
    [
        (INITIATION, RESPONSE),  # the other has begun, and its confirmation may take a while
        (2 * INITIATION, 2 * RESPONSE),
        (0, 2 * INITIATION),
        (INITIATION, 0),
    ],
)
def test_where_one_end_alone_has_begun_nothing_has_crossed(received: int, sent: int) -> None:
    activity = TunnelActivity()
    activity.take(reading(received, sent), 10.0)

    assert not crossed(activity, 30.0)


def test_a_peer_that_is_away_is_called_in_vain_for_long_and_nothing_has_crossed() -> None:
    activity = TunnelActivity()
    for number in range(1, 400):
        activity.take(reading(sent=number * INITIATION), 5.0 * number)
        assert not crossed(activity, 5.0 * number + 4)


def test_an_answer_in_the_same_second_is_no_crossing_and_silence_ends_one() -> None:
    activity = TunnelActivity()
    activity.take(reading(RESPONSE, INITIATION, handshake_ns=1), 10.0)
    assert not activity.waits

    activity = both_began(10.0)
    activity.take(reading(INITIATION, INITIATION + RESPONSE), 50.0)
    assert not activity.waits
    assert not crossed(activity, 60.0)


@given(st.integers(0, 22), st.integers(0, 30))
def test_what_was_sent_tells_whether_this_end_has_begun_and_answered(
    initiations: int, responses: int
) -> None:
    sent = initiations * INITIATION + responses * RESPONSE

    assert began_and_answered(sent) is (initiations > 0 and responses > 0)


def test_a_handshake_ends_the_waiting_and_so_does_silence() -> None:
    activity = TunnelActivity()
    activity.take(reading(0, INITIATION), 1.0)
    activity.take(reading(RESPONSE, INITIATION, handshake_ns=5), 2.0)
    assert not activity.waits

    activity.take(reading(0, INITIATION, key=OTHER), 3.0)
    assert activity.waits
    activity.take(reading(0, INITIATION, key=OTHER), 14.0)
    assert not activity.waits


def test_a_session_that_is_not_renewed_counts_as_none() -> None:
    activity = TunnelActivity()
    activity.begin(reading(1000, 1000, handshake_ns=1), 0.0)
    activity.take(reading(1000, 1000 + INITIATION, handshake_ns=1), 121.0)
    assert not activity.waits, "it may be renewed until it ends"

    activity.take(reading(1000, 1000 + 2 * INITIATION, handshake_ns=1), 160.0)
    activity.take(reading(1000, 1000 + 3 * INITIATION, handshake_ns=1), 165.0)

    assert activity.unanswered(165.0) == [KEY]


def test_an_endpoint_is_astray_when_two_readings_in_a_row_have_another_one() -> None:
    activity = TunnelActivity()
    elsewhere = [(KEY, THERE)]

    assert activity.astray(reading(), elsewhere) == []
    assert activity.astray(reading(), elsewhere) == [KEY]
    assert activity.astray(reading(), elsewhere) == [], "it was set: counted anew"
    assert activity.astray(reading(), [(KEY, HERE)]) == []
    assert activity.astray(reading(), elsewhere) == []


def test_who_is_sent_to_in_vain_is_active_until_another_way_should_have_been_found() -> None:
    activity = TunnelActivity()
    activity.begin(reading(), 0.0)
    for second in range(1, 32):
        activity.take(reading(sent=(second // 5 + 1) * INITIATION), second)
        assert activity.active(second) == {KEY}
    activity.take(reading(sent=7 * INITIATION), 32)
    assert activity.active(32) == frozenset()


# What agents say to each other


def said(
    *, received: tuple[int, ...] = (), sent: tuple[int, ...] = ()
) -> dict[bytes, InnerPackets]:
    return {KEY: InnerPackets(list(received), list(sent))}


@given(
    st.lists(st.integers(152, 1400), min_size=1, max_size=5),
    st.sampled_from([0, INITIATION, RESPONSE]),
)
def test_what_agents_have_said_is_no_traffic(packets: list[int], handshake_bytes: int) -> None:
    activity = TunnelActivity()
    activity.begin(reading(handshake_ns=1), 0.0)
    moved = sum(map(data_bytes, packets)) + handshake_bytes

    activity.take(reading(moved, 0, handshake_ns=1), 1.0, said(received=tuple(packets)))

    assert activity.active(1.0) == frozenset()


@pytest.mark.parametrize("way", ["received", "sent"])
def test_a_packet_beside_what_agents_say_is_traffic(way: str) -> None:
    activity = TunnelActivity()
    activity.begin(reading(handshake_ns=1), 0.0)
    moved = data_bytes(300) + data_bytes(84)
    if way == "received":
        activity.take(reading(moved, 0, handshake_ns=1), 1.0, said(received=(300,)))
    else:
        activity.take(reading(0, moved, handshake_ns=1), 1.0, said(sent=(300,)))

    assert activity.active(1.0) == {KEY}


def test_what_an_agent_has_said_may_be_counted_later_but_hides_nothing_for_long() -> None:
    late, lost = TunnelActivity(), TunnelActivity()
    for activity in (late, lost):
        activity.begin(reading(handshake_ns=1), 0.0)
        activity.take(reading(0, INITIATION, handshake_ns=1), 1.0, said(sent=(300,)))

    late.take(reading(RESPONSE, INITIATION + data_bytes(300), handshake_ns=2), 2.0)
    then = 1.0 + ACTIVE_S + 0.5
    lost.take(reading(0, INITIATION + data_bytes(300), handshake_ns=1), then)

    assert late.active(2.0) == frozenset()
    assert lost.active(then) == {KEY}


def test_what_agents_say_is_counted_once() -> None:
    activity = TunnelActivity()
    activity.begin(reading(handshake_ns=1), 0.0)

    activity.take(reading(data_bytes(300), handshake_ns=1), 1.0, said(received=(300,)))
    activity.take(reading(2 * data_bytes(300), handshake_ns=1), 2.0)

    assert activity.active(2.0) == {KEY}
