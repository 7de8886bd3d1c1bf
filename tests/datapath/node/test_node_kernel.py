"""Observe, diff, apply on a real kernel, and packets through what comes of it."""

from __future__ import annotations

import contextlib
import errno
import re
import socket
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path

import pytest

from limpet.base.errors import KernelError
from limpet.base.node_state import NodeState
from limpet.base.ownership import ROUTE_TABLE
from limpet.datapath.change import Drop, LinkAddress, Put
from limpet.datapath.node.pod.attachment import BridgeSpec, HostPortMapping
from limpet.datapath.node.state import Bridge, Route
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink import link_codec, route_codec
from limpet.linux.netlink.socket import NetlinkSocket, RouteSocket
from limpet.linux.nftables import Nftables
from tests.beds.namespaces import Netns, NetnsFactory, is_silent, received, talk
from tests.beds.node_bed import CONF, GATEWAYS, MAIN, NODE, OUTSIDE, STATE, NodeBed
from tests.unit.datapath.node.test_ruleset import ruleset_of_a_node
from tests.waiting import PATIENCE_S

WEB = (HostPortMapping(8080, 80, "tcp"),)
ANY = {4: "0.0.0.0", 6: "::"}
FAMILIES = pytest.mark.parametrize("family", [0, 1], ids=["ipv4", "ipv6"])


# Convergence.


def test_one_round_makes_everything_out_of_nothing(bed: NodeBed) -> None:
    assert bed.settle() != []

    assert bed.pending() == []
    routes = bed.node.run("ip", "route", "show", "table", str(ROUTE_TABLE))
    assert "10.244.7.0/24 dev limpet0 proto static scope link src 10.244.7.1 metric 100" in routes
    assert "unreachable 10.244.0.0/16 proto static metric 65000" in routes
    routes = bed.node.run("ip", "-6", "route", "show", "table", str(ROUTE_TABLE))
    assert "fd00:7::/64 dev limpet0 proto static src fd00:7::1 metric 100" in routes
    assert "unreachable fd00::/16 dev lo proto static metric 65000" in routes
    main = bed.node.run("ip", "route") + bed.node.run("ip", "-6", "route")
    assert "10.244" not in main
    assert "fd00" not in main


def test_the_bridge_is_pinned_marked_and_quiet(bed: NodeBed) -> None:
    bed.settle()

    link = bed.kernel.route.link("limpet0")
    assert link is not None
    assert (link.mac, link.alias, link.kind, link.up) == (
        "0a:58:0a:f4:07:01",
        "limpet",
        "bridge",
        True,
    )
    for path in ("net/ipv4/conf/limpet0/send_redirects", "net/ipv6/conf/limpet0/accept_ra"):
        assert bed.node.sysctl(path) == "0"
    for path in ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"):
        assert bed.node.sysctl(path) == "1"
        assert path in bed.changed_sysctls
    bed.pod("one", 2)
    with_port = bed.kernel.route.link("limpet0")
    assert with_port is not None
    assert (with_port.mac, with_port.alias) == (link.mac, "limpet")


def ip(*commands: str) -> Callable[[NodeBed], object]:
    def breakage(bed: NodeBed) -> None:
        (pod,) = bed.pods.values()
        bed.node.ip(*(command.format(port=pod.attachment.link.host_ifname) for command in commands))

    return breakage


def nft(command: str) -> Callable[[NodeBed], object]:
    return lambda bed: bed.kernel.nft.run(command, what="test")


def sysctl(path: str, value: str) -> Callable[[NodeBed], object]:
    return lambda bed: bed.node.sysctl(path, value)


