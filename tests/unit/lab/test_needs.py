"""What topologies need of the machine, and for whom."""

from __future__ import annotations

import pytest

from limpet.lab.needs.check import PACKAGES
from limpet.lab.needs.plan import NeedKind, needs_ipv6, needs_of
from limpet.lab.topology import Topology, load_topology, parse_topology, topology_names

TEXT = """
[cloud]
addresses = ["203.0.113.10/24"]
[site.one]
lan = ["192.168.10.0/24", "fd00:10::/64"]
nodes = {{ a = 0, b = 0 }}
{one}
[site.two]
lan = ["192.168.20.0/24", "fd00:20::/64"]
nodes = {{ c = 0 }}
{two}
"""
ACROSS = {("a", "c"), ("b", "c")}


def given(*, one: str = "", two: str = "", more: str = "") -> Topology:
    return parse_topology(more + TEXT.format(one=one, two=two), "given", "given.toml")


def kinds(topology: Topology) -> set[NeedKind]:
    return {need.kind for need in needs_of(topology)}


def pairs(topology: Topology, kind: NeedKind) -> set[tuple[str, str]]:
    return {pair for need in needs_of(topology) if need.kind is kind for pair in need.pairs}


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("one-lan", set()),
        ("filtering-switch", {NeedKind.VXLAN, NeedKind.BRIDGE_FILTER}),
        ("two-sites", {NeedKind.VXLAN}),
        ("three-sites", {NeedKind.VXLAN}),
        ("demo", {NeedKind.WIREGUARD}),
        ("nated", {NeedKind.WIREGUARD}),
        ("nat-matrix", {NeedKind.WIREGUARD}),
        ("kube", {NeedKind.VXLAN, NeedKind.KUBERNETES}),
        ("kube-bare", {NeedKind.VXLAN, NeedKind.WIREGUARD, NeedKind.KUBERNETES}),
    ],
)
def test_each_topology_that_comes_with_limpet_needs_what_its_sites_are(
    name: str, needed: set[NeedKind]
) -> None:
    assert kinds(load_topology(name)) == needed | {NeedKind.PROGRAM, NeedKind.KERNEL}


def test_all_that_come_with_limpet_are_known_here() -> None:
    assert len(topology_names()) == 9


def test_neighbours_and_private_sites_without_a_nat_need_no_tunnel() -> None:
    assert pairs(given(), NeedKind.VXLAN) == ACROSS
    assert pairs(given(), NeedKind.WIREGUARD) == set()
    assert pairs(given(one="drops_unknown_sources = true"), NeedKind.VXLAN) == {*ACROSS, ("a", "b")}


@pytest.mark.parametrize("way", ["cut", "nat", "public"])
def test_a_nat_blocked_udp_and_public_addresses_lead_to_tunnels(way: str) -> None:
    text = {"cut": 'udp = "blocked"', "nat": "", "public": ""}[way]
    topology = given(one=text)
    if way != "cut":
        lan = '["192.168.10.0/24"]\nnat = "cone"' if way == "nat" else '["198.51.100.0/24"]'
        written = TEXT.format(one="", two="")
        text = written.replace('["192.168.10.0/24", "fd00:10::/64"]', lan)
        topology = parse_topology(text, "given", "given.toml")

    assert pairs(topology, NeedKind.WIREGUARD) == ACROSS
    assert pairs(topology, NeedKind.VXLAN) == set()


def test_programs_are_needed_for_what_a_file_asks_for() -> None:
    def programs(topology: Topology) -> set[str]:
        return {need.program for need in needs_of(topology) if need.program}

    always = {"ip", "nft", "nsenter"}
    assert programs(given(more="disk_mib = 0\n")) == always
    assert programs(given()) == {*always, "mount"}
    assert programs(given(two="rate_mbit = 10")) == {*always, "mount", "tc"}
    late = given(two="delay_ms = 10", more="ipsec = true\n")
    assert kinds(late) >= {NeedKind.LATE_LINK, NeedKind.IPSEC}
    assert programs(late) <= PACKAGES.keys()


def test_ipv6_is_needed_unless_neither_machines_nor_pods_have_it() -> None:
    assert needs_ipv6(given())
    lans = (
        TEXT.format(one="", two="").replace(', "fd00:10::/64"', "").replace(', "fd00:20::/64"', "")
    )
    assert needs_ipv6(parse_topology(lans, "given", "given.toml"))
    v4 = lans + '[controller]\npod_cidrs = ["10.1.0.0/16"]\n'
    assert not needs_ipv6(parse_topology(v4, "given", "given.toml"))
