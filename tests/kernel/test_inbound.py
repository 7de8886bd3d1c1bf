"""Others' INPUT chains that may keep nodes from each other: seen as what they are."""

from __future__ import annotations

import pytest

from limpet.kernel.inbound import InboundChain, read_dropping_inbound
from tests.kernel.namespaces import Netns
from tests.kernel.test_forward import _runtimes, nft_in, node

__all__ = ["_runtimes", "node"]


def chains_of(node: Netns) -> dict[str, InboundChain]:
    with nft_in(node) as nft:
        return {chain.name: chain for chain in read_dropping_inbound(nft)}


def begin(node: Netns, policy: str = "drop") -> None:
    hook = f"{{ type filter hook input priority filter; policy {policy}; }}"
    node.run("nft", f"add table inet site; add chain inet site in {hook}")


def add(node: Netns, *rules: str, chain: str = "in") -> None:
    node.run("nft", "; ".join(f"add rule inet site {chain} {rule}" for rule in rules))


def test_a_chain_that_accepts_is_no_matter_and_one_of_another_hook_neither(node: Netns) -> None:
    begin(node, policy="accept")
    hook = "{ type filter hook forward priority filter; policy drop; }"
    node.run("nft", f"add chain inet site through {hook}")

    assert chains_of(node) == {}


def test_a_last_rule_that_drops_is_a_cause_as_the_policy_is(node: Netns) -> None:
    begin(node, policy="accept")
    add(node, "tcp dport 22 accept", "counter reject with icmpx admin-prohibited")

    assert chains_of(node)["inet site in"].cause.startswith("its last rule is reject")


@pytest.mark.parametrize(
    "rules",
    [
        ["udp dport 7471 accept"],
        ["udp dport { 53, 7471 } counter accept comment mine"],
        ["udp dport 7000-8000 accept"],
        ["udp dport { 53, 7400-7500 } ip saddr 192.0.2.0/24 accept"],
        ["udp dport != 53 accept"],
        ["meta l4proto { tcp, udp } th dport 7471 accept"],
        ["udp dport vmap { 53 : accept, 7471 : accept }"],
        ['iifname "uplink" accept'],
        ["ip saddr 192.0.2.0/24 counter accept"],
        ['iifname { "lan0", "lan1" } meta l4proto udp accept'],
    ],
)
def test_a_rule_that_lets_the_port_in_is_seen(node: Netns, rules: list[str]) -> None:
    begin(node)
    add(node, "ct state established accept", *rules)

    assert chains_of(node)["inet site in"].may_admit(7471)


@pytest.mark.parametrize(
    "rules",
    [
        [],
        ['iifname "lo" accept', "ct state { established, related } accept"],
        ["tcp dport 7471 accept"],
        ["udp sport 7471 accept"],
        ["udp dport 7471 drop"],
        ["udp dport { 53, 747 } accept"],
        ["udp dport != 7471 accept"],
        ["icmp type echo-request accept", "ip protocol tcp accept"],
    ],
)
def test_rules_for_something_else_do_not_count(node: Netns, rules: list[str]) -> None:
    begin(node)
    if rules:
        add(node, *rules)

    assert not chains_of(node)["inet site in"].may_admit(7471)


def test_chains_that_are_led_to_count_and_loops_of_them_end(node: Netns) -> None:
    begin(node)
    node.run("nft", "add chain inet site lan; add chain inet site deep; add chain inet site other")
    add(node, "udp dport 7471 accept", chain="other")
    add(node, 'iifname vmap { "eth0" : jump lan, "eth1" : drop }')
    add(node, "udp dport 7471 accept", chain="deep")
    assert not chains_of(node)["inet site in"].may_admit(7471)

    add(node, "goto deep", chain="lan")

    assert chains_of(node)["inet site in"].may_admit(7471)


def test_ports_of_a_set_with_a_name_are_not_known_and_not_warned_of(node: Netns) -> None:
    begin(node)
    node.run("nft", "add set inet site open { type inet_service; elements = { 53 }; }")
    add(node, "udp dport @open accept")

    assert chains_of(node)["inet site in"].may_admit(7471)


def test_iptables_chains_are_seen_with_their_ports(node: Netns) -> None:
    node.run("iptables-nft", "-P", "INPUT", "DROP")
    node.run("iptables-nft", "-N", "OPEN")
    node.run("iptables-nft", "-A", "INPUT", "-i", "eth0", "-j", "OPEN")
    node.run("iptables-nft", "-A", "OPEN", "-p", "udp", "--dport", "8472", "-j", "ACCEPT")

    chain = chains_of(node)["ip filter INPUT"]

    assert chain.cause == "policy drop"
    assert chain.may_admit(8472)
    assert not chain.may_admit(7471)
    node.run(
        *("iptables-nft", "-A", "OPEN", "-p", "udp", "-m", "multiport"),
        *("--dports", "53,7471", "-j", "ACCEPT"),
    )
    assert chains_of(node)["ip filter INPUT"].may_admit(7471)


def test_a_match_that_is_printed_as_nothing_may_be_of_any_port() -> None:
    rule = "meta l4proto udp  counter packets 0 bytes 0 accept # handle 5"

    assert InboundChain("ip filter INPUT", "policy drop", (rule,)).may_admit(7471)


def test_our_own_tables_are_not_another_s(node: Netns) -> None:
    hook = "{ type filter hook input priority filter; policy drop; }"
    for table in ("limpet", "limpet_overlay"):
        node.run("nft", f"add table inet {table}; add chain inet {table} in {hook}")

    assert chains_of(node) == {}
