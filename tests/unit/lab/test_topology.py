"""Topology files."""

from __future__ import annotations

import contextlib
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.lab.command import LabError
from limpet.lab.topology import Topology, load_topology, parse_topology, topology_names
from limpet.lab.world.site import Nat

CLOUD = '[cloud]\naddresses = ["203.0.113.10/24", "2001:db8:c::10/64"]\n'
SITE = '[site.one]\nlan = ["192.168.10.0/24", "fd00:10::/64"]\nnodes = { a = 1, b = 2 }\n'
OTHER = '[site.two]\nlan = ["192.168.20.0/24", "fd00:20::/64"]\nnodes = { c = 0 }\n'


def parse(text: str) -> Topology:
    return parse_topology(text, "given", "given.toml")


def refusal(text: str) -> str:
    with pytest.raises(LabError) as refused:
        parse(text)
    return str(refused.value)


@pytest.mark.parametrize("name", topology_names())
def test_every_topology_that_comes_with_limpet_can_be_built(name: str) -> None:
    topology = load_topology(name)

    assert topology.name == name
    assert list(topology.nodes)
    assert all(node.addresses for _, node in topology.nodes)


def test_the_demo_and_the_filtering_switch_come_with_limpet() -> None:
    names = topology_names()

    assert {"two-sites", "one-lan", "filtering-switch", "three-sites", "nated"} <= set(names)
    assert load_topology("filtering-switch").sites[0].drops_unknown_sources


def test_nodes_get_addresses_of_their_lan_and_macs_of_their_own() -> None:
    topology = parse(CLOUD + SITE + OTHER)

    nodes = {node.name: node for _, node in topology.nodes}
    assert {name: [str(a) for a in node.addresses] for name, node in nodes.items()} == {
        "a": ["192.168.10.11/24", "fd00:10::b/64"],
        "b": ["192.168.10.12/24", "fd00:10::c/64"],
        "c": ["192.168.20.11/24", "fd00:20::b/64"],
    }
    assert {name: node.pods for name, node in nodes.items()} == {"a": 1, "b": 2, "c": 0}
    assert len({node.mac for node in nodes.values()}) == 3


def test_what_is_read_can_be_read_again_from_its_text() -> None:
    topology = parse(CLOUD + SITE)

    assert parse(topology.text) == topology


def test_the_same_lan_numbering_at_two_sites_is_refused_with_both_names() -> None:
    words = refusal(CLOUD + SITE + OTHER.replace("192.168.20.0/24", "192.168.10.0/24"))

    assert "site.two.lan: 192.168.10.0/24 overlaps 192.168.10.0/24 of site one" in words
    assert "plain routing" in words
    assert "number each LAN differently, or give both sites a NAT" in words


def test_sites_behind_nats_may_number_their_lans_alike_but_not_like_what_others_route_to() -> None:
    one = SITE.replace(', "fd00:10::/64"', "") + 'nat = "cone"\n'
    alike = OTHER.replace('"192.168.20.0/24", "fd00:20::/64"', '"192.168.10.0/25"')

    topology = parse(CLOUD + one + alike + 'nat = "cgn"\n')
    words = refusal(CLOUD + one + alike)

    assert [site.nat for site in topology.sites] == [Nat.CONE, Nat.CGN]
    assert [site.routed for site in topology.sites] == [(), ()]
    assert "site.two.lan: 192.168.10.0/25 overlaps 192.168.10.0/24 of site one" in words


def test_what_a_gateway_does_is_read_and_has_defaults() -> None:
    told = 'nat = "symmetric"\nhairpin = true\nudp = "blocked"\nudp_timeout_s = 9\nrate_mbit = 7\n'
    told += "delay_ms = 5\nloss_percent = 2\n"
    four = SITE.replace(', "fd00:10::/64"', "")

    (site,) = parse(CLOUD + four + told).sites
    (plain,) = parse(CLOUD + SITE).sites

    assert (site.nat, site.hairpin, site.udp_blocked) == (Nat.SYMMETRIC, True, True)
    assert (site.udp_timeout_s, site.uplink.rate_mbit) == (9, 7)
    assert (site.uplink.delay_ms, site.uplink.loss_percent, site.uplink.is_late) == (5, 2, True)
    assert (plain.nat, plain.hairpin, plain.udp_blocked) == (Nat.NONE, False, False)
    assert (plain.udp_timeout_s, plain.uplink.rate_mbit) == (30, 0)
    assert (plain.uplink.delay_ms, plain.uplink.loss_percent, plain.uplink.is_late) == (0, 0, False)