BREAKAGES: dict[str, Callable[[NodeBed], object]] = {
    "the bridge is gone": ip("link delete limpet0"),
    "the bridge is down": ip("link set limpet0 down"),
    "the bridge has another MAC": ip("link set limpet0 address 02:00:00:00:00:09"),
    "an IPv4 gateway is gone": ip("address delete 10.244.7.1/24 dev limpet0"),
    "an IPv6 gateway is gone": ip("address delete fd00:7::1/64 dev limpet0"),
    "all addresses are gone": ip("address flush dev limpet0"),
    "there is an address too many": ip("address add 192.168.77.1/24 dev limpet0"),
    "an IPv4 route is gone": ip("route delete 10.244.7.0/24 table 5148"),
    "an IPv6 route is gone": ip("-6 route delete fd00:7::/64 table 5148"),
    "a route leads elsewhere": ip("route replace 10.244.7.0/24 dev lo metric 100 table 5148"),
    "an unreachable route is gone": ip("route delete unreachable 10.244.0.0/16 table 5148"),
    "a table is flushed": ip("route flush table 5148"),
    "the IPv4 rule is gone": ip("rule delete priority 5148"),
    "the IPv6 rule is gone": ip("-6 rule delete priority 5148"),
    "the port is down": ip("link set {port} down"),
    "the port has left the bridge": ip("link set {port} nomaster"),
    "the port is in another bridge": ip("link set {port} master other0"),
    "nftables is flushed": nft("flush ruleset"),
    "our table is deleted": nft("delete table inet limpet"),
    "a rule of our table is gone": nft("flush chain inet limpet postrouting"),
    "a hostPort is gone": nft("flush map inet limpet hostport4"),
    "forwarding is off": sysctl("net/ipv4/ip_forward", "0"),
    "IPv6 forwarding is off": sysctl("net/ipv6/conf/all/forwarding", "0"),
    "IPv6 is off on the bridge": sysctl("net/ipv6/conf/limpet0/disable_ipv6", "1"),
    "redirects are sent": sysctl("net/ipv4/conf/all/send_redirects", "1"),
    "127.0.0.1 is closed": sysctl("net/ipv4/conf/limpet0/route_localnet", "0"),
}


def test_one_round_puts_right_whatever_is_broken(bed: NodeBed) -> None:
    bed.outside()
    pod = bed.pod("one", 2, ports=WEB)
    bed.node.ip("link add other0 type bridge", "link set other0 up")
    for what, breakage in BREAKAGES.items():
        breakage(bed)
        assert bed.settle() != [], what
        assert bed.pending() == [], what
    for address in pod.addresses:
        with pod.netns.listening(ANY[6 if ":" in address else 4], 80) as server:
            talk(bed.node, address, 80, server)


def test_pods_are_found_for_others_after_all_addresses_of_the_bridge_were_flushed(
    bed: NodeBed,
) -> None:
    """The link-local one too, from which the node asks for a pod's MAC."""
    outside, pod = bed.outside(), bed.pod("one", 2)
    outside.ip("-6 route replace fd00:7::/64 via 2001:db8::1")
    bed.node.ip("addr flush dev limpet0")

    bed.settle()

    assert bed.pending() == []
    bed.node.ip("neigh flush dev limpet0")
    with pod.netns.listening("::", 80) as server:
        talk(outside, pod.addresses[1], 80, server)


def test_a_port_with_other_settings_gets_its_own_back(bed: NodeBed) -> None:
    name = bed.pod("one", 2, ports=WEB).attachment.link.host_ifname
    for setting in ("hairpin off", "isolated on"):
        bed.node.run("bridge", "link", "set", "dev", name, *setting.split())
        assert bed.settle() != []
        assert bed.pending() == []


def test_a_port_of_a_pod_that_is_unknown_is_put_aside(bed: NodeBed) -> None:
    pod = bed.pods.setdefault("one", bed.pod("one", 2))
    del bed.pods["one"]

    bed.settle()

    assert pod.attachment.link.host_ifname not in bed.links()
    assert bed.pending() == []
    bed.reap()
    assert bed.links() == {"limpet0"}


@pytest.mark.parametrize(
    "kind",
    [
        "203.0.113.0/24 dev limpet0",
        "203.0.113.0/24 via 10.244.7.9 dev limpet0",
        "203.0.113.0/24 dev limpet0 proto bird scope host metric 7",
        "blackhole 203.0.113.0/24",
        "prohibit 203.0.113.0/24 metric 100",
        "203.0.113.0/24 nexthop via 10.244.7.8 dev limpet0 nexthop via 10.244.7.9 dev limpet0",
        "2001:db8:9::/64 via fd00:7::9 dev limpet0",
        "blackhole 2001:db8:9::/64",
    ],
)
def test_whatever_another_puts_into_our_own_table_is_dropped(bed: NodeBed, kind: str) -> None:
    bed.settle()
    # A route in our table needs a lookup of its gateway, which is in our table too.
    bed.node.ip(f"{'-6 ' if '::' in kind else ''}route add table {ROUTE_TABLE} {kind}")

    changes = bed.settle()

    (change,) = changes
    assert isinstance(change, Drop)
    assert isinstance(change.what, Route)
    assert bed.pending() == []


