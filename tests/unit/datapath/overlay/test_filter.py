"""The text of the filter; tests/datapath/overlay proves what it drops."""

from __future__ import annotations

import re
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.datapath.overlay.overlay_values import (
    OURS,
    OWN,
    PEER,
    UID,
    a_grant,
    a_presence,
    entry,
    node,
    snapshot,
    view,
    vxlan,
)

from limpet.cluster.nodes import Snapshot
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath
from limpet.cluster.topology.view import View, changed_peers, view_of
from limpet.datapath.overlay.filter.elements import filter_commands
from limpet.datapath.overlay.filter.ruleset import plan_filter
from limpet.datapath.overlay.plan import plan_overlay, plan_peer

GOLDEN = """\
table inet limpet_overlay {
	counter overlay_forged {
	}

	set vxlan4_segments4 {
		typeof ip saddr . @th,336,16 . @th,352,8
		elements = { 192.0.2.2 . 0xaf4 . 0x2 }
	}

	set vxlan4_others4 {
		typeof ip saddr . @th,336,32
		flags interval
	}

	set vxlan4_segments6 {
		typeof ip saddr . @th,304,64
		elements = { 192.0.2.2 . 0xfd00000000000002 }
	}

	set vxlan4_others6 {
		typeof ip saddr . @th,304,128
		flags interval
	}

	set vxlan6_segments4 {
		typeof ip6 saddr . @th,336,16 . @th,352,8
	}

	set vxlan6_others4 {
		typeof ip6 saddr . @th,336,32
		flags interval
	}

	set vxlan6_segments6 {
		typeof ip6 saddr . @th,304,64
	}

	set vxlan6_others6 {
		typeof ip6 saddr . @th,304,128
		flags interval
	}

	set link_segments4 {
		type ipv4_addr
		elements = { 10.244.2.0 }
	}

	set link_others4 {
		type ipv4_addr
		flags interval
	}

	set nodes4 {
		type ipv4_addr
		elements = { 192.0.2.2 }
	}

	set tunnels4 {
		type ipv4_addr . inet_service
	}

	set behind4 {
		type ipv4_addr
		flags interval
	}

	set link_segments6 {
		type ipv6_addr
		elements = { fd00:0:0:2:: }
	}

	set link_others6 {
		type ipv6_addr
		flags interval
	}

	set nodes6 {
		type ipv6_addr
	}

	set tunnels6 {
		type ipv6_addr . inet_service
	}

	set behind6 {
		type ipv6_addr
		flags interval
	}

	chain overlay_vxlan {
		iifname "limpet0" @th,96,32 & 0xffffff00 == 0x00000100 counter name overlay_forged drop
		@th,224,16 0x0800 ip saddr . @th,336,16 . @th,352,8 @vxlan4_segments4 accept
		@th,224,16 0x0800 ip saddr . @th,336,32 @vxlan4_others4 accept
		@th,224,16 0x86dd ip saddr . @th,304,64 @vxlan4_segments6 accept
		@th,224,16 0x86dd ip saddr . @th,304,128 @vxlan4_others6 accept
		@th,224,16 0x0800 ip6 saddr . @th,336,16 . @th,352,8 @vxlan6_segments4 accept
		@th,224,16 0x0800 ip6 saddr . @th,336,32 @vxlan6_others4 accept
		@th,224,16 0x86dd ip6 saddr . @th,304,64 @vxlan6_segments6 accept
		@th,224,16 0x86dd ip6 saddr . @th,304,128 @vxlan6_others6 accept
		@th,96,32 & 0xffffff00 == 0x00000100 counter name overlay_forged drop
	}

	chain overlay_input {
		type filter hook input priority raw; policy accept;
		udp dport 8472 jump overlay_vxlan
	}

	chain overlay_from_pods {
		type nat hook postrouting priority -100; policy accept;
		iifname "limpet0" ip daddr @nodes4 udp dport 8472 counter name overlay_forged drop
		iifname "limpet0" ip daddr . udp dport @tunnels4 counter name overlay_forged drop
		iifname "limpet0" ip6 daddr @nodes6 udp dport 8472 counter name overlay_forged drop
		iifname "limpet0" ip6 daddr . udp dport @tunnels6 counter name overlay_forged drop
		ip saddr 10.244.0.0/16 fib saddr type != local ip daddr @nodes4 udp dport 8472 counter name overlay_forged drop
		ip saddr 10.244.0.0/16 fib saddr type != local ip daddr . udp dport @tunnels4 counter name overlay_forged drop
		ip6 saddr fd00::/48 fib saddr type != local ip6 daddr @nodes6 udp dport 8472 counter name overlay_forged drop
		ip6 saddr fd00::/48 fib saddr type != local ip6 daddr . udp dport @tunnels6 counter name overlay_forged drop
		ct status dnat ip daddr @nodes4 udp dport 8472 counter name overlay_forged drop
		ct status dnat ip6 daddr @nodes6 udp dport 8472 counter name overlay_forged drop
	}

	chain overlay_from_own_pods {
		type nat hook input priority -100; policy accept;
		iifname "limpet0" fib daddr type local udp dport 8472 counter name overlay_forged drop
	}

	chain overlay_links {
		type filter hook ingress devices = { "eth0" } priority 0; policy accept;
		@nh,96,32 & 0xffff0000 == 0x0af40000 ip saddr & 255.255.255.0 != @link_segments4 ip saddr != @link_others4 counter name overlay_forged drop
		@nh,64,32 & 0xffffffff == 0xfd000000 ip6 saddr fd00::/48 ip6 saddr & ffff:ffff:ffff:ffff:: != @link_segments6 ip6 saddr != @link_others6 counter name overlay_forged drop
	}

	chain overlay_from_peers {
		type filter hook ingress devices = { "limvx4", "limwg0" } priority 0; policy accept;
		ip daddr 10.244.0.0/16 accept
		ip6 daddr fd00::/48 accept
		ip daddr @behind4 accept
		ip6 daddr @behind6 accept
		meta protocol { ip, ip6 } counter name overlay_forged drop
	}
}
"""  # noqa: E501


