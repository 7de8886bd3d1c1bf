"""Bytes a second that a relay carries, by counters that may begin anew."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from limpet.relay.server.forwarding import CounterReading, parse_counters
from limpet.relay.server.throughput import Throughput


def test_it_is_not_known_before_two_samples() -> None:
    throughput = Throughput()
    assert throughput.bytes_per_s is None
    throughput.take(5, 0.0)
    assert throughput.bytes_per_s is None


@given(st.integers(0, 10**12))
def test_a_steady_rate_is_that_rate_whatever_the_counter_began_with(first: int) -> None:
    throughput = Throughput()
    for at in range(40):
        throughput.take(first + at * 5000, at * 5.0)
        throughput.handed_on(2500)

    assert throughput.bytes_per_s == 1500.0


def test_counters_that_began_anew_are_no_fall() -> None:
    throughput = Throughput()
    for at_s, forwarded in ((0, 1_000_000), (5, 1_005_000), (10, 5_000), (15, 10_000)):
        throughput.take(forwarded, float(at_s))

    assert throughput.bytes_per_s == 1000.0


def test_what_is_longer_ago_than_a_minute_is_forgotten() -> None:
    throughput = Throughput()
    throughput.take(0, 0.0)
    throughput.take(10**9, 5.0)
    for at in range(2, 20):
        throughput.take(10**9, at * 5.0)

    assert throughput.bytes_per_s == 0.0


def test_nfts_listing_has_packets_and_bytes() -> None:
    listing = """table inet limpet_relay {
\tcounter forwarded {
\t\tpackets 12 bytes 3456
\t}
\tcounter handed_up {
\t\tpackets 0 bytes 0
\t}
}"""
    assert parse_counters(listing) == {
        "forwarded": CounterReading(12, 3456),
        "handed_up": CounterReading(0, 0),
    }
