"""Token buckets at the edges of their fields; test_bandwidth.py has them at work."""

from __future__ import annotations

import struct

from hypothesis import example, given
from hypothesis import strategies as st

from limpet.linux.netlink import codec as wire
from limpet.linux.netlink import traffic_control
from limpet.linux.netlink.traffic_control import token_bucket

U32 = 2**32 - 1
rates = st.integers(1, 2**64 - 1)
bursts = st.integers(0, 2**64 - 1)


def bucket(rate_bits: int, burst_bits: int) -> tuple[int, int, int]:
    """Rate and burst (bytes) and queue limit of a message, read as tc_tbf_qopt says."""
    request = token_bucket(3, rate_bits=rate_bits, burst_bits=burst_bits, what="lim1")
    attrs = wire.parse_attrs(memoryview(request.body), 20)
    assert attrs[traffic_control.TCA_KIND] == b"tbf\0"
    options = wire.parse_attrs(memoryview(attrs[traffic_control.TCA_OPTIONS]), 0)
    rate, limit = struct.unpack_from("=I", options[1], 8) + struct.unpack_from("=I", options[1], 24)
    rate64 = struct.unpack("=Q", options[4])[0] if 4 in options else rate
    return rate64, struct.unpack("=I", options[6])[0], limit


@given(rates, bursts)
@example(rate_bits=10_000_000, burst_bits=U32)  # what containerd sends
@example(rate_bits=2**35, burst_bits=2**35)
@example(rate_bits=1, burst_bits=0)
def test_no_rate_or_burst_overflows(rate_bits: int, burst_bits: int) -> None:
    rate, burst, limit = bucket(rate_bits, burst_bits)

    assert rate == max(rate_bits // 8, 1)
    assert burst >= min(burst_bits // 8, U32)
    assert limit == min(rate // 40 + min(burst, 1 << 20), U32)


@given(rates, bursts, st.integers(0, 2**64 - 1))
def test_a_higher_rate_is_never_made_a_lower_one(rate: int, burst: int, more: int) -> None:
    assert bucket(min(rate + more, 2**64 - 1), burst)[0] >= bucket(rate, burst)[0]


def test_a_packet_always_fits_into_the_burst() -> None:
    # One that does not is dropped however long it waits: the pod would be cut off.
    assert bucket(1_000_000, 8)[1] >= 65536


def test_containerds_burst_does_not_let_half_a_gigabyte_wait() -> None:
    rate, burst, limit = bucket(10_000_000, U32)

    assert burst == U32 // 8
    assert limit / rate < 1


def test_four_gigabytes_a_second_and_more_take_the_wide_field() -> None:
    assert bucket(2**35 - 8, 8)[0] == U32
    assert bucket(2**35, 8)[0] == 2**32