def test_the_filter_of_a_node_with_one_peer() -> None:
    known = view(node(2), paths={})

    devices = ["limwg0", "limvx4"]
    made = plan_filter(
        known, plan_overlay(known), bridges=["limpet0"], devices=devices, tenants=True
    )

    assert made == GOLDEN


def test_what_is_behind_this_node_and_others_is_let_in_from_peers() -> None:
    own, others = ip_network("192.168.55.0/24"), ip_network("10.20.0.0/16")
    peer = entry(a_grant(2, prefixes_behind=(others,)), a_presence(2))
    ours = entry(a_grant(OURS, prefixes_behind=(own,)), a_presence(OURS))
    known = view_of(snapshot(ours, peer), UID, {}, OWN)

    held = _elements(plan_filter(known, plan_overlay(known)))

    assert held["behind4"] == {str(own), str(others)}


def test_without_a_network_there_is_no_filter() -> None:
    lone = view_of(Snapshot(), UID, {}, OWN)

    assert plan_filter(lone, plan_overlay(lone)) == ""


def test_overlapping_prefixes_of_one_sender_are_there_once() -> None:
    behind = (ip_network("10.244.2.0/25"), ip_network("10.20.0.0/16"), ip_network("10.20.1.0/24"))
    twin = entry(
        a_grant(3, prefixes_behind=behind), a_presence(3, addresses=(ip_address("192.0.2.2"),))
    )
    known = view(node(2), twin, paths={})

    held = _elements(plan_filter(known, plan_overlay(known)))

    assert held["vxlan4_segments4"] == {"192.0.2.2 . 0xaf4 . 0x2", "192.0.2.2 . 0xaf4 . 0x3"}
    assert held["vxlan4_others4"] == {"192.0.2.2 . 0xa140000-0xa14ffff"}
    assert held["link_segments4"] == {"10.244.2.0", "10.244.3.0"}
    assert held["link_others4"] == set()


BEHIND = st.lists(
    st.sampled_from(
        [
            *map(ip_network, ("10.20.0.0/16", "10.20.1.0/24", "10.20.1.0/25", "10.21.0.0/24")),
            *map(ip_network, ("10.0.0.0/8", "10.244.128.0/20", "2001:db8:1::/48")),
        ]
    ),
    max_size=2,
    unique=True,
)
SHARED = ip_address("192.0.2.100")
"""A gateway that several peers are behind."""