def test_a_longer_segment_takes_the_place_of_a_shorter_one(bed: NodeBed) -> None:
    bed.settle()
    bed.state = replace(STATE, segments=(ip_network("10.244.7.0/25"), ip_network("fd00:7::/80")))

    # The kernel holds an IPv6 address once per interface, whatever its length.
    bed.settle()
    bed.settle()

    assert bed.pending() == []
    assert "10.244.7.1/25" in bed.node.run("ip", "address", "show", "limpet0")
    assert "fd00:7::1/80" in bed.node.run("ip", "address", "show", "limpet0")


def test_a_second_address_of_a_subnet_outlives_the_first(bed: NodeBed) -> None:
    bed.state = NodeState()
    bed.specs = [BridgeSpec("limpet0", (ip_interface("10.9.0.1/24"),))]
    bed.settle()
    bed.specs = [BridgeSpec("limpet0", (ip_interface("10.9.0.2/24"),))]

    changes = bed.settle()

    assert Drop(LinkAddress("limpet0", ip_interface("10.9.0.1/24"))) in changes
    assert bed.pending() == []


def test_a_link_with_the_bridges_name_is_never_taken_over(bed: NodeBed) -> None:
    bed.node.ip("link add limpet0 type veth peer name other")

    (reason,) = bed.kernel.facts(["limpet0"]).no_bridges.values()
    assert "it is a veth link; give the network another bridge name" in reason
    bed.settle()
    with pytest.raises(KernelError, match="it is a veth link"):
        bed.kernel.apply(
            Put(Bridge("limpet0", "02:00:00:00:00:01", frozenset())),
            before_sysctl=bed.changed_sysctls.append,
        )

    link = bed.kernel.route.link("limpet0")
    assert link is not None
    assert (link.kind, link.up) == ("veth", False)
    assert bed.pending() == []


def test_pods_keep_their_gateway_when_a_segment_comes_before_the_first(bed: NodeBed) -> None:
    bed.settle()
    before = bed.kernel.route.link("limpet0")
    bed.state = replace(STATE, segments=(ip_network("10.1.0.0/24"), *STATE.segments))

    bed.settle()

    after = bed.kernel.route.link("limpet0")
    assert before is not None
    assert after is not None
    assert after.mac == before.mac
    assert bed.pending() == []


def test_a_node_without_anything_wanted_is_not_touched(bed: NodeBed) -> None:
    with bed.node.entered():
        want = bed.plan(bridge=False)
        have = bed.kernel.observe(want)

    assert want.bridges == have.bridges == {}
    assert not have.routes | want.routes
    assert not have.rules | want.rules


# What is not ours.


def snapshot(node: Netns) -> str:
    commands = (
        "ip -d link show br9",
        "ip link show f0",
        "ip address show br9",
        "ip route show table main",
        "ip -6 route show table main",
        "ip route show table 77",
        "ip -6 route show table 77",
        "ip rule show priority 77",
        "ip rule show priority 5147",
        "nft list table inet theirs",
        "nft list table ip limpet",
    )
    text = "\n".join(node.run(*command.split()) for command in commands)
    text = text.replace(" tentative", "")  # the kernel looks for a second holder for a second
    lines = [line for line in text.splitlines() if not line.startswith("fe80::/64 dev limpet0")]
    return re.sub(r"(hello|tcn|topology_change|gc)_timer +[\d.]+", "", "\n".join(lines))


