"""What the steps of a traced packet mean."""

from __future__ import annotations

from ipaddress import ip_address

from limpet.cli.trace.tables import TABLE, TracedFlow, ruleset
from limpet.cli.trace.verdict import (
    POLICY,
    RULE,
    Dropped,
    TraceStep,
    dropped,
    link_out,
    passed,
    reached,
)


def own(family: str, chain: str, link_in: str = "", link_out: str = "") -> TraceStep:
    return TraceStep(1, family, TABLE, chain, POLICY, 1, 0, link_in, link_out)


WAY = [
    own("bridge", "prerouting_first", "lim0"),
    own("inet", "prerouting_first", "limpet0"),
    own("inet", "prerouting_last", "limpet0"),
    own("bridge", "input_last", "lim0"),
    own("inet", "forward_first", "limpet0", "limvx4"),
    own("inet", "postrouting_last", "limpet0", "limvx4"),
    own("inet", "output_first", "", "eth0"),
    own("inet", "postrouting_last", "limvx4", "eth0"),
]


def test_stations_come_in_the_order_in_which_a_packet_meets_them() -> None:
    assert [each.link for each in passed(WAY)] == [
        "lim0",
        "lim0",
        "limpet0",
        "limvx4",
        "limvx4",
        "eth0",
    ]


def test_the_packet_left_by_the_first_link_and_not_by_that_of_what_carries_it() -> None:
    assert link_out(WAY) == "limvx4"
    assert link_out(WAY[:5]) == ""
    assert reached(WAY, "inet", "prerouting_last")
    assert not reached(WAY, "inet", "input_last")


def test_a_drop_is_a_rule_or_a_policy_of_others_and_never_our_own_marks() -> None:
    rule = TraceStep(1, "ip", "filter", "FORWARD", RULE, 0, 7)
    policy = TraceStep(1, "ip", "filter", "FORWARD", POLICY, 0)
    assert dropped(WAY) is None
    assert dropped([*WAY, rule]) == Dropped("ip", "filter", "FORWARD", 7)
    assert dropped([*WAY, policy]) == Dropped("ip", "filter", "FORWARD", 0)


def test_tables_belong_to_the_socket_and_mark_one_flow() -> None:
    flow = TracedFlow(ip_address("10.244.0.2"), ip_address("10.244.1.2"), "tcp", 40001, 80)
    text = ruleset(flow, port_link="lim0", uplinks=["eth0"], vxlan_port=8472)

    assert text.count("flags owner;") == text.count("table ") == 2
    assert "ip saddr 10.244.0.2 tcp sport 40001 meta nftrace set 1" in text
    assert "ip daddr 10.244.0.2 tcp dport 40001 meta nftrace set 1" in text
    assert "drop" not in text
    anyone = TracedFlow(flow.source, flow.target, "tcp", 0, 80)
    there = "ip saddr 10.244.0.2 ip daddr 10.244.1.2 meta nftrace set 1"
    assert there in ruleset(anyone, port_link="", uplinks=[])
