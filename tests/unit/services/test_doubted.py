"""What a server says of endpoints that it could not hear, to who was cut off as well."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from limpet.services.doubted import has_doubts, with_doubts, without_doubts
from limpet.services.values import READY, SERVING, TERMINATING, Endpoint, EndpointSlice

states = st.lists(
    st.builds(
        Endpoint,
        address=st.integers(1, 5).map(lambda number: f"10.1.0.{number}"),
        conditions=st.sampled_from((READY | SERVING, 0, SERVING | TERMINATING, TERMINATING)),
        node=st.sampled_from(("a", "b")),
        pod=st.sampled_from(("web-1", "web-2")),
    ),
    max_size=5,
    unique_by=lambda each: (each.address, each.node, each.pod),
)


def piece(*found: Endpoint, name: str = "web-1") -> EndpointSlice:
    return EndpointSlice("shop", name, "web", 4, (), found)


def same(one: Endpoint, other: Endpoint) -> bool:
    return (one.address, one.node, one.pod) == (other.address, other.node, other.pod)


@given(states, states)
def test_in_doubt_is_who_was_ready_and_is_neither_ready_nor_ending(
    before: list[Endpoint], told: list[Endpoint]
) -> None:
    found = with_doubts(piece(*told), [piece(*before)])

    for was_told, each in zip(told, found.endpoints, strict=True):
        was_ready = any(same(was_told, x) and x.is_ready for x in before)
        assert each.is_doubted == (was_ready and was_told.conditions == 0)
    assert without_doubts(found) == piece(*told)
    assert not has_doubts(without_doubts(found))


@given(states, states)
def test_a_doubt_lasts_until_a_server_says_something_else(
    before: list[Endpoint], told: list[Endpoint]
) -> None:
    once = with_doubts(piece(*told), [piece(*before)])

    assert with_doubts(piece(*told), [once]) == once


def test_a_pod_that_moved_to_another_slice_is_known_there_and_another_one_is_not() -> None:
    ready = Endpoint("10.1.0.2", node="a", pod="web-1")
    told = replace(ready, conditions=0)

    assert has_doubts(with_doubts(piece(told, name="web-2"), [piece(ready)]))
    assert not has_doubts(with_doubts(piece(replace(told, pod="web-2")), [piece(ready)]))
    assert not has_doubts(with_doubts(piece(told), []))