def test_what_others_have_made_stays_as_it_is(bed: NodeBed) -> None:
    node = bed.node
    node.ip(
        "link add br9 type bridge",
        "link set br9 up",
        "address add 10.77.0.1/24 dev br9",
        "address add fd77::1/64 dev br9 nodad",
        "link add f0 type veth peer name f1",
        "link set f0 master br9",
        "link set f1 name limnotourshere",
        "route add 10.78.0.0/16 via 10.77.0.9",
        "route add 10.244.7.0/24 via 10.77.0.9 table 77",
        "route add fd78::/64 via fd77::9",
        "route add fd00:7::/64 via fd77::9 table 77",
        "rule add from 10.77.0.0/24 lookup 77 priority 77",
        "rule add from all lookup 78 priority 5147",
    )
    node.run("nft", "add table inet theirs; add chain inet theirs c; add table ip limpet")
    before = snapshot(node)
    # One of our networks uses their bridge too.
    bed.specs = [
        BridgeSpec("br9", (ip_interface("10.9.0.1/24"),), masquerade=(ip_network("10.9.0.0/24"),))
    ]

    bed.settle()
    bed.pod("one", 2, ports=WEB)
    assert bed.pending() == []
    assert "10.9.0.1/24" in node.run("ip", "address", "show", "br9")
    assert "limnotourshere" in bed.links()

    bed.specs = []
    bed.pods.clear()
    bed.settle()
    bed.reap()
    node.ip("address delete 10.9.0.1/24 dev br9")
    assert snapshot(node) == before


def test_their_bridge_keeps_its_mac_and_is_set_up(bed: NodeBed) -> None:
    bed.node.ip("link add br9 address 02:00:00:00:00:07 type bridge")
    bed.specs = [BridgeSpec("br9", (ip_interface("10.9.0.1/24"),), promisc=True)]

    changes = bed.settle()

    assert {
        change.what.ifname: change.what.ours
        for change in changes
        if isinstance(change, Put) and isinstance(change.what, Bridge)
    } == {"limpet0": True, "br9": False}
    link = bed.kernel.route.link("br9")
    assert link is not None
    assert (link.mac, link.up, link.alias) == ("02:00:00:00:00:07", True, "")
    assert link.flags & link_codec.IFF_PROMISC
    assert bed.pending() == []


def test_an_uplink_that_a_router_configures_goes_on_listening_to_it(bed: NodeBed) -> None:
    bed.node.ip(
        "link add wan0 type veth peer name wan1",
        "link set wan0 up",
        "link set wan1 up",
        "address add 2001:db8::1/64 dev wan0 nodad",
        "-6 route add default via 2001:db8::2 dev wan0 proto ra",
    )
    assert bed.node.sysctl("net/ipv6/conf/wan0/accept_ra") == "1"

    bed.settle()

    assert bed.node.sysctl("net/ipv6/conf/wan0/accept_ra") == "2"
    assert bed.pending() == []


def test_the_pods_mtu_follows_the_smallest_uplink(bed: NodeBed) -> None:
    assert bed.kernel.facts([]).uplink_mtu_bytes is None
    bed.outside()
    assert bed.kernel.facts([]).uplink_mtu_bytes == 1500
    bed.node.ip(
        "link add lte0 type veth peer name lte1",
        "link set lte0 mtu 1400 up",
        "route add default dev lte0 metric 900",
    )
    assert bed.kernel.facts([]).uplink_mtu_bytes == 1400


# The ruleset.


def in_order(ruleset: str) -> str:
    """With the elements of each map in one order: the kernel lists them in another."""
    return re.sub(
        r"elements = {(.*?)}",
        lambda found: f"elements = {sorted(' '.join(e.split()) for e in found[1].split(','))}",
        ruleset,
        flags=re.DOTALL,
    )


def test_the_kernel_takes_the_ruleset_and_lists_it_as_it_was_written(
    make_netns: NetnsFactory,
) -> None:
    text = ruleset_of_a_node()
    with make_netns().entered():
        nft = Nftables()
    nft.put_table(text)
    listed = nft.list_table()
    nft.close()

    assert listed is not None
    assert in_order(listed) == in_order(text)


def test_an_agent_that_starts_anew_finds_the_ruleset_in_place(bed: NodeBed) -> None:
    bed.pod("one", 2, ports=WEB)
    with bed.node.entered():
        again = Nftables()
    ruleset = bed.plan().ruleset

    assert again.read_ruleset(ruleset) == ruleset
    again.close()


def test_a_ruleset_that_nft_refuses_leaves_the_old_one(bed: NodeBed) -> None:
    bed.settle()
    before = bed.kernel.nft.list_table()

    with pytest.raises(KernelError, match="table limpet") as failure:
        bed.kernel.nft.put_table("table inet limpet { chain x { nonsense } }")

    assert failure.value.errno == errno.EINVAL
    assert bed.kernel.nft.list_table() == before


