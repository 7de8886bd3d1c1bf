"""What others are told of this node's tunnel: soon, seldom, and never more than eight."""

from __future__ import annotations

import itertools
from ipaddress import ip_address

from hypothesis import given
from hypothesis import strategies as st

from limpet.base.addresses import Endpoint
from limpet.base.bounds.members import ENDPOINTS_TOLD, ENDPOINTS_TOLD_PER_MINUTE
from limpet.base.bounds.servers import OWN_ENDPOINTS
from limpet.nat.endpoints import DOUBTED_S, GATHER_S, KEPT_S, KnownEndpoints


def at(port: int) -> Endpoint:
    return (ip_address("203.0.113.9"), port)


STATIC = (at(1), at(2))


def told(endpoints: KnownEndpoints, until_s: float) -> list[tuple[float, tuple[Endpoint, ...]]]:
    """All that is told until then, and when."""
    found = []
    while endpoints.wake_at_s <= until_s:
        now_s = max(endpoints.wake_at_s, 0.0)
        news = endpoints.tick(now_s)
        if news is not None:
            found.append((now_s, news))
    return found


def test_static_endpoints_are_told_at_once_and_for_ever() -> None:
    endpoints = KnownEndpoints(STATIC)

    assert endpoints.tick(0) == STATIC
    assert told(endpoints, 10_000) == []


def test_without_any_nothing_is_told() -> None:
    assert KnownEndpoints(()).tick(0) is None


def test_what_comes_together_is_told_once() -> None:
    endpoints = KnownEndpoints(STATIC)
    endpoints.tick(0)

    endpoints.confirm((at(10),), 5)
    endpoints.set_forwarded((at(20),), 5.3)

    assert told(endpoints, 6) == [(5 + GATHER_S, (*STATIC, at(20), at(10)))]


def test_news_that_keep_coming_do_not_put_off_the_telling() -> None:
    endpoints = KnownEndpoints(())
    endpoints.tick(0)
    for n in range(20):
        endpoints.confirm((at(10),), n / 10)

    assert endpoints.wake_at_s == GATHER_S


def test_a_peer_that_sees_another_endpoint_each_time_makes_few_tellings_and_the_last_is_told() -> (
    None
):
    endpoints, tellings = KnownEndpoints(()), 0
    for second in range(600):
        endpoints.confirm((at(1000 + second),), second)
        tellings += len(told(endpoints, second + 0.999))
    assert 30 <= tellings <= ENDPOINTS_TOLD.most + 10 * ENDPOINTS_TOLD_PER_MINUTE.most

    assert told(endpoints, 700)[0][1][0] == at(1599)


def test_what_is_of_no_use_after_all_is_never_told() -> None:
    endpoints = KnownEndpoints(())
    endpoints.tick(0)

    endpoints.confirm((at(10),), 1)
    endpoints.confirm((), 1.1)

    assert told(endpoints, 1000) == []


def test_what_nothing_confirms_goes_after_minutes() -> None:
    endpoints = KnownEndpoints(())
    endpoints.tick(0)
    endpoints.confirm((at(10),), 0)
    endpoints.confirm((at(10),), 100)

    (first, last) = told(endpoints, 10_000)

    assert first[1] == (at(10),)
    assert last == (100 + KEPT_S + GATHER_S, ())


def test_a_mapping_that_has_moved_comes_before_the_one_that_it_was() -> None:
    endpoints = KnownEndpoints(())
    endpoints.tick(0)
    endpoints.confirm((at(10),), 0)
    told(endpoints, 1)

    endpoints.confirm((at(11),), 2)

    assert told(endpoints, 3)[0][1] == (at(11), at(10))


def test_after_the_network_has_changed_what_is_not_confirmed_goes_soon() -> None:
    endpoints = KnownEndpoints(())
    endpoints.tick(0)
    endpoints.confirm((at(10), (ip_address("2001:db8::9"), 10)), 0)
    told(endpoints, 1)

    endpoints.doubt(50)
    endpoints.confirm((at(10),), 51)

    assert told(endpoints, 100) == [(50 + DOUBTED_S + GATHER_S, (at(10),))]


def test_an_endpoint_that_is_one_destinations_alone_goes_soon_and_stays_gone() -> None:
    endpoints, by_ipv6 = KnownEndpoints(()), (ip_address("2001:db8::9"), 10)
    endpoints.tick(0)
    endpoints.confirm((at(10), by_ipv6), 0)  # only one relay has answered
    told(endpoints, 1)

    for now_s in range(1, 100):
        endpoints.confirm((by_ipv6,), now_s, symmetric=(4,))

    assert told(endpoints, 200) == [(1 + DOUBTED_S + GATHER_S, (by_ipv6,))]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.2, 1.0, 30.0, 301.0]),
            st.sampled_from(["confirm", "symmetric", "forwarded", "doubt"]),
            st.lists(st.integers(10, 14), max_size=3, unique=True),
        ),
        max_size=40,
    )
)
def test_tellings_are_seldom_bounded_and_each_is_new(
    steps: list[tuple[float, str, list[int]]],
) -> None:
    endpoints, now_s = KnownEndpoints(STATIC), 0.0
    tellings: list[tuple[float, tuple[Endpoint, ...]]] = []
    for wait_s, what, ports in steps:
        now_s += wait_s
        tellings += told(endpoints, now_s)
        match what:
            case "confirm":
                endpoints.confirm(tuple(map(at, ports)), now_s)
            case "symmetric":
                endpoints.confirm((), now_s, symmetric=(4,))
            case "forwarded":
                endpoints.set_forwarded(tuple(map(at, ports)), now_s)
            case "doubt":
                endpoints.doubt(now_s)
    tellings += told(endpoints, now_s + 1000)

    for (before_s, before), (after_s, after) in itertools.pairwise(tellings):
        assert before != after
        assert after_s >= before_s + GATHER_S or before_s == 0
    for _, each in tellings:
        assert each[: len(STATIC)] == STATIC
        assert len(each) == len(set(each)) <= OWN_ENDPOINTS.most
