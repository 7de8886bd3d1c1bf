"""Services of the whole cluster: who is in rotation, and why the others are not."""

from __future__ import annotations

from msgspec.structs import replace

from limpet.controller.picture.services import services_of
from limpet.picture.workloads import Service
from limpet.services import values
from limpet.services.catalog import Catalog
from limpet.services.values import (
    READY,
    SERVING,
    TERMINATING,
    Endpoint,
    EndpointPort,
    EndpointSlice,
    ServicePort,
)

WEB = values.Service("shop", "web", "ClusterIP", ("10.96.0.7",), (ServicePort("http", "TCP", 80),))
ENDS = (
    Endpoint("10.8.0.5", node="crane-1", pod="web-1"),
    Endpoint("10.8.1.5", node="crane-2", pod="web-2"),
    Endpoint("10.8.2.5", 0, node="digger-1", pod="web-3"),
    Endpoint("10.8.3.5", SERVING | TERMINATING, node="digger-2", pod="web-4"),
)


def shown(
    *ends: Endpoint, silent: tuple[str, ...] = (), odd: int = 0, web: values.Service = WEB
) -> Service:
    """`odd`: how many slices there are besides, of which something is left out."""
    catalog = Catalog()
    catalog.put(web)
    ports = (EndpointPort("http", "TCP", 8080),)
    catalog.put(EndpointSlice("shop", "web-a", "web", 4, ports, ends))
    for number in range(odd):
        name = f"web-odd-{number}"
        catalog.put(EndpointSlice("shop", name, "web", 4, ports, (), left_out=("ports[1] -7",)))
    (found,) = services_of([web], catalog, {"crane-1": "uid-1"}, silent)
    return found


def test_endpoints_are_told_with_what_keeps_them_out_of_rotation() -> None:
    found = shown(*ENDS)

    assert (found.name, found.addresses, found.ports) == (
        "shop/web",
        ("10.96.0.7",),
        ("http 80/TCP",),
    )
    assert {(each.address, each.in_rotation, each.why) for each in found.endpoints} == {
        ("10.8.0.5:8080", True, ""),
        ("10.8.1.5:8080", True, ""),
        ("10.8.2.5:8080", False, "it is not ready"),
        ("10.8.3.5:8080", False, "it is ending"),
    }
    assert {each.node for each in found.endpoints} == {"uid-1", "crane-2", "digger-1", "digger-2"}
    assert not found.endpoints[0].in_rotation  # somebody may have to do something about it


def test_what_no_node_can_use_of_it_is_told_in_a_few_words() -> None:
    odd = replace(WEB, left_out=("ports[1].port 70000: no port from 1 to 65535",))

    assert shown(*ENDS).left_out == ()
    assert shown(*ENDS, web=odd, odd=1).left_out == (
        "of Service shop/web is left out: ports[1].port 70000: no port from 1 to 65535",
        "of EndpointSlice shop/web-odd-0 is left out: ports[1] -7",
    )
    assert len(shown(*ENDS, web=odd, odd=900).left_out) == 4
    assert shown(*ENDS, web=odd, odd=3).left_out[-1] == "and of 1 more object"
    assert shown(*ENDS, web=odd, odd=900).left_out[-1] == "and of 898 more objects"


def test_the_endpoints_of_a_silent_node_rest_as_long_as_there_are_others() -> None:
    others = shown(*ENDS[:2], silent=("crane-2",))
    alone = shown(ENDS[1], silent=("crane-2",))

    assert {each.why for each in others.endpoints} == {"", "node crane-2 does not answer"}
    assert [each.in_rotation for each in alone.endpoints] == [True]


def test_endpoints_that_are_not_listed_are_counted_all_the_same() -> None:
    ends = [Endpoint(f"10.8.0.{each + 1}", int(each < 25) and READY) for each in range(40)]

    found = shown(*ends)

    assert (found.endpoints_in_rotation, found.endpoints_total) == (25, 40)
    assert len(found.endpoints) == 32
    assert [each.in_rotation for each in found.endpoints] == [False] * 15 + [True] * 17
