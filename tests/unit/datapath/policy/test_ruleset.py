"""The text of the two tables, and the way from one to another."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

from limpet.datapath.policy.ruleset import NOTHING, LocalPort, plan_tables
from limpet.datapath.policy.table import change_steps, read_listing
from limpet.linux.nftables import split_listing
from limpet.policies.compiler import compile_sides
from limpet.policies.parse import parse_policy
from limpet.policies.policy import Key, PolicyPod, PolicyWorld

POLICY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "web", "namespace": "shop"},
    "spec": {
        "podSelector": {"matchLabels": {"app": "web"}},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            {
                "from": [
                    {"podSelector": {"matchLabels": {"app": "client"}}},
                    {"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.1/32"]}},
                ],
                "ports": [{"port": 80}, {"protocol": "UDP", "port": 8000, "endPort": 8999}],
            },
            {"ports": [{"protocol": "SCTP", "port": 9}]},
        ],
    },
}
WEB = PolicyPod(Key("shop", "web"), (ip_address("10.0.0.2"), ip_address("fd00::2")), {"app": "web"})
CLIENT = PolicyPod(Key("shop", "client"), (ip_address("10.0.0.3"),), {"app": "client"})
PORT = LocalPort(
    WEB.key, "lim000000000001", "0a:58:0a:00:00:02", "0e:58:00:00:00:01", WEB.addresses
)
GOLDEN_INET = """\
table inet limpet_policy {
	counter dropped {
	}

	set pods4_7297f053bf323b32 {
		type ipv4_addr
		elements = { 10.0.0.3 }
	}

	map ports_0d0cc68bd0e3b23f {
		type inet_proto . inet_service : verdict
		flags interval
		elements = { sctp . 9 : accept, tcp . 80 : goto peers_66f8db0724ab71c9, udp . 8000-8999 : goto peers_66f8db0724ab71c9 }
	}

	set self4 {
		type ipv4_addr . ipv4_addr
		elements = { 10.0.0.2 . 10.0.0.2 }
	}

	set self6 {
		type ipv6_addr . ipv6_addr
		elements = { fd00::2 . fd00::2, fe80::858:aff:fe00:2 . fe80::858:aff:fe00:2 }
	}

	map ingress4 {
		type ipv4_addr : verdict
		elements = { 10.0.0.2 : goto pod_cad6fcc9871f9637 }
	}

	map ingress6 {
		type ipv6_addr : verdict
		elements = { fd00::2 : goto pod_cad6fcc9871f9637, fe80::858:aff:fe00:2 : goto pod_cad6fcc9871f9637 }
	}

	map egress4 {
		type ipv4_addr : verdict
		elements = { 10.0.0.2 : goto pod_e46f4bd7c281434c }
	}

	map egress6 {
		type ipv6_addr : verdict
		elements = { fd00::2 : goto pod_e46f4bd7c281434c, fe80::858:aff:fe00:2 : goto pod_e46f4bd7c281434c }
	}

	chain enter {
		ip daddr vmap @ingress4
		ip6 daddr vmap @ingress6
		accept
	}

	chain peers_66f8db0724ab71c9 {
		ip saddr @pods4_7297f053bf323b32 accept
		ip saddr 192.0.2.0 accept
		ip saddr 192.0.2.2-192.0.2.255 accept
		counter name "dropped" drop
	}

	chain side_74fc2be5840572c6 {
		meta l4proto . th dport vmap @ports_0d0cc68bd0e3b23f
		counter name "dropped" drop
	}

	chain pod_cad6fcc9871f9637 {
		goto side_74fc2be5840572c6
	}

	chain side_26cf37b018fd2bc0 {
		counter name "dropped" drop
	}

	chain pod_e46f4bd7c281434c {
		goto side_26cf37b018fd2bc0
	}

	chain forward {
		type filter hook forward priority filter; policy drop;
		ct state established,related accept
		icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert } ip6 hoplimit 255 accept
		ip saddr . ip daddr @self4 accept
		ip6 saddr . ip6 daddr @self6 accept
		ip saddr vmap @egress4
		ip6 saddr vmap @egress6
		goto enter
	}

	chain output {
		type filter hook output priority filter; policy accept;
		ct state established,related accept
		fib saddr type local accept
		icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert } ip6 hoplimit 255 accept
		ip saddr . ip daddr @self4 accept
		ip6 saddr . ip6 daddr @self6 accept
		ip saddr vmap @egress4
		ip6 saddr vmap @egress6
		goto enter
	}
}
"""  # noqa: E501 - as nft takes it
GOLDEN_BRIDGE = """\
table bridge limpet_policy {
	map ports {
		type ifname : verdict
		elements = { "lim000000000001" : goto router_0e5800000001 }
	}

	map macs {
		type ether_addr : verdict
		elements = { 0a:58:0a:00:00:02 : goto router_0e5800000001 }
	}

	set routers {
		type ether_addr
		elements = { 0e:58:00:00:00:01 }
	}

	set egress_ports {
		type ifname
		elements = { "lim000000000001" }
	}

	set ingress_ports {
		type ifname
		elements = { "lim000000000001" }
	}

	set own4 {
		type ifname . ipv4_addr
		elements = { "lim000000000001" . 10.0.0.2 }
	}

	set own6 {
		type ifname . ipv6_addr
		elements = { "lim000000000001" . fd00::2, "lim000000000001" . fe80::858:aff:fe00:2 }
	}

	chain router_0e5800000001 {
		ether daddr 0e:58:00:00:00:01 accept
		ip6 saddr fe80::/10 drop
		ip6 daddr fe80::/10 drop
		ether daddr set 0e:58:00:00:00:01 meta pkttype set host accept
	}

	chain neighbours_only {
		ether type arp accept
		icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert } ip6 hoplimit 255 accept
		drop
	}

	chain limited {
		iifname . ip saddr != @own4 drop
		ip6 saddr fe80::/10 ip6 daddr ff00::/8 return
		iifname . ip6 saddr != @own6 drop
	}

	chain prerouting {
		type filter hook prerouting priority dstnat - 10; policy accept;
		ether type arp accept
		icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert } ip6 hoplimit 255 accept
		iifname @egress_ports jump limited
		meta pkttype { broadcast, multicast } accept
		iifname vmap @ports
		ether daddr vmap @macs
	}

	chain forward {
		type filter hook forward priority filter; policy accept;
		meta pkttype host ether daddr @routers drop
		meta pkttype host accept
		iifname @egress_ports goto neighbours_only
		oifname @ingress_ports goto neighbours_only
	}
}
"""  # noqa: E501 - as nft takes it


def world(*pods: PolicyPod) -> PolicyWorld:
    policy = parse_policy(POLICY)
    return PolicyWorld({policy.key: policy}, {}, {pod.key: pod for pod in pods})


def tables_of(found: PolicyWorld) -> tuple[str, str]:
    planned = plan_tables(compile_sides(found, [WEB]), [PORT])
    return planned.inet.text, planned.bridge.text


def test_the_tables_of_an_isolated_pod() -> None:
    inet, bridge = tables_of(world(WEB, CLIENT))
    assert inet == GOLDEN_INET
    assert bridge == GOLDEN_BRIDGE


def test_what_nft_would_list_is_read_back_as_it_was_planned() -> None:
    planned = plan_tables(compile_sides(world(WEB, CLIENT), [WEB]), [PORT])
    for table in (planned.inet, planned.bridge):
        assert read_listing(table.family, table.name, *split_listing(table.text)) == table


def test_nothing_is_planned_where_no_pod_of_the_node_is_isolated() -> None:
    assert plan_tables(compile_sides(world(CLIENT), [CLIENT]), [PORT]) == NOTHING


def test_a_pod_on_a_bridge_that_nobody_knows_yet_gets_nothing_by_it() -> None:
    compiled = compile_sides(world(WEB), [WEB])
    bridge = plan_tables(compiled, [replace(PORT, bridge_mac="")]).bridge
    assert '"lim000000000001" : goto router_unknown' in bridge.text
    assert bridge.chains["router_unknown"] == ("drop",)


def test_a_peer_that_comes_is_one_element() -> None:
    before = plan_tables(compile_sides(world(WEB, CLIENT), [WEB]), [PORT]).inet
    another = PolicyPod(Key("shop", "client-2"), (ip_address("10.0.0.4"),), {"app": "client"})
    after = plan_tables(compile_sides(world(WEB, CLIENT, another), [WEB]), [PORT]).inet
    (name,) = (each for each in after.sets if each.startswith("pods4"))
    assert change_steps(before, after) == (
        "",
        f"add element inet limpet_policy {name} {{ 10.0.0.4 }}\n",
        "",
    )
    assert change_steps(after, before) == (
        "",
        f"delete element inet limpet_policy {name} {{ 10.0.0.4 }}\n",
        "",
    )
    assert change_steps(after, after) == ("", "", "")


def test_what_a_packet_meets_is_there_before_it_is_led_there() -> None:
    """New sets and chains come before anything goes to them, and go when nothing does any more."""
    other = parse_policy({**POLICY, "spec": {**POLICY["spec"], "ingress": []}})  # type: ignore[dict-item]
    closed = PolicyWorld({other.key: other}, {}, {WEB.key: WEB})
    before = plan_tables(compile_sides(closed, [WEB]), [PORT]).inet
    after = plan_tables(compile_sides(world(WEB, CLIENT), [WEB]), [PORT]).inet
    make, turn, take_away = change_steps(before, after)
    (pod,) = (name for name in after.chains if before.chains.get(name, ()) != after.chains[name]
              and name.startswith("pod_"))  # fmt: skip
    assert {line.split()[0] for line in make.splitlines()} == {"add"}
    assert turn == (
        f"flush chain inet limpet_policy {pod}\n"
        f"add rule inet limpet_policy {pod} {after.chains[pod][0]}\n"
    )
    assert all(line.split()[0] in ("flush", "delete") for line in take_away.splitlines())
    first, then, _ = change_steps(NOTHING.inet, after)
    assert " hook " not in first
    assert then.startswith("add chain inet limpet_policy forward { type filter hook forward")
