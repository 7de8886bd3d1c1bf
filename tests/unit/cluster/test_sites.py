"""Which nodes stand together: by label, by proof, or by the NAT in front of them."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import DefaultCommunity, Network
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.nodes import NodeEntry
from limpet.cluster.topology.reach import may_talk, why_apart
from limpet.cluster.topology.sites import By, Site, sites_of

HARBOUR = Site("harbour", By.LABEL)


def node(
    name: str, *, seen_at: str = "", has: str = "10.0.0.1", gone: bool = False, **labels: str
) -> NodeEntry:
    grant = Grant(name, name, b"", 1, 1, labels=labels, tombstone=gone)
    ends = ((ip_address(seen_at), 51820),) if seen_at else ()
    return NodeEntry(grant, Presence(name, 1, "boot", (ip_address(has),), ends))


def by_name(*nodes: NodeEntry) -> dict[str, NodeEntry]:
    return {each.grant.uid: each for each in nodes}


def test_a_label_says_it_whatever_the_paths_are() -> None:
    nodes = by_name(node("a", site="harbour"), node("b", site="quarry"), node("c"))

    assert sites_of(nodes, [("a", "b")]) == {"a": HARBOUR, "b": Site("quarry", By.LABEL)}


def test_nodes_that_reach_each_other_without_a_tunnel_are_one_site_also_through_others() -> None:
    nodes = by_name(*map(node, "dcba"))
    site = Site("site of a", By.PROVEN)

    assert sites_of(nodes, [("a", "b"), ("c", "b")]) == dict.fromkeys("abc", site)


def test_a_node_without_a_label_is_in_its_neighbours_site() -> None:
    nodes = by_name(node("a", site="harbour"), node("b"))

    assert sites_of(nodes, [("b", "a")]) == {"a": HARBOUR, "b": HARBOUR}


def test_one_public_address_in_front_of_two_makes_a_site_that_says_so() -> None:
    nodes = by_name(
        node("a", seen_at="203.0.113.9"),
        node("b", seen_at="203.0.113.9"),
        node("c", seen_at="203.0.113.8"),
    )

    assert sites_of(nodes, []) == dict.fromkeys("ab", Site("site of a", By.NAT))


def test_a_label_behind_the_same_nat_leaves_what_is_proven() -> None:
    nodes = by_name(
        *(node(name, seen_at="203.0.113.9") for name in "abde"),
        node("c", seen_at="203.0.113.9", site="harbour"),
    )

    found = sites_of(nodes, [("a", "b"), ("d", "c")])

    site = Site("site of a", By.PROVEN)
    assert found == {"a": site, "b": site, "c": HARBOUR, "d": HARBOUR}


def test_an_address_of_its_own_is_no_nat() -> None:
    nodes = by_name(node("a", seen_at="8.8.8.8", has="8.8.8.8"), node("b", seen_at="8.8.8.8"))

    assert sites_of(nodes, []) == {}


def test_who_was_removed_or_is_not_known_is_nowhere() -> None:
    nodes = by_name(node("a", gone=True, site="harbour"), node("b"))

    assert sites_of(nodes, [("b", "stranger")]) == {}


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ((), (), "neither one nor other is in a community"),
        (("x",), (), "share no community: one is in x, other is in no community"),
        (("x",), ("y", "z"), "one is in x, other is in y, z"),
        (("x",), ("x",), ""),
    ],
)
def test_why_two_may_not_talk_is_said_exactly_where_they_may_not(
    one: tuple[str, ...], other: tuple[str, ...], words: str
) -> None:
    network = Network("c", 1, 1, (), (), default_community=DefaultCommunity.NONE)
    first = Grant("1", "one", b"", 1, 1, communities=one)
    second = Grant("2", "other", b"", 1, 1, communities=other)

    why = why_apart(network, first, second)

    assert words in why
    assert bool(why) is not may_talk(network, first, second)