@st.composite
def _views(draw: st.DrawFn) -> View:
    made = []
    for number in draw(st.sets(st.integers(2, 5))):
        given = a_grant(
            number,
            tombstone=draw(st.booleans()),
            communities=draw(st.sampled_from([(), ("a",)])),
            prefixes_behind=tuple(draw(BEHIND)),
        )
        said = a_presence(number)
        if draw(st.booleans()):
            port = draw(st.sampled_from([0, 53, 23000, 29999]))
            at = (*said.addresses, SHARED)
            said = a_presence(number, addresses=at, tunnel_port=port)
        made.append(entry(given, draw(st.none() | st.just(said))))
    paths = {
        each.grant.uid: vxlan(int(each.grant.name[-1]), draw(st.sampled_from([4, 6])))
        for each in made
        if draw(st.booleans())
    }
    return view_of(snapshot(node(1), *made), UID, paths, OWN)


@given(_views(), _views())
def test_the_commands_for_what_changed_give_the_sets_of_the_whole_text(
    before: View, after: View
) -> None:
    old, new = plan_overlay(before), plan_overlay(after)
    held = _elements(plan_filter(before, old))
    commands = filter_commands(after, old, new, changed_peers(before, after))

    for line in commands.splitlines():
        verb, name, elements = re.fullmatch(  # type: ignore[union-attr]
            r"(\w+) element inet limpet_overlay (\w+) \{ (.*) \}", line
        ).groups()
        named = set(elements.split(", "))
        if verb == "delete":
            assert named <= held[name]
            held[name] -= named
        else:
            assert named.isdisjoint(held[name])
            held[name] |= named
    assert held == _elements(plan_filter(after, new))
    assert filter_commands(after, new, new, changed_peers(before, after)) == ""


def _elements(text: str) -> dict[str, set[str]]:
    """Elements by set.}"""
    found: dict[str, set[str]] = {}
    for name, body in re.findall(r"set (\w+) \{\n(.*?)\n\t\}", text, re.DOTALL):
        listed = re.search(r"elements = \{ (.*) \}", body)
        found[name] = set(listed[1].split(", ")) if listed else set()
    return found


def test_a_peer_shuts_our_pods_out_of_tunnels_ports_and_of_no_other_that_it_claims() -> None:
    """It could claim the name server that they ask."""
    address = ip_address("192.0.2.2")

    def ends(port: int, path: PeerPath | None = None) -> tuple[object, ...]:
        paths = {} if path is None else {PEER: path}
        peer = entry(a_grant(2), a_presence(2, addresses=(address,), tunnel_port=port))
        return plan_peer(view(peer, paths=paths), PEER).tunnel_ends

    assert ends(53) == ends(22999) == ends(30000) == ends(0) == ()
    assert ends(23000) == ((address, 23000),)
    proven = (ip_address("203.0.113.7"), 40001)
    by_tunnel = PeerPath(transports.TUNNEL, endpoint=proven)
    assert ends(29999, by_tunnel) == ((address, 29999), proven)
    by_relay = replace(by_tunnel, rung=transports.RELAY, relay="another")
    assert ends(0, by_relay) == ()


@pytest.mark.parametrize("claimed", ["10.244.3.7", "fd00:0:0:3::7", "10.96.0.10"])
def test_an_address_of_a_pod_or_a_service_that_a_peer_claims_is_shut_to_nobody(
    claimed: str,
) -> None:
    own, services = ip_address("192.0.2.2"), (ip_network("10.96.0.0/12"),)
    said = a_presence(2, addresses=(ip_address(claimed), own), tunnel_port=23000)
    known = snapshot(node(OURS), entry(a_grant(2), said), service_cidrs=services)
    wide = replace(OWN, link_prefixes=(*OWN.link_prefixes, ip_network("10.0.0.0/8")))

    part = plan_peer(view_of(known, UID, {}, wide), PEER)

    assert (part.outer, part.addresses, part.tunnel_ends) == ((own,), (own,), ((own, 23000),))