# Packets.


@FAMILIES
def test_pods_reach_the_world_with_the_nodes_address_and_the_cluster_with_their_own(
    bed: NodeBed, family: int
) -> None:
    outside, pod = bed.outside(), bed.pod("one", 2)
    elsewhere = ("10.244.99.9", "fd00:99::9")[family]
    outside.ip(
        f"address add {elsewhere}/128 dev lo" if family else f"address add {elsewhere}/32 dev lo"
    )
    outside.ip(f"route add {pod.addresses[family]} via {NODE[family]}")
    # A path to another node's pods, as a later round would put it.
    bed.node.ip(f"route add {elsewhere} via {OUTSIDE[family]} table 5148 proto static")

    with outside.listening(ANY[6 if family else 4], 99) as server:
        assert talk(pod.netns, OUTSIDE[family], 99, server) == NODE[family]
        assert talk(pod.netns, elsewhere, 99, server) == pod.addresses[family]


def test_pods_of_a_network_that_does_not_ask_are_not_masqueraded(bed: NodeBed) -> None:
    outside = bed.outside()
    pod = bed.pod("one", 2, conf=replace(CONF, main=replace(MAIN, ip_masq=False)))
    outside.ip(f"route add {pod.addresses[0]} via {NODE[0]}")

    with outside.listening("0.0.0.0", 99) as server:
        assert talk(pod.netns, OUTSIDE[0], 99, server) == pod.addresses[0]


@FAMILIES
def test_cluster_traffic_without_a_path_never_leaves_by_the_default_route(
    bed: NodeBed, family: int
) -> None:
    bed.outside()
    pod = bed.pod("one", 2)

    with pytest.raises(OSError, match=r"unreachable|No route") as failure:
        pod.netns.connected(("10.244.99.9", "fd00:99::9")[family], 80).__enter__()
    assert failure.value.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH)


@FAMILIES
def test_a_host_port_is_reached_from_everywhere(bed: NodeBed, family: int) -> None:
    outside = bed.outside()
    pod, other = bed.pod("one", 2, ports=WEB), bed.pod("two", 3)

    with pod.netns.listening(ANY[6 if family else 4], 80) as server:
        # The pod sees who it is, except where the answer would not come back through the node.
        assert talk(outside, NODE[family], 8080, server) == OUTSIDE[family]
        assert talk(bed.node, NODE[family], 8080, server) == NODE[family]
        assert talk(bed.node, GATEWAYS[family], 8080, server) == GATEWAYS[family]
        for client in (pod.netns, other.netns):
            assert talk(client, NODE[family], 8080, server) == GATEWAYS[family]
            assert talk(client, GATEWAYS[family], 8080, server) == GATEWAYS[family]
        if family == 0:
            for loopback in ("127.0.0.1", "127.9.9.9"):
                assert talk(bed.node, loopback, 8080, server) == GATEWAYS[family]


def test_ipv6_localhost_is_refused_at_once_and_serves_what_is_the_nodes_own(bed: NodeBed) -> None:
    pod = bed.pod("one", 2, ports=WEB)

    with pod.netns.listening("::", 80), pytest.raises(ConnectionRefusedError):
        bed.node.connected("::1", 8080).__enter__()
    with bed.node.listening("::1", 8080) as server:
        assert talk(bed.node, "::1", 8080, server) == "::1"


def test_bridged_packets_that_pass_netfilter_reach_host_ports_too(bed: NodeBed) -> None:
    pod, other = bed.pod("one", 2, ports=WEB), bed.pod("two", 3)
    # What kube-proxy asks for; a sysctl of the namespace.
    for name in ("iptables", "ip6tables"):
        bed.node.sysctl(f"net/bridge/bridge-nf-call-{name}", "1")

    for family in (0, 1):
        with pod.netns.listening(ANY[6 if family else 4], 80) as server:
            for client in (pod.netns, other.netns):
                talk(client, GATEWAYS[family], 8080, server)
            assert talk(other.netns, pod.addresses[family], 80, server) == other.addresses[family]


