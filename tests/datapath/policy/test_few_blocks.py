"""Few ranges are rules in a chain, which nft lists as they were planned."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from limpet.datapath.policy.apply import PolicyKernel
from limpet.datapath.policy.ruleset import NOTHING, LocalPort, PolicyTables, plan_tables
from limpet.policies.compiler import compile_sides
from limpet.policies.labels import Selector
from limpet.policies.policy import (
    IpBlock,
    Key,
    NamedPort,
    PodPeer,
    Policy,
    PolicyPod,
    PolicyRule,
    PolicyWorld,
    PortSpan,
)
from tests.beds.namespaces import NetnsFactory

POD = PolicyPod(Key("shop", "web"), (ip_address("10.0.0.2"), ip_address("fd00::2")), {})
PORT = LocalPort(POD.key, "", "", "", POD.addresses)
RANGES = {
    "addresses": (("192.0.2.1",), ("2001:db8::1",)),
    "prefixes on bytes": (("10.0.0.0/8",), ("172.16.0.0/16",), ("fd00::/8",), ("2001:db8::/32",)),
    "prefixes between bytes": (("172.16.0.0/12",), ("192.0.2.128/25",), ("fc00::/7",)),
    "ranges": (("192.0.2.0/24", "192.0.2.1"), ("fd00::/64", "fd00::/96")),
    "all but one": (("0.0.0.0/0", "10.0.0.0/8"), ("::/0", "fd00::/8")),
    "all": (("0.0.0.0/0",), ("::/0",)),
    "with IPv4 in their text": (("::10.0.0.1",), ("::ffff:10.0.0.0/104", "::ffff:10.9.0.0/112")),
    "as many as make a set": tuple((f"::10.0.0.{2 * n + 1}",) for n in range(6)),
    "halves": (("0.0.0.0/1",), ("128.0.0.0/2",), ("::/1",)),
}


def planned(*blocks: tuple[str, ...]) -> PolicyTables:
    """At all ports, and at one."""
    peers = tuple(IpBlock(ip_network(each), tuple(map(ip_network, but))) for each, *but in blocks)
    rules = (PolicyRule(peers[:1]), PolicyRule(peers, (PortSpan("tcp", 80, 80),)))
    policy = Policy(Key("shop", "p"), Selector(), frozenset({"egress", "ingress"}), rules, rules)
    return plan_tables(
        compile_sides(PolicyWorld({policy.key: policy}, {}, {POD.key: POD}), [POD]), [PORT]
    )


@pytest.mark.parametrize("blocks", RANGES.values(), ids=list(RANGES))
def test_they_are_what_nft_lists_and_change_by_difference(
    make_netns: NetnsFactory, blocks: tuple[tuple[str, ...], ...]
) -> None:
    tables = planned(*blocks)
    with make_netns("node").entered():
        kernel = PolicyKernel()
        kernel.change(NOTHING, tables)
        assert kernel.read() == tables
        more = planned(*blocks, ("198.51.100.0/24",))
        kernel.change(tables, more)
        assert kernel.read() == more
        assert not kernel.put_whole
        kernel.close()


def test_pods_whose_addresses_end_as_one_of_ipv4_are_what_nft_lists(
    make_netns: NetnsFactory,
) -> None:
    http = NamedPort("tcp", "http")
    peer = PolicyPod(Key("shop", "peer"), (ip_address("::10.0.0.9"),), {}, {http: 80})
    rules = PolicyRule((PodPeer(),)), PolicyRule((PodPeer(),), (http,))
    policy = Policy(Key("shop", "p"), Selector(), frozenset({"egress"}), (), rules)
    world = PolicyWorld({policy.key: policy}, {}, {POD.key: POD, peer.key: peer})
    tables = plan_tables(compile_sides(world, [POD]), [PORT])
    with make_netns("node").entered():
        kernel = PolicyKernel()
        kernel.change(NOTHING, tables)
        assert kernel.read() == tables
        kernel.close()


def test_a_policy_of_few_ranges_makes_no_set_of_them() -> None:
    few, many = (
        planned(*((f"198.51.100.{2 * number}",) for number in range(count))) for count in (4, 5)
    )

    assert not [name for name in few.inet.sets if name.startswith("blocks")]
    assert [name for name in many.inet.sets if name.startswith("blocks")]