def test_nodes_of_the_cloud_are_in_its_network_and_relays_have_that_role_too() -> None:
    cloud = CLOUD.replace("::10/", "::a/") + 'nodes = { hub = 2, quay = 0 }\nrelays = ["hub"]\n'

    topology = parse(cloud + SITE + 'relays = ["b"]\n')

    nodes = {node.name: (site.name, node) for site, node in topology.nodes}
    assert {name: (site, node.roles) for name, (site, node) in nodes.items()} == {
        "hub": ("cloud", ("cloud", "relay")),
        "quay": ("cloud", ("cloud",)),
        "a": ("one", ("edge",)),
        "b": ("one", ("edge", "relay")),
    }
    assert [str(a) for a in nodes["hub"][1].addresses] == ["203.0.113.11/24", "2001:db8:c::b/64"]
    assert len({node.mac for _, node in nodes.values()}) == 4


def test_a_public_address_that_changes_is_a_new_one_for_a_long_time() -> None:
    site = parse(CLOUD + SITE).sites[0]

    seen = {site.wan_addresses(changes)[0] for changes in range(250)}

    assert len(seen) == 250
    assert not seen & set(site.backbone_addresses)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "[cloud] is missing"),
        (CLOUD, "[site] is missing"),
        (CLOUD + "[site]\n", "no site"),
        ("nonsense = = 1", "parse topology given.toml"),
        (CLOUD + SITE + "[clouds]\n", "unknown key 'clouds'"),
        (CLOUD + SITE + "color = 1\n", "unknown key 'color' in [site.one]"),
        (CLOUD.replace(".10/24", ".1/24") + SITE, "is the backbone's"),
        (CLOUD + SITE.replace('"192.168.10.0/24"', '"192.168.10.1/24"'), "has host bits set"),
        (CLOUD + SITE.replace('"fd00:10::/64"', '"10.0.0.0/8"'), "more than one of IPv4"),
        (CLOUD + SITE.replace("b = 2", "b = -1"), "site.one.nodes.b (its number of pods) = -1"),
        (CLOUD + SITE.replace("b = 2", 'b = "two"'), "not a whole number from 0 to 200"),
        (CLOUD + SITE.replace("b = 2", "cloud = 2"), "the lab's own word"),
        (CLOUD + SITE.replace("b = 2", "Big_Name = 2"), "is no name for the lab"),
        (CLOUD + SITE + OTHER.replace("c = 0", "a = 0"), "two nodes or sites have the name a"),
        (CLOUD + SITE.replace("/24", "/29"), "2 nodes do not fit into 192.168.10.0/29"),
        (CLOUD + SITE + "mtu_bytes = 100\n", "site.one.mtu_bytes = 100"),
        (CLOUD + SITE + 'drops_unknown_sources = "yes"\n', "neither true nor false"),
        (CLOUD + SITE.replace("192.168.10.0/24", "100.64.0.0/24"), "the links between sites"),
        (CLOUD + SITE.replace("192.168.10.0/24", "198.18.7.0/24"), "the links between sites"),
        (CLOUD + SITE + 'nat = "hard"\n', "site.one.nat = 'hard': not one of none, cone, port-r"),
        (CLOUD + SITE + "nat = []\n", "site.one.nat = []: not one of none"),
        (CLOUD + SITE + 'nat = "cone"\n', "fd00:10::/64 is a site's own, and nothing translates"),
        (
            CLOUD + SITE.replace('"192.168.10.0/24", ', "") + 'nat = "cone"\n',
            "has no IPv4 to translate",
        ),
        (CLOUD + SITE + "hairpin = true\n", "site.one.hairpin: there is no NAT"),
        (CLOUD + SITE + 'udp = "closed"\n', "site.one.udp = 'closed': not one of open, blocked"),
        (CLOUD + SITE + "udp_timeout_s = 0\n", "site.one.udp_timeout_s = 0: not a whole number"),
        (CLOUD + SITE + "delay_ms = 2.5\n", "site.one.delay_ms = 2.5: not a whole number from 0"),
        (CLOUD + SITE + "loss_percent = 100\n", "site.one.loss_percent = 100: not a whole number"),
        (CLOUD + SITE + "rate_mbit = -1\n", "site.one.rate_mbit = -1: not a whole number"),
        (CLOUD + SITE + 'relays = ["c"]\n', "site.one.relays: 'c' is none of a, b"),
        (
            CLOUD + 'relays = ["c"]\nnodes = { hub = 1 }\n' + SITE,
            "cloud.relays: 'c' is none of hub",
        ),
        (CLOUD + 'relays = ["c"]\n' + SITE, "[cloud.nodes] is missing"),
        (CLOUD + "nodes = { a = 1 }\n" + SITE, "two nodes or sites have the name a"),
        (
            CLOUD.replace(".10/24", ".11/24") + "nodes = { hub = 1 }\n" + SITE,
            "cloud.addresses: 203.0.113.11/24 is the one that node hub gets",
        ),
        (CLOUD + SITE.replace("192.168.10.0/24", "203.0.113.0/24"), "of the cloud"),
        (
            CLOUD.replace(', "2001:db8:c::10/64"', "") + SITE.replace('"192.168.10.0/24", ', ""),
            "no IP version in common",
        ),
    ],
)
def test_a_mistake_is_named_with_its_field_and_file(text: str, words: str) -> None:
    said = refusal(text)

    assert words in said
    assert "given.toml" in said


