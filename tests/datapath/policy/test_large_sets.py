"""Sets of thousands of addresses: told to the kernel without libnftables, which lists the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from ipaddress import ip_address, ip_network

import pytest

from limpet.base.addresses import Prefix
from limpet.base.ownership import NFT_POLICY_TABLE
from limpet.datapath.policy.apply import PolicyKernel
from limpet.datapath.policy.ruleset import NOTHING, LocalPort, PolicyTables, plan_tables
from limpet.policies.compiler import compile_sides
from limpet.policies.labels import Selector
from limpet.policies.policy import IpBlock, Key, Policy, PolicyPod, PolicyRule, PolicyWorld
from tests.beds.namespaces import Netns, NetnsFactory
from tests.beds.own_tables import others_can_delete

POD = PolicyPod(Key("shop", "web"), (ip_address("10.0.0.2"), ip_address("fd00::2")), {})
PORT = LocalPort(POD.key, "", "", "", POD.addresses)
OTHERS = [ip_network(each) for each in ("203.0.113.8/30", "198.51.100.1", "2001:db8:ff::/64")]


def blocks() -> list[Prefix]:
    """Of three lengths, and some that touch, so that no prefix is left."""
    four = [ip_network((0x20000000 + 512 * n, 24 if n % 3 else 32)) for n in range(7_000)]
    odd = [ip_network((0x50000000 + 2048 * n + 256 * m, 24)) for n in range(600) for m in (1, 2, 3)]
    six = [ip_network(((0x20010DB8 << 96) + (n << 65), 64)) for n in range(4_500)]
    with_four_in_their_text = [ip_network(((10 << 24) + 2 * n, 128)) for n in range(300)]
    return [*four, *odd, *six, *with_four_in_their_text]


def planned(prefixes: list[Prefix], *, excepted: Prefix | None = None) -> PolicyTables:
    peers = [IpBlock(each) for each in prefixes]
    if excepted is not None:
        peers.append(IpBlock(ip_network("10.128.0.0/9"), (excepted,)))
    policy = Policy(
        Key("shop", "p"), Selector(), frozenset({"egress"}), (), (PolicyRule(tuple(peers)),)
    )
    world = PolicyWorld({policy.key: policy}, {}, {POD.key: POD})
    return plan_tables(compile_sides(world, [POD]), [PORT])


@pytest.fixture
def node() -> Iterator[Netns]:
    make = NetnsFactory()
    try:
        yield make("node")
    finally:
        make.close()


@pytest.fixture
def kernel(node: Netns) -> Iterator[PolicyKernel]:
    with node.entered():
        made = PolicyKernel()
    yield made
    made.close()


def listed(node: Netns) -> PolicyTables:
    """By one that knows nothing of what was put."""
    with node.entered():
        other = PolicyKernel()
        try:
            return other.read()
        finally:
            other.close()


def test_they_are_what_nft_lists_and_change_by_difference(
    node: Netns, kernel: PolicyKernel
) -> None:
    prefixes = blocks()
    first = planned(prefixes)
    assert sum(each.is_large for each in first.inet.sets.values()) == 2
    second = planned([*prefixes[5:], *OTHERS], excepted=ip_network("10.200.0.0/30"))
    few = planned(prefixes[:100])
    before = NOTHING
    for after in (first, second, few, first):
        with node.entered():
            kernel.change(before, after)
        assert listed(node) == after
        before = after
    assert not kernel.put_whole, "the kernel takes each difference"


def test_what_another_program_takes_from_them_is_seen_and_put_back(node: Netns) -> None:
    tables = planned(blocks())
    with node.entered(), closing(PolicyKernel(flags=0)) as kernel:  # as before Linux 5.12
        kernel.change(NOTHING, tables)
        assert kernel.read() == tables
        node.run("nft", "flush", "set", "inet", NFT_POLICY_TABLE, large_of(tables))
        found = kernel.read()
        assert found != tables
        kernel.change(found, tables)
        assert kernel.read() == tables
    assert listed(node) == tables


@pytest.mark.skipif(others_can_delete(), reason="before Linux 6.9 tables belong to nobody")
def test_what_another_program_takes_from_them_is_refused(node: Netns, kernel: PolicyKernel) -> None:
    tables = planned(blocks())
    with node.entered():
        kernel.change(NOTHING, tables)
    for words in ("flush set inet {} {}", "delete set inet {} {}"):
        with pytest.raises(AssertionError, match="Operation not permitted"):
            node.run("nft", words.format(NFT_POLICY_TABLE, large_of(tables)))
    node.run("nft", "flush", "ruleset")
    with node.entered():
        assert kernel.read() == tables
        assert kernel.holds(tables)
    assert listed(node) == tables


def large_of(tables: PolicyTables) -> str:
    return next(name for name, each in tables.inet.sets.items() if each.is_large)


def test_a_chain_that_was_flushed_is_filled_again_by_an_agent_that_starts(node: Netns) -> None:
    tables = planned(blocks()[:600])
    with node.entered():
        with closing(PolicyKernel()) as first:
            first.change(NOTHING, tables)
        node.run("nft", "flush", "chain", "inet", NFT_POLICY_TABLE, "enter")
        with closing(PolicyKernel()) as kernel:
            found = kernel.read()
            assert found != tables
            kernel.change(found, tables)
            assert kernel.read() == tables
            assert kernel.holds(tables)
            assert not kernel.put_whole
