"""Whether a node's addresses and routes leave room for pods."""

from __future__ import annotations

from ipaddress import ip_interface, ip_network

from hypothesis import given
from hypothesis import strategies as st

from limpet.base.addresses import Prefix
from limpet.cli.doctor.findings import Level
from limpet.cli.install.overlaps import HeldAddress, HeldRoute, find_overlaps, without_own


@st.composite
def prefixes(draw: st.DrawFn) -> Prefix:
    """Few different ones, so that they meet often."""
    if draw(st.booleans()):
        length = draw(st.integers(8, 32))
        return ip_network((0x0AF40000 | draw(st.integers(0, 0x3FF)), length), strict=False)
    length = draw(st.integers(48, 128))
    number = (0xFD000007 << 96) | draw(st.integers(0, 0x3FF))
    return ip_network((number, length), strict=False)


@given(st.lists(prefixes(), max_size=3), st.lists(prefixes(), max_size=3), st.lists(prefixes()))
def test_an_address_is_an_error_when_and_only_when_it_overlaps(
    segments: list[Prefix], cidrs: list[Prefix], held: list[Prefix]
) -> None:
    addresses = [HeldAddress("eth0", ip_interface(str(prefix))) for prefix in held]

    found = find_overlaps(segments, cidrs, addresses, [])

    clashes = [
        prefix
        for prefix in held
        if any(p.version == prefix.version and p.overlaps(prefix) for p in [*segments, *cidrs])
    ]
    assert [finding.level for finding in found] == [Level.ERROR] * len(clashes)


@given(st.lists(prefixes(), max_size=3), st.lists(prefixes(), max_size=3), st.sets(prefixes()))
def test_a_route_is_an_error_inside_and_a_warning_around_the_pods(
    segments: list[Prefix], cidrs: list[Prefix], held: set[Prefix]
) -> None:
    wanted = [*segments, *cidrs]
    expected = []
    for prefix in held:
        meet = [p for p in wanted if p.version == prefix.version and p.overlaps(prefix)]
        inside = any(p.prefixlen <= prefix.prefixlen for p in meet)
        expected += [Level.ERROR if inside else Level.WARN] if meet else []

    found = find_overlaps(segments, cidrs, [], [HeldRoute(prefix, "eth0") for prefix in held])

    assert sorted(finding.level for finding in found) == sorted(expected)


def test_the_route_of_an_address_is_not_told_of_twice() -> None:
    lan = HeldAddress("eth0", ip_interface("10.244.7.20/24"))
    route = HeldRoute(ip_network("10.244.7.0/24"), "eth0")

    (finding,) = find_overlaps([ip_network("10.244.0.0/16")], [], [lan], [route])

    assert "eth0 has 10.244.7.20/24" in finding.what


def test_loopback_link_local_and_our_own_links_are_no_strangers() -> None:
    held = [
        HeldAddress("lo", ip_interface("127.0.0.1/8")),
        HeldAddress("eth0", ip_interface("fe80::1/64")),
        HeldAddress("limpet0", ip_interface("10.244.7.1/24")),
        HeldAddress("eth0", ip_interface("192.0.2.1/24")),
    ]

    assert list(without_own(held, ["limpet0"])) == held[3:]