def test_a_host_port_at_one_address_leaves_the_others_to_the_node(bed: NodeBed) -> None:
    outside = bed.outside()
    bed.node.ip("address add 192.0.2.11/24 dev up0")
    at = (HostPortMapping(8080, 80, "tcp", ip_interface("192.0.2.11/24").ip),)
    pod = bed.pod("one", 2, ports=at)

    with (
        pod.netns.listening("0.0.0.0", 80) as in_pod,
        bed.node.listening("0.0.0.0", 8080) as on_node,
    ):
        talk(outside, "192.0.2.11", 8080, in_pod)
        talk(outside, "192.0.2.1", 8080, on_node)
        talk(bed.node, "127.0.0.1", 8080, on_node)


def test_a_host_port_at_127_0_0_1_is_for_the_node_only(bed: NodeBed) -> None:
    outside = bed.outside()
    pod = bed.pod("one", 2, ports=(HostPortMapping(8080, 80, "tcp", ip_interface("127.0.0.1").ip),))

    with pod.netns.listening("0.0.0.0", 80) as server:
        talk(bed.node, "127.0.0.1", 8080, server)
        with pytest.raises(ConnectionRefusedError):
            outside.connected("192.0.2.1", 8080).__enter__()


@FAMILIES
def test_a_host_port_of_udp_answers_from_the_address_that_was_asked(
    bed: NodeBed, family: int
) -> None:
    outside = bed.outside()
    pod = bed.pod("one", 2, ports=(HostPortMapping(5300, 53, "udp"),))
    version = 6 if family else 4

    with (
        pod.netns.open_socket(version, socket.SOCK_DGRAM) as server,
        outside.open_socket(version, socket.SOCK_DGRAM) as client,
        bed.node.open_socket(version, socket.SOCK_DGRAM) as local,
    ):
        server.bind((ANY[version], 53))
        places = [(client, NODE[family]), (local, NODE[family])]
        for asker, address in places if family else [*places, (local, "127.0.0.1")]:
            asker.settimeout(PATIENCE_S)
            words = f"question of {asker.fileno()}".encode()
            ask = partial(asker.sendto, words, (address, 5300))
            question, peer = received(server, words, ask)
            server.sendto(b"answer to " + question, peer)
            assert asker.recvfrom(64)[1][:2] == (address, 5300)


def test_the_node_is_not_open_to_pods_at_its_own_127_0_0_1(bed: NodeBed) -> None:
    bed.pod("one", 2, ports=WEB)
    pod = bed.pod("two", 3)
    assert bed.node.sysctl("net/ipv4/conf/limpet0/route_localnet") == "1"
    # What a pod can do that may send packets as it likes (CAP_NET_RAW, or the owner of its netns).
    pod.netns.sysctl("net/ipv4/conf/all/route_localnet", "1")
    pod.netns.ip(
        "rule add to 127.0.0.1 lookup 99 priority 50",
        "rule add lookup local priority 100",
        "rule delete priority 0",
        "route add 127.0.0.1 via 10.244.7.1 table 99",
    )
    with bed.node.listening("127.0.0.1", 10250):
        assert is_silent(pod.netns, "127.0.0.1", 10250)
        # The test is able to get there: without our rule it does.
        bed.kernel.nft.run("flush chain inet limpet localhost", what="test")
        with pod.netns.connected("127.0.0.1", 10250):
            pass


def test_127_0_0_1_stays_guarded_when_the_last_host_port_is_gone(bed: NodeBed) -> None:
    bed.pod("one", 2, ports=WEB)
    del bed.pods["one"]
    bed.settle()

    assert bed.node.sysctl("net/ipv4/conf/limpet0/route_localnet") == "1"
    assert hooked(bed) == {"localhost"}
    bed.node.sysctl("net/ipv4/conf/limpet0/route_localnet", "0")
    bed.settle()
    assert hooked(bed) == set()
    bed.node.sysctl("net/ipv4/conf/all/route_localnet", "1")
    bed.settle()
    assert hooked(bed) == {"localhost"}


def hooked(bed: NodeBed) -> set[str]:
    """Our chains that packets come through."""
    listed = bed.node.run("nft", "list", "table", "inet", "limpet")
    return set(re.findall(r"chain (\w+) \{\n\t*type ", listed))


