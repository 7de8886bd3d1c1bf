"""Services of the whole cluster: who is in rotation, and why the others are not."""

from __future__ import annotations

from limpet.controller.picture.services import services_of
from limpet.picture.workloads import Service
from limpet.services import values
from limpet.services.catalog import Catalog
from limpet.services.values import (
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


def shown(*ends: Endpoint, silent: tuple[str, ...] = ()) -> Service:
    catalog = Catalog()
    catalog.put(WEB)
    ports = (EndpointPort("http", "TCP", 8080),)
    catalog.put(EndpointSlice("shop", "web-a", "web", 4, ports, ends))
    (found,) = services_of([WEB], catalog, {"crane-1": "uid-1"}, silent)
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


def test_the_endpoints_of_a_silent_node_rest_as_long_as_there_are_others() -> None:
    others = shown(*ENDS[:2], silent=("crane-2",))
    alone = shown(ENDS[1], silent=("crane-2",))

    assert {each.why for each in others.endpoints} == {"", "node crane-2 does not answer"}
    assert [each.in_rotation for each in alone.endpoints] == [True]
