"""Endpoints of a headless Service are found as if all of them had been gone through."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from limpet.services.headless import HeadlessEndpoint, HeadlessService, as_usual
from limpet.services.rotation import Here
from limpet.services.values import DOUBTED, READY, Endpoint, EndpointPort, EndpointSlice

NODES = ["", "a", "b", "c", "d"]
ADDRESSES = [*(f"10.0.0.{n}" for n in range(1, 9)), "fd00::1", "fd00:0::2", "FD00::3"]
HOSTS = ["", "", "one", "Two", "10-0-0-3"]


def a_slice(chance: random.Random, name: str) -> EndpointSlice:
    version = chance.choice((4, 6))
    mine = [each for each in ADDRESSES if (":" in each) == (version == 6)]
    endpoints = tuple(
        Endpoint(
            chance.choice(mine),
            chance.choice((READY, READY, DOUBTED, 0)),
            node=chance.choice(NODES),
            hostname=chance.choice(HOSTS),
        )
        for _ in range(chance.randrange(6))
    )
    names = ("sql", "web", "")
    ports = tuple(
        EndpointPort(chance.choice(names), chance.choice(("TCP", "UDP")), chance.randrange(1, 4))
        for _ in range(chance.randrange(3))
    )
    return EndpointSlice("x", name, "db", version, ports, endpoints)


def a_moment(chance: random.Random) -> Here:
    some = [node for node in NODES[1:] if chance.random() < 0.6]
    return Here(
        chance.choice(NODES),
        silent=frozenset(node for node in NODES if chance.random() < 0.3),
        gone=frozenset(each for each in ADDRESSES if chance.random() < 0.2),
        distances={node: chance.randrange(1, 4) for node in some},
    )


def told(slices: Iterable[EndpointSlice], *, in_any_state: bool) -> list[HeadlessEndpoint]:
    return [
        HeadlessEndpoint(piece.name, at, each)
        for piece in sorted(slices, key=lambda each: each.name)
        for at, each in enumerate(piece.endpoints)
        if each.is_ready or each.is_doubted or in_any_state
    ]


def in_rotation(
    found: list[HeadlessEndpoint], here: Here, *, in_any_state: bool
) -> list[HeadlessEndpoint]:
    """The same, by going through all of them, for one family after the other."""
    kept: list[HeadlessEndpoint] = []
    for is_v6 in (False, True):
        mine = [each for each in found if (":" in each.endpoint.address) == is_v6]
        if not in_any_state:
            mine = [each for each in mine if each.endpoint.is_ready] or mine
            mine = [each for each in mine if not here.doubts(each.endpoint)] or mine
        kept += mine
    return sorted(
        kept,
        key=lambda x: (
            in_any_state and here.doubts(x.endpoint), here.distance(x.endpoint), x[:2],
        ),
    )  # fmt: skip


@pytest.mark.parametrize("in_any_state", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_what_is_kept_after_changes_is_what_going_through_all_would_find(
    seed: int, in_any_state: bool
) -> None:
    chance = random.Random(seed)
    held = HeadlessService(in_any_state=in_any_state)
    slices: dict[str, EndpointSlice] = {}
    known: set[str] = set()
    for _ in range(40):
        for name in chance.sample("pqrs", chance.randrange(1, 3)):
            if chance.random() < 0.3:
                slices.pop(name, None)
            else:
                slices[name] = a_slice(chance, name)
        come, gone = held.update(slices.values())
        known = (known | come) - gone
        here = a_moment(chance)
        found = told(slices.values(), in_any_state=in_any_state)

        assert known == held.by_address.keys() == {as_usual(x.endpoint.address) for x in found}
        whole = in_rotation(found, here, in_any_state=in_any_state)
        assert held.nearest(here, 100) == whole
        for hostname in {each.hostname for each in found} | {"none", "10-0-0-9"}:
            mine = [each for each in found if each.hostname == hostname]
            wanted = in_rotation(mine, here, in_any_state=in_any_state)
            assert held.named(hostname, here, 100) == wanted
        for at in (("TCP", "sql"), ("UDP", "web")):
            numbers = {
                piece.name: {x.port for x in piece.ports if (x.protocol, x.name) == at}
                for piece in slices.values()
                if any(each.piece == piece.name for each in found)
            }
            ports = {piece: set(each) for piece, each in held.ports(*at).items()}
            assert ports == {piece: each for piece, each in numbers.items() if each}


def test_of_many_no_more_than_is_wanted_is_found_and_the_nearest() -> None:
    nodes = ("far", "near", "unknown")
    endpoints = tuple(Endpoint(f"10.0.0.{n}", node=nodes[n % 3]) for n in range(1, 91))
    held = HeadlessService(in_any_state=False)
    held.update([EndpointSlice("x", "p", "db", 4, (), endpoints)])
    here = Here("here", distances={"near": 1, "far": 2})

    assert {each.endpoint.node for each in held.nearest(here, 30)} == {"near"}
    assert [each.endpoint.node for each in held.nearest(here, 31)][-1] == "far"


def test_a_slice_of_names_has_no_addresses_however_they_are_written() -> None:
    one = Endpoint("10.0.0.1")
    slices = [
        EndpointSlice("x", "names", "db", 0, (), (Endpoint("a:b"), Endpoint("10.0.0.1"))),
        EndpointSlice("x", "addresses", "db", 4, (), (one,)),
    ]
    service = HeadlessService(in_any_state=False)

    assert service.update(slices) == ({"10.0.0.1"}, set())
    assert [each.endpoint for each in service.nearest(Here(), 9)] == [one]
    assert service.update(slices[1:]) == (set(), set())
    assert service.update(slices[:1]) == (set(), {"10.0.0.1"})
    assert service.nearest(Here(), 9) == []
