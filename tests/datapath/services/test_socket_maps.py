"""Elements of the programs' maps that somebody else changes, takes out or adds are found."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import partial

import pytest

from limpet.base.addresses import packed
from limpet.datapath.services.elements import frontend_key, target_value
from limpet.datapath.services.sockets.layout import (
    FRONTENDS,
    MEMBER,
    MEMBERS,
    SOCKET_MAPS,
    frontend,
    service,
    target,
)
from limpet.datapath.services.sockets.pins_apply import MAPS
from limpet.datapath.services.sockets.side import SocketSide
from limpet.services.values import Service, ServicePort
from tests.beds.namespaces import Netns, talk
from tests.beds.services.service_bed import ADDRESSES, WEB, endpoints_of, slices
from tests.beds.services.socket_bed import SocketBed
from tests.datapath.services.test_sockets import bed, tracked

__all__ = ["bed"]

MANY = 250
"""Services, which is more elements than one look compares."""
_LOOKS = 20
"""More than all elements need."""
_FOREIGN_LOOKS = 10
LIB = ctypes.CDLL("libbpf.so.1")


def fill(bed: SocketBed) -> SocketSide:
    """Many Services of the second pod."""
    two = bed.pods[1]
    ports = tuple(ServicePort(each.name, each.protocol, each.port) for each in WEB.ports)
    pieces = slices(*endpoints_of(*two.addresses))
    bed.put(WEB, *pieces)
    for number in range(MANY):
        name = f"web-{number}"
        bed.catalog.put(Service("shop", name, cluster_ips=(f"10.96.1.{number}",), ports=ports))
        for each in slices(*endpoints_of(*two.addresses), service=name):
            bed.catalog.put(each)
    bed.round([each.key for each in bed.catalog])
    assert bed.part.sockets is not None
    assert bed.why_not == ""
    return bed.part.sockets


def pinned(bed: SocketBed, name: str) -> int:
    fd: int = LIB.bpf_obj_get(os.fsencode(bed.place.pins / MAPS / name))
    assert fd >= 0
    return fd


def put(bed: SocketBed, name: str, key: bytes, value: bytes) -> None:
    fd = pinned(bed, name)
    assert LIB.bpf_map_update_elem(fd, key, value, 0) == 0
    os.close(fd)


def delete(bed: SocketBed, name: str, key: bytes) -> None:
    fd = pinned(bed, name)
    assert LIB.bpf_map_delete_elem(fd, key) == 0
    os.close(fd)


def looks_until_found(side: SocketSide) -> int:
    return next((n for n in range(1, _LOOKS) if side.is_damaged()), _LOOKS)


@pytest.mark.parametrize("name", [FRONTENDS, MEMBERS])
def test_looks_come_by_every_element_in_turn(bed: SocketBed, name: str) -> None:
    side = fill(bed)
    held = side.kernel.elements[name]
    assert not any(side.is_damaged() for _ in range(_LOOKS))
    for key in (list(held)[each] for each in (0, len(held) // 2, -1)):
        changed = bytes(len(held[key]))
        ways: tuple[Callable[[], None], ...] = (
            partial(put, bed, name, key, changed),
            partial(delete, bed, name, key),
        )
        for change in ways:
            change()
            assert looks_until_found(side) < _LOOKS
            side.suspect(maps=True)
            assert bed.run() == 1
            assert not any(side.is_damaged() for _ in range(_LOOKS))
            assert side.kernel.elements[name] is not None


@pytest.mark.parametrize("name", [FRONTENDS, MEMBERS])
def test_of_few_elements_each_look_asks_for_all_and_some_find_what_others_have_added(
    bed: SocketBed, name: str
) -> None:
    bed.put(WEB, *slices(*endpoints_of(*bed.pods[1].addresses)))
    side = bed.part.sockets
    assert side is not None
    held = side.kernel.elements[name]
    last = list(held)[-1]
    assert not any(side.is_damaged() for _ in range(_LOOKS))
    for change in (
        partial(put, bed, name, last, bytes(len(held[last]))),
        partial(delete, bed, name, last),
    ):
        change()
        assert side.is_damaged()
        side.suspect(maps=True)
        assert bed.run() == 1
        assert not any(side.is_damaged() for _ in range(_LOOKS))

    put(bed, name, bytes(len(last)), held[last])
    assert looks_until_found(side) <= _FOREIGN_LOOKS


def test_an_element_that_somebody_adds_leads_where_it_says_until_its_turn_has_come(
    bed: SocketBed,
) -> None:
    one, two = bed.pods
    side = fill(bed)
    foreign = "10.96.9.9"
    key = service(frontend_key(packed(foreign), "TCP", 80))
    slot = target(target_value(two.addresses[0], 8080))
    with two.netns.listening("0.0.0.0", 8080) as server:
        put(bed, FRONTENDS, key, frontend([slot], 0, not_connected=False))
        talk(one.netns, foreign, 80, server)
        assert looks_until_found(side) < _LOOKS
        side.suspect(maps=True)
        assert bed.run() == 1
        assert key not in side.kernel.maps(SOCKET_MAPS)[FRONTENDS].read()
        assert not leads_on(one.netns, foreign)
        assert talk(one.netns, ADDRESSES[0], 80, server) == one.addresses[0]
    assert tracked(bed.node, ADDRESSES[0]) == ""


@pytest.mark.parametrize("name", [FRONTENDS, MEMBERS])
def test_an_element_that_somebody_takes_out_is_found_while_others_change_all_the_time(
    bed: SocketBed, name: str
) -> None:
    """So that nothing follows from how many there are."""
    side = fill(bed)
    held = side.kernel.elements
    keys = {each: list(held[each]) for each in (FRONTENDS, MEMBERS)}

    def is_found() -> bool:
        for each, (first, *_) in keys.items():
            side.kernel.change({}, {each: [(first, held[each][first])]})
        return side.is_damaged()

    assert not any(is_found() for _ in range(2 * _LOOKS))
    delete(bed, name, keys[name][-1])
    assert any(is_found() for _ in range(2 * _LOOKS))


def test_elements_that_are_read_are_in_memory_once_as_far_as_they_are_wanted(
    bed: SocketBed,
) -> None:
    """By an agent that finds its maps filled, after damage, and at a resync."""
    fill(bed)
    bed.end_agent()
    bed.round([each.key for each in bed.catalog])
    side = bed.part.sockets
    assert side is not None
    assert bed.why_not == ""
    assert_shared(bed)
    keys = list(side.kernel.elements[MEMBERS])
    put(bed, MEMBERS, keys[0], bytes(len(MEMBER)))
    delete(bed, MEMBERS, keys[1])
    for changes in (1, 0):
        side.suspect(maps=True)
        assert bed.run() == changes
        assert_shared(bed)


def assert_shared(bed: SocketBed) -> None:
    """What is held of the maps, beside those of pods, are the plan's own keys and values."""
    wanted = bed.part.plan().sockets
    assert bed.part.sockets is not None
    assert wanted[FRONTENDS]
    assert wanted[MEMBERS]
    for name in SOCKET_MAPS:
        held = bed.part.sockets.kernel.elements[name]
        assert held == wanted[name]
        shared = set(map(id, (*wanted[name], *wanted[name].values())))
        assert set(map(id, (*held, *held.values()))) <= shared, name


def leads_on(client: Netns, address: str) -> bool:
    try:
        with client.connected(address, 80, patience_s=1):
            return True
    except OSError:
        return False