def test_flows_are_not_tracked_where_nothing_needs_it(bed: NodeBed) -> None:
    plain = replace(CONF, main=replace(MAIN, ip_masq=False))
    bed.outside()
    pod = bed.pod("plain", 2, conf=plain)
    pod.netns.run("ping", "-n", "-c", "1", "-W", "2", NODE[0])
    assert hooked(bed) == set()
    assert tracked(bed) == ""

    bed.pod("web", 3, conf=plain, ports=WEB)
    pod.netns.run("ping", "-n", "-c", "1", "-W", "2", NODE[0])
    assert hooked(bed) == {"localhost", "prerouting", "output", "postrouting"}
    assert "src=10.244.7.2" in tracked(bed)


def tracked(bed: NodeBed) -> str:
    with bed.node.entered():
        return Path("/proc/thread-self/net/nf_conntrack").read_text(encoding="ascii")


@FAMILIES
def test_multicast_of_pods_keeps_its_source(bed: NodeBed, family: int) -> None:
    version, group = ((4, "239.1.2.3"), (6, "ff02::123"))[family]
    sender, receiver = bed.pod("one", 2), bed.pod("two", 3)
    for name in ("iptables", "ip6tables"):
        bed.node.sysctl(f"net/bridge/bridge-nf-call-{name}", "1")

    with (
        receiver.netns.open_socket(version, socket.SOCK_DGRAM) as here,
        sender.netns.open_socket(version, socket.SOCK_DGRAM) as there,
    ):
        here.settimeout(0.2)
        here.bind((ANY[version], 9999))
        packed = ip_address(group).packed
        if version == 4:
            membership = packed + ip_address(receiver.addresses[0]).packed
            here.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        else:
            with receiver.netns.entered():
                eth0 = socket.if_nametoindex("eth0")
            here.setsockopt(
                socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, packed + struct.pack("=I", eth0)
            )
            there.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, eth0)
        there.bind((sender.addresses[family], 0))
        data, source = ask_until_heard(there, (group, 9999), here)
        assert (data, source[0]) == (b"hello", sender.addresses[family])


def ask_until_heard(
    sender: socket.socket, to: tuple[str, int], receiver: socket.socket
) -> tuple[bytes, tuple[str, int]]:
    """The kernel joins an IPv6 group on its device some time after the call that asks for it."""
    for _ in range(25):
        sender.sendto(b"hello", to)
        with contextlib.suppress(TimeoutError):
            data, source = receiver.recvfrom(64)
            return data, (source[0], source[1])
    raise TimeoutError("nothing was heard")


# Netlink sockets.


def test_many_failures_at_once_are_all_reported(make_netns: NetnsFactory) -> None:
    with make_netns().entered(), RouteSocket() as route:
        requests = [link_codec.delete_link(1000 + n, what=f"link {n}") for n in range(1500)] + [
            link_codec.set_link(1, what="lo", up=True)
        ]
        outcomes = route.try_each(requests)

    assert [each.errno for each in outcomes if each is not None] == [errno.ENODEV] * 1500
    assert outcomes[-1] is None
    assert str(outcomes[7]) == "delete link 7: ENODEV"


def test_a_dump_that_fails_at_its_end_is_an_error(make_netns: NetnsFactory) -> None:
    with make_netns().entered(), RouteSocket() as route:
        request = route_codec.dump_routes(wire.AF_INET)
        of_table = replace(request, body=request.body + wire.attr_u32(route_codec.RTA_TABLE, 4242))
        with pytest.raises(KernelError) as failure:
            route.dump(of_table)
        assert failure.value.errno == errno.ENOENT
        assert route.links().keys() == {"lo"}


def test_a_refused_request_says_why_in_the_kernels_words(make_netns: NetnsFactory) -> None:
    with make_netns().entered(), RouteSocket() as route:
        with pytest.raises(KernelError, match="Nexthop has invalid gateway") as failure:
            route.apply(
                route_codec.route(
                    ip_network("10.0.0.0/8"), ifindex=1, gateway=ip_interface("10.0.0.1").ip
                )
            )
        assert failure.value.errno == errno.ENETUNREACH
        assert "route 10.0.0.0/8 via 10.0.0.1" in str(failure.value)


def test_a_socket_belongs_to_the_namespace_in_which_it_was_made(make_netns: NetnsFactory) -> None:
    netns = make_netns()
    netns.ip("link add here0 type bridge")
    with netns.entered():
        route = RouteSocket()
    with route:
        assert route.link("here0") is not None
        assert isinstance(route, NetlinkSocket)
