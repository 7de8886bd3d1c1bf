from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_network

from hypothesis import given
from hypothesis import strategies as st

from limpet.base.addresses import Prefix
from limpet.cluster.segments import SegmentUse, wanted_versions
from tests.unit.cluster_values import grant, network

SIZES = {4: 253, 6: (1 << 64) - 2}
SEGMENTS: dict[int, list[Prefix]] = {
    4: [ip_network(f"10.244.{number}.0/24") for number in range(10)],
    6: [ip_network(f"fd00:0:0:{number}::/64") for number in range(10)],
}


def use(segment: Prefix, live: int = 0, resting: int = 0, bound: int = 0) -> SegmentUse:
    return SegmentUse(segment, SIZES[segment.version], live, resting, bound)


def wanted(segments: Sequence[Prefix], uses: Sequence[SegmentUse], quota: int = 8) -> list[int]:
    granted = grant(1, segments=tuple(segments))
    return list(wanted_versions(granted, network(segment_quota=quota), uses))


def test_a_node_without_pods_wants_one_segment_of_each_version() -> None:
    v4, v6 = SEGMENTS[4][0], SEGMENTS[6][0]
    assert wanted([], []) == [4, 6]
    assert wanted([v4], [use(v4)]) == [6]
    assert wanted([v4, v6], [use(v4), use(v6)]) == []


def test_a_network_of_one_version_needs_segments_of_no_other() -> None:
    one = network(pod_cidrs=(ip_network("fd00::/48"),))
    assert wanted_versions(grant(1, segments=()), one, ()) == (6,)


def test_a_spare_is_wanted_once_more_than_half_is_taken() -> None:
    v4, v6 = SEGMENTS[4][0], SEGMENTS[6][0]
    assert wanted([v4, v6], [use(v4, live=126), use(v6, live=126)]) == []
    assert wanted([v4, v6], [use(v4, live=127), use(v6, live=127)]) == [4]


def test_resting_addresses_count_and_those_of_absent_pods_do_not() -> None:
    v4, v6 = SEGMENTS[4][0], SEGMENTS[6][0]
    assert wanted([v4, v6], [use(v4, live=100, resting=27)]) == [4]
    assert wanted([v4, v6], [use(v4, live=3, bound=250)]) == []


def test_an_untouched_segment_is_the_spare_also_one_that_was_granted_just_now() -> None:
    first, spare, v6 = SEGMENTS[4][0], SEGMENTS[4][1], SEGMENTS[6][0]
    assert wanted([first, spare, v6], [use(first, live=253), use(spare)]) == []
    assert wanted([first, spare, v6], [use(first, live=253)]) == []
    assert wanted([first, spare, v6], [use(first, live=253), use(spare, live=1)]) == [4]


def test_a_spare_that_is_in_use_is_replaced_only_when_half_of_all_is_taken() -> None:
    first, second, v6 = SEGMENTS[4][0], SEGMENTS[4][1], SEGMENTS[6][0]
    assert wanted([first, second, v6], [use(first, live=200), use(second, live=53)]) == []
    assert wanted([first, second, v6], [use(first, live=200), use(second, live=54)]) == [4]


def test_the_quota_is_never_exceeded() -> None:
    segments = SEGMENTS[4][:2]
    full = [use(segment, live=253) for segment in segments]
    assert wanted([*segments, SEGMENTS[6][0]], full, quota=2) == []
    assert wanted([*segments, SEGMENTS[6][0]], full, quota=3) == [4]
    assert wanted([], [], quota=0) == []


@given(loads=st.lists(st.integers(0, 9 * 253), max_size=12), quota=st.integers(1, 8))
def test_a_node_that_asks_after_every_change_never_runs_out_and_never_hoards(
    loads: list[int], quota: int
) -> None:
    """Pods come and go, the first segments filled first."""
    segments: list[Prefix] = []
    peak = 0
    for load in [0, *loads]:
        pods = min(load, 253 * max(len(segments), 1))
        peak = max(peak, pods)
        while True:
            uses = [
                use(segment, live=min(max(pods - 253 * i, 0), 253))
                for i, segment in enumerate(segments)
            ]
            if 4 not in wanted([*segments, SEGMENTS[6][0]], uses, quota):
                break
            segments.append(SEGMENTS[4][len(segments)])
        touched = -(-pods // 253)
        assert len(segments) <= min(quota, -(-peak // 253) + 1)
        if 2 * pods > 253 * touched:
            assert len(segments) > touched or len(segments) == quota
