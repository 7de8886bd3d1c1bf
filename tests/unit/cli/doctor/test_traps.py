"""What is said of routes and links of others, by what the kernel tells of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from limpet.cli.doctor.machine import traps
from limpet.cli.doctor.machine.traps import examine_default_route, examine_leftovers
from limpet.linux.netlink.codec import AF_INET
from limpet.linux.netlink.link_codec import IFF_UP, LinkInfo
from limpet.linux.netlink.route_codec import (
    RT_TABLE_MAIN,
    RTN_UNICAST,
    RTN_UNREACHABLE,
    RouteInfo,
)


@dataclass
class Kernel:
    """Takes the place of a netlink socket, and of the call that opens it."""

    found_routes: list[RouteInfo] = field(default_factory=list)
    found_links: list[LinkInfo] = field(default_factory=list)

    def __call__(self) -> Kernel:
        return self

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def routes(self) -> list[RouteInfo]:
        return self.found_routes

    def links(self) -> dict[int, LinkInfo]:
        return {each.ifindex: each for each in self.found_links}


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()
    monkeypatch.setattr(traps, "RouteSocket", made)
    return made


def default_route(kind: int, ifindex: int) -> RouteInfo:
    gateway = b"\xc0\x00\x02\x01" if ifindex else b""
    return RouteInfo(AF_INET, b"", 0, RT_TABLE_MAIN, kind, 16, ifindex, gateway, b"", 0, 0)


@pytest.mark.parametrize(
    ("kind", "ifindex", "told"),
    [
        (RTN_UNICAST, 2, []),
        (RTN_UNICAST, 0, []),  # of several next hops: none of them is the route's own link
        (RTN_UNREACHABLE, 0, ["no-default-route"]),
        (RTN_UNREACHABLE, 1, ["no-default-route"]),  # of IPv6, by lo
    ],
)
def test_a_default_route_is_one_that_leads_somewhere_by_one_link_or_by_several(
    kernel: Kernel, kind: int, ifindex: int, told: list[str]
) -> None:
    kernel.found_routes = [default_route(kind, ifindex)]

    assert [each.id for each in examine_default_route([4])] == told


def test_a_pod_does_not_see_the_programs_of_links_that_it_sees(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kernel.found_links = [LinkInfo(7, "flannel.1", IFF_UP, "", 1450, 0, 0, "vxlan", "")]

    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert [each.id for each in examine_leftovers(tmp_path)] == ["leftover-links"]
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert list(examine_leftovers(tmp_path)) == []
