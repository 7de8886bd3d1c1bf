"""Roles of nodes, and the networks behind them."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.base.addresses import Prefix
from limpet.base.bounds.administrators import BEHIND
from limpet.cluster.kinds.grant import Grant, Role
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.tables import Tables
from limpet.controller.state import nodes, published
from limpet.controller.state.nodes import Altered
from limpet.controller.state.problems import problems_of
from tests.effort import examples
from tests.unit.cluster_values import node_key, presence, seal_presence
from tests.unit.controller.state.cluster_tables import copy, join, new_tables

KEEP_ROLES: Altered[Role] = Altered()
KEEP_BEHIND: Altered[Prefix] = Altered()


def prefixes(*texts: str) -> frozenset[Prefix]:
    return frozenset(map(ip_network, texts))


def put_behind(tables: Tables, name: str, *texts: str) -> Grant:
    return nodes.set_node(tables, name, KEEP_ROLES, Altered(prefixes(*texts)))


def make_relay(tables: Tables, name: str, *, anyway: bool = False) -> Grant:
    roles = Altered(add=frozenset({Role.RELAY}))
    return nodes.set_node(tables, name, roles, KEEP_BEHIND, anyway=anyway)


def publish(tables: Tables, number: int, sequence: int = 1, **changes: object) -> Grant:
    said = presence(number, sequence, **changes)
    published.publish(tables, said.uid, seal_presence(said, node_key(number)), 0.0)
    return tables.grants[said.uid]


def refused(tables: Tables, number: int, *texts: str) -> str:
    with pytest.raises(RefusedError) as caught:
        put_behind(tables, f"n{number}", *texts)
    return str(caught.value)


def a_cluster(count: int = 3) -> Tables:
    tables = new_tables(service_cidrs=(ip_network("10.96.0.0/16"),))
    for number in range(1, count + 1):
        join(tables, number, f"n{number}")
    return tables


@st.composite
def _prefixes(draw: st.DrawFn) -> Prefix:
    length = draw(st.integers(8, 24))
    third = draw(st.sampled_from([0, 1, 16, 96, 244, 245])) << 16
    return ip_network((10 << 24 | third, length), strict=False)


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(
            st.integers(1, 3),
            st.none() | st.frozensets(_prefixes(), max_size=3),
            st.frozensets(_prefixes(), max_size=2),
            st.frozensets(_prefixes(), max_size=1),
        ),
        max_size=8,
    )
)
def test_an_address_is_behind_one_node_at_most_and_no_pods_or_services(
    asked: list[tuple[int, frozenset[Prefix] | None, frozenset[Prefix], frozenset[Prefix]]],
) -> None:
    tables = a_cluster()
    kept = [*tables.network.pod_cidrs, *tables.network.service_cidrs]
    for number, only, add, drop in asked:
        position, before = tables.position, dict(tables.grants)
        (name,) = (each.uid for each in before.values() if each.name == f"n{number}")
        wanted = Altered(only, add, drop)
        try:
            grant = nodes.set_node(tables, name, KEEP_ROLES, wanted)
        except RefusedError:
            tables.undo(position)
            assert tables.grants == before
            continue
        assert set(grant.prefixes_behind) == wanted.of(before[name].prefixes_behind)
        changed = grant.prefixes_behind != before[name].prefixes_behind
        assert grant.generation - before[name].generation == (1 if changed else 0)
    behind = [prefix for each in tables.grants.values() for prefix in each.prefixes_behind]
    assert not any(one.overlaps(other) for one, other in combinations([*behind, *kept], 2))
    assert copy(tables).grants == tables.grants


def test_what_can_not_be_behind_a_node_is_refused_with_what_is_in_the_way() -> None:
    tables = a_cluster()
    put_behind(tables, "n1", "10.1.0.0/16", "2001:db8:1::/48")

    assert "overlaps the cluster's pod CIDR 10.244.0.0/16" in refused(tables, 2, "10.244.9.0/24")
    assert "overlaps the cluster's service CIDR 10.96.0.0/16" in refused(tables, 2, "10.96.0.0/12")
    assert "limpet node set n1 --remove-behind 10.1.0.0/16" in refused(tables, 2, "10.1.2.0/24")
    assert "behind n2: an address" in refused(tables, 2, "10.3.0.0/16", "10.3.7.0/24")
    assert "which no node forwards" in refused(tables, 2, "169.254.0.0/16")
    assert "pod CIDR" in refused(tables, 2, "0.0.0.0/0")
    many = [f"172.16.{number}.0/24" for number in range(BEHIND.most + 1)]
    assert "name wider ones" in refused(tables, 2, *many)
    with pytest.raises(RefusedError, match=r"it is not there \(there are: 10.1.0.0/16, 2001:db8"):
        nodes.set_node(tables, "n1", KEEP_ROLES, Altered(drop=prefixes("10.9.0.0/16")))


def test_what_was_behind_a_removed_node_may_be_behind_another() -> None:
    tables = a_cluster()
    put_behind(tables, "n1", "10.1.0.0/16")
    nodes.remove(tables, "n1", 0.0)

    assert put_behind(tables, "n2", "10.1.0.0/16").prefixes_behind == (ip_network("10.1.0.0/16"),)


def test_who_replaces_a_machine_has_its_roles_and_what_is_behind_it() -> None:
    tables = a_cluster()
    publish(tables, 1, addresses=(ip_address("203.0.113.7"),))
    before = put_behind(tables, "n1", "10.1.0.0/16")
    make_relay(tables, "n1")
    nodes.await_replacement(tables, "n1", wanted=True)

    after = join(tables, 9, "n1")

    assert after.uid != before.uid
    assert after.roles == {Role.EDGE, Role.RELAY}
    assert after.prefixes_behind == before.prefixes_behind


@pytest.mark.parametrize(
    ("addresses", "endpoints", "may"),
    [
        (("203.0.113.7",), (), True),
        (("192.168.1.5", "2001:db8::7"), (), True),
        (("192.168.1.5",), (("203.0.113.7", 51820),), True),
        (("192.168.1.5", "100.64.3.2", "172.31.0.1", "fd00::7"), (), False),
        ((), (), False),
    ],
)
def test_a_relay_has_a_public_address_or_one_that_is_forwarded_to_it(
    addresses: tuple[str, ...], endpoints: tuple[tuple[str, int], ...], may: bool
) -> None:
    tables = a_cluster(1)
    publish(
        tables,
        1,
        addresses=tuple(map(ip_address, addresses)),
        endpoints=tuple((ip_address(at), port) for at, port in endpoints),
    )
    if may:
        assert Role.RELAY in make_relay(tables, "n1").roles
        return
    with pytest.raises(RefusedError, match=r"a relay without a public address .* --anyway"):
        make_relay(tables, "n1")
    assert Role.RELAY in make_relay(tables, "n1", anyway=True).roles
    assert "a relay without a public address" in problems_of(tables, _only(tables), 0.0)[0]


def test_of_a_node_that_was_never_heard_nobody_knows_whether_it_can_be_a_relay() -> None:
    tables = a_cluster(1)
    with pytest.raises(RefusedError, match=r"has not told its addresses yet, .* --anyway"):
        make_relay(tables, "n1")
    assert make_relay(tables, "n1", anyway=True).roles == {Role.EDGE, Role.RELAY}
    assert problems_of(tables, _only(tables), 0.0) == []


def test_nodes_that_name_one_endpoint_are_told_apart_until_one_of_them_names_another() -> None:
    tables = a_cluster()
    same = (ip_address("203.0.113.7"), 51820)
    first = publish(tables, 1, endpoints=(same, (ip_address("2001:db8::7"), 51820)))
    second = publish(tables, 2, endpoints=((ip_address("203.0.113.7"), 51821), same, same))
    third = publish(tables, 3, endpoints=((ip_address("203.0.113.7"), 51822),))

    (problem,) = problems_of(tables, first, 0.0)
    assert "[203.0.113.7]:51820 is also that of n2" in problem
    assert all("also that of n1" in each for each in problems_of(tables, second, 0.0))
    assert problems_of(tables, third, 0.0) == []
    assert problems_of(copy(tables), first, 0.0) == [problem]

    publish(tables, 2, 2, endpoints=((ip_address("203.0.113.7"), 51821),))
    assert problems_of(tables, first, 0.0) == []
    publish(tables, 3, 2, endpoints=(same,))
    assert "also that of n3" in problems_of(tables, first, 0.0)[0]
    nodes.remove(tables, "n3", 0.0)
    assert problems_of(tables, first, 0.0) == []


def _only(tables: Tables) -> Grant:
    (grant,) = tables.grants.values()
    return grant