def test_a_name_that_is_neither_a_file_nor_known_lists_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"there are: .*two-sites"):
        load_topology(str(tmp_path / "absent.toml"))


def test_a_file_is_read_by_its_path_and_named_after_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(CLOUD + SITE)

    assert load_topology(str(file)).name == "mine"


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(c):08x}" for c in value) + '"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return "0" if value is None else str(value)


@given(
    key=st.sampled_from(
        [
            "cloud",
            "site",
            "site.one",
            "site.one.lan",
            "site.one.nodes",
            "cloud.addresses",
            "disk_mib",
        ]
    ),
    value=_values,
)
def test_whatever_stands_in_a_field_it_is_read_or_refused_in_words(key: str, value: Any) -> None:
    with pytest.raises(LabError, match=r"given\.toml"):
        parse(f"{key} = {_toml(value)}\n")  # whatever it is, something is missing
    with contextlib.suppress(LabError):
        parse(f"{key} = {_toml(value)}\n" + CLOUD + SITE)


@given(
    sites=st.lists(
        st.tuples(st.integers(0, 255), st.integers(18, 26), st.integers(0, 20)),
        min_size=1,
        max_size=5,
    )
)
def test_no_two_machines_of_a_world_share_an_address(sites: list[tuple[int, int, int]]) -> None:
    text = CLOUD
    for number, (third, length, nodes) in enumerate(sites):
        names = ", ".join(f"n{number}-{each} = 0" for each in range(nodes))
        network = f"172.16.{third & (0xFF << max(0, 24 - length)) & 0xFF}.0/{length}"
        text += f'[site.s{number}]\nlan = ["{network}"]\nnodes = {{ {names} }}\n'
    try:
        topology = parse(text)
    except LabError:
        return  # two of them overlap

    machines = [node for _, node in topology.nodes]
    for one, other in combinations(machines, 2):
        assert {a.ip for a in one.addresses}.isdisjoint(a.ip for a in other.addresses)
        assert one.mac != other.mac
    for site, node in topology.nodes:
        assert all(
            address.network == prefix
            for address, prefix in zip(node.addresses, site.lan, strict=True)
        )
        assert not set(node.addresses) & set(site.router_addresses)
