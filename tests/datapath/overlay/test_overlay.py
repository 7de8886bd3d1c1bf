"""The network between nodes on a real kernel: packets, repair, and what a change costs."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import ip_address
from queue import SimpleQueue

import pytest

from limpet.base.errors import StorageError
from limpet.base.ownership import ROUTE_TABLE
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath
from limpet.cluster.topology.view import view_of
from limpet.datapath.change import Drop, Put
from limpet.datapath.overlay.apply import OVERLAY_NOTIFICATIONS
from limpet.datapath.overlay.diff import LoosenLink, diff_overlay
from limpet.datapath.overlay.plan import plan_overlay, replan_overlay
from limpet.datapath.overlay.state import FdbEntry
from limpet.linux.netlink.socket import Notifications
from tests.beds.namespaces import Netns, talk
from tests.beds.overlay_bed import Node, OverlayBed, ping, vtep_mac
from tests.waiting import PATIENCE_S

RUNGS = [
    pytest.param(transports.ROUTE, 4, False, 1500, id="route"),
    pytest.param(transports.VXLAN, 4, False, 1450, id="vxlan4"),
    pytest.param(transports.VXLAN, 6, False, 1430, id="vxlan6"),
    pytest.param(transports.VXLAN, 4, True, 1450, id="vxlan4-routed"),
    pytest.param(transports.VXLAN, 6, True, 1430, id="vxlan6-routed"),
]
FAMILIES = (4, 6)


@contextmanager
def bed_of(count: int, *, routed: bool = False) -> Iterator[OverlayBed]:
    bed = OverlayBed(count, routed=routed)
    try:
        yield bed
    finally:
        bed.close()


@pytest.fixture
def two() -> Iterator[OverlayBed]:
    """Two nodes on a switch, over VXLAN."""
    with bed_of(2) as bed:
        bed.join(transports.VXLAN)
        yield bed


def assert_connected(one: Node, other: Node, *families: int) -> None:
    """Pods, and nodes by their overlay addresses, by ICMP."""
    for version in families or FAMILIES:
        ping(one.pod, other.address(version))
        ping(one.netns, other.address(version))
        ping(one.pod, other.overlay(version))


# Packets.


@pytest.mark.parametrize(("rung", "underlay", "routed", "mtu_bytes"), RUNGS)
def test_pods_and_nodes_reach_each_other_with_packets_of_every_size(
    rung: transports.Transport, underlay: int, routed: bool, mtu_bytes: int
) -> None:
    with bed_of(3 if not routed else 2, routed=routed) as bed:
        bed.join(rung, underlay)
        one, other = bed.nodes[0], bed.nodes[-1]
        assert_connected(one, other)
        assert_connected(other, one)
        for version in FAMILIES:
            _talk_tcp(one, other, version)
            _talk_udp(one, other, version)
            headers = 28 if version == 4 else 48
            address = other.address(version)
            ping(one.pod, address, "-M", "do", "-s", str(mtu_bytes - headers))
            if mtu_bytes < 1500:
                said = _refused_ping(one.pod, address, mtu_bytes + 1 - headers)
                assert re.search(rf"mtu\W+{mtu_bytes}\b", said)
        assert bed.settle() == [[] for _ in bed.nodes]


def _refused_ping(source: Netns, target: str, size_bytes: int) -> str:
    with pytest.raises(AssertionError) as refused:
        source.run("ping", "-n", "-c", "1", "-W", "1", "-M", "do", "-s", str(size_bytes), target)
    return str(refused.value)


def _talk_tcp(one: Node, other: Node, version: int) -> None:
    """Connects, and a megabyte goes each way at full size."""
    address = other.address(version)
    sent = bytes(1 << 20)
    with other.pod.listening(address, 80) as server:
        assert talk(one.pod, address, 80, server) == one.address(version)
        with one.pod.connected(address, 80) as here:
            there, _ = server.accept()
            with there:
                for source, sink in ((here, there), (there, here)):
                    sink.settimeout(PATIENCE_S)
                    sender = threading.Thread(target=source.sendall, args=(sent,))
                    sender.start()
                    received = 0
                    while received < len(sent):
                        received += len(sink.recv(1 << 16))
                    sender.join()


def _talk_udp(one: Node, other: Node, version: int) -> None:
    """Also a datagram larger than any link, in fragments."""
    address = other.address(version)
    with (
        other.pod.open_socket(version, socket.SOCK_DGRAM) as server,
        one.pod.open_socket(version, socket.SOCK_DGRAM) as client,
    ):
        server.settimeout(PATIENCE_S)
        client.settimeout(PATIENCE_S)
        server.bind((address, 5000))
        client.connect((address, 5000))
        # What went by TCP has told the sender how much the path takes.
        for size in (1, 3000):
            client.send(bytes(size))
            data, peer = server.recvfrom(4000)
            assert (len(data), peer[0]) == (size, one.address(version))
        server.sendto(b"back", peer)
        assert client.recv(16) == b"back"


def test_nodes_reach_pods_with_their_overlay_address(two: OverlayBed) -> None:
    one, other = two.nodes
    for version in FAMILIES:
        with other.pod.listening(other.address(version), 80) as server:
            seen = talk(one.netns, other.address(version), 80, server)
        assert seen == one.overlay(version)


def test_a_peer_without_a_path_is_unreachable_and_nothing_leaves_in_clear(two: OverlayBed) -> None:
    one, other = two.nodes
    one.netns.ip("route add default via 172.20.2.254", "route add default via fd20:2::fe")
    one.paths = {}
    two.settle()

    for version in FAMILIES:
        with pytest.raises(AssertionError, match=r"nreachable|No route"):
            ping(one.pod, other.address(version))


def test_each_end_may_be_on_another_rung(two: OverlayBed) -> None:
    one, other = two.nodes
    for node in two.nodes:
        node.netns.sysctl("net/ipv4/conf/all/rp_filter", "1")
        node.netns.sysctl("net/ipv4/conf/eth0/rp_filter", "1")
    one.paths = {other.uid: two.path(other, transports.ROUTE)}
    two.settle()

    assert_connected(one, other)
    assert_connected(other, one)
    assert one.netns.sysctl("net/ipv4/conf/eth0/rp_filter") == "2"


def test_a_disk_that_takes_nothing_costs_one_setting_and_no_route(two: OverlayBed) -> None:
    one, _ = two.nodes
    before = _state(one)
    one.netns.sysctl("net/ipv4/conf/eth0/rp_filter", "1")
    one.netns.ip(f"route flush table {ROUTE_TABLE} proto 148")

    def refuse(path: str) -> None:
        raise StorageError("write", "/var/lib/limpet/sysctls.json", f"read-only ({path})")

    want = plan_overlay(one.view(two.entries())).state
    with one.netns.entered():
        changes = diff_overlay(want, one.kernel.observe(want))
        failures = one.kernel.apply(changes, before_sysctl=refuse)

    assert [str(each) for each in failures] == [
        "write /var/lib/limpet/sysctls.json: read-only (net/ipv4/conf/eth0/rp_filter)"
    ]
    assert _state(one) == before
    assert one.netns.sysctl("net/ipv4/conf/eth0/rp_filter") == "1"
    assert [type(each) for each in one.settle(two.entries())] == [LoosenLink]


@pytest.mark.parametrize("version", FAMILIES)
def test_a_peer_changes_its_rung_under_traffic_without_losing_a_packet(
    two: OverlayBed, version: int
) -> None:
    one, other = two.nodes
    with _echoing(other, version), one.pod.open_socket(version, socket.SOCK_DGRAM) as client:
        client.settimeout(PATIENCE_S)
        client.connect((other.address(version), 5000))
        stop = threading.Event()
        outcomes: SimpleQueue[bool] = SimpleQueue()

        def exchange() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                client.send(number.to_bytes(4, "big"))
                try:
                    while client.recv(16) != number.to_bytes(4, "big"):
                        pass
                    outcomes.put(True)
                except TimeoutError:
                    outcomes.put(False)

        traffic = threading.Thread(target=exchange)
        traffic.start()
        try:
            for rung in [transports.ROUTE, transports.VXLAN] * 4:
                for node, peer in ((one, other), (other, one)):
                    node.paths = {peer.uid: two.path(peer, rung)}
                    changes = node.settle(two.entries())
                    assert 0 < len(changes) <= 5
                    for _ in range(outcomes.qsize() + 20):
                        assert outcomes.get(timeout=PATIENCE_S), "a packet was lost"
        finally:
            stop.set()
            traffic.join()


@contextmanager
def _echoing(node: Node, version: int) -> Iterator[None]:
    """The node's pod sends every datagram on port 5000 back."""
    with node.pod.open_socket(version, socket.SOCK_DGRAM) as server:
        server.bind((node.address(version), 5000))

        def echo() -> None:
            while True:
                data, peer = server.recvfrom(2048)
                if data == b"end":
                    return
                server.sendto(data, peer)

        worker = threading.Thread(target=echo)
        worker.start()
        try:
            yield
        finally:
            with node.pod.open_socket(version, socket.SOCK_DGRAM) as last:
                last.sendto(b"end", (node.address(version), 5000))
            worker.join()


# flannel.


def test_a_node_programmed_as_flannel_does_is_a_peer() -> None:
    with bed_of(2) as bed:
        one, other = bed.nodes
        one.paths = {other.uid: bed.path(other, transports.VXLAN)}
        _program_as_flannel(bed, other, one)
        one.settle(bed.entries())

        assert_connected(one, other)
        for version in FAMILIES:
            ping(other.pod, one.address(version))
            # Its own packets come from the address of its device.
            ping(other.netns, one.address(version))


def _program_as_flannel(bed: OverlayBed, node: Node, peer: Node) -> None:
    number, of_peer = node.number, peer.number
    underlay, at = bed.underlay(node, 4), bed.underlay(peer, 4)
    node.netns.ip(
        f"link add flannel.1 address {vtep_mac(number, 4)} type vxlan id 1 dev eth0 "
        f"local {underlay} dstport 8472 nolearning",
        f"addr add 10.244.{number}.0/32 dev flannel.1",
        f"addr add fd00:0:0:{number}::/128 dev flannel.1 nodad",
        "link set flannel.1 up mtu 1450",
        f"neigh replace 10.244.{of_peer}.0 lladdr {vtep_mac(of_peer, 4)} dev flannel.1 "
        "nud permanent",
        f"neigh replace fd00:0:0:{of_peer}:: lladdr {vtep_mac(of_peer, 4)} dev flannel.1 "
        "nud permanent",
        f"route add 10.244.{of_peer}.0/24 via 10.244.{of_peer}.0 dev flannel.1 onlink "
        f"table {ROUTE_TABLE}",
        f"route add fd00:0:0:{of_peer}::/64 via fd00:0:0:{of_peer}:: dev flannel.1 onlink "
        f"table {ROUTE_TABLE}",
    )
    node.netns.run(
        *f"bridge fdb add {vtep_mac(of_peer, 4)} dev flannel.1 dst {at} self permanent".split()
    )


def test_where_flannel_has_the_vni_the_error_says_so() -> None:
    with bed_of(2) as bed:
        one, other = bed.nodes
        _program_as_flannel(bed, one, other)
        want = plan_overlay(one.view(bed.entries())).state
        with one.netns.entered():
            failures = one.kernel.apply(diff_overlay(want, one.kernel.observe(want)))

        assert str(failures[0]) == (
            "make VXLAN device limvx4 (VNI 1, port 8472): EEXIST (another VXLAN device has this "
            "VNI and port, flannel's perhaps: remove it, or give the network another VNI)"
        )


# Repair.


def _state(node: Node) -> str:
    """Everything of ours, as the tools show it, without what differs from device to device."""
    shown = [
        *(
            node.netns.run("ip", f"-{v}", "route", "show", "table", str(ROUTE_TABLE))
            for v in (4, 6)
        ),
        *(
            "\n".join(sorted(node.netns.run(*line.format(device).split()).splitlines()))
            for device in ("limvx4", "limvx6")
            for line in (
                "ip neigh show dev {} nud permanent",
                "bridge fdb show dev {}",
                "ip -d link show {}",
                "ip addr show {}",
            )
        ),
    ]
    return re.sub(r"(?m)^\d+: ", "", "\n".join(shown))


BREAKAGES = {
    "device deleted": ("link del limvx4",),
    "device down": ("link set limvx4 down",),
    "devices mac": ("link set limvx4 address 02:00:00:00:00:77",),
    "devices mtu": ("link set limvx4 mtu 1300",),
    "device learns": ("link set limvx4 type vxlan learning",),
    "address removed": ("addr del 10.244.1.0/32 dev limvx4",),
    "address added": ("addr add 10.99.0.1/32 dev limvx4",),
    "routes flushed": (f"route flush table {ROUTE_TABLE} proto 148",),
    "route changed": (
        f"route replace 10.244.2.0/24 via 10.244.2.0 dev limvx6 onlink src 10.244.1.1 "
        f"table {ROUTE_TABLE} metric 200 proto 148",
    ),
    "route added": (
        f"-6 route add fd00:0:0:9::/64 via fd00:0:0:2:: dev limvx4 onlink src fd00:0:0:1::1 "
        f"table {ROUTE_TABLE} metric 200 proto 148",
    ),
    "neighbours flushed": ("neigh flush dev limvx4 nud permanent",),
    "neighbour ages": ("neigh replace 10.244.2.0 dev limvx4 lladdr 02:00:00:00:00:78 nud stale",),
    "uplink flaps": ("link set eth0 down", "link set eth0 up"),
    "gateway flaps": (
        "addr del 10.244.1.1/24 dev limpet0",
        "addr add 10.244.1.1/24 dev limpet0 noprefixroute",
        f"route add 10.244.1.0/24 dev limpet0 table {ROUTE_TABLE} metric 100",
    ),
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_round_repairs_exactly_what_was_broken(two: OverlayBed, breakage: str) -> None:
    one, other = two.nodes
    ping(one.pod, other.address(4))
    before = _state(one)
    one.netns.ip(*BREAKAGES[breakage])

    one.settle(two.entries())

    assert _state(one) == before
    assert one.settle(two.entries()) == []
    for version in FAMILIES:
        ping(one.pod, other.address(version))


@pytest.mark.parametrize(
    "command",
    [
        "bridge fdb del {mac} dev limvx4 dst 172.20.2.2 self",
        "bridge fdb replace {mac} dev limvx4 dst 172.20.2.77 self permanent",
        "bridge fdb add 02:00:00:00:00:79 dev limvx4 dst 172.20.2.77 self permanent",
    ],
)
def test_a_round_repairs_the_entries(two: OverlayBed, command: str) -> None:
    one, other = two.nodes
    before = _state(one)
    one.netns.run(*command.format(mac=vtep_mac(2, 4)).split())

    assert len(one.settle(two.entries())) == 1

    assert _state(one) == before
    ping(one.pod, other.address(4))


def test_what_others_have_stays(two: OverlayBed) -> None:
    one, _ = two.nodes
    one.netns.ip(
        "link add vx9 type vxlan id 9 dstport 4789 nolearning",
        "link set vx9 up",
        "neigh add 10.244.9.0 dev vx9 lladdr 02:00:00:00:00:09 nud permanent",
        f"route add 10.250.0.0/24 dev vx9 table {ROUTE_TABLE} metric 200",
        "route add 10.251.0.0/24 dev vx9",
    )
    one.paths = {}

    one.settle(two.entries())

    assert "10.250.0.0/24" in one.netns.run("ip", "route", "show", "table", str(ROUTE_TABLE))
    assert "10.251.0.0/24" in one.netns.run("ip", "route")
    assert "10.244.9.0" in one.netns.run("ip", "neigh", "show", "dev", "vx9", "nud", "permanent")


def test_a_link_of_somebody_else_under_our_name_is_left_alone() -> None:
    with bed_of(2) as bed:
        one, other = bed.nodes
        one.paths = {other.uid: bed.path(other, transports.VXLAN)}
        one.netns.ip("link add limvx4 type bridge")
        want = plan_overlay(one.view(bed.entries())).state
        with one.netns.entered():
            failures = one.kernel.apply(diff_overlay(want, one.kernel.observe(want)))

        assert [str(failure) for failure in failures] == [
            "use link limvx4: EEXIST (somebody else made it; remove or rename it)"
        ]
        assert "bridge" in one.netns.run("ip", "-d", "link", "show", "limvx4")
        assert "limvx6" in one.netns.run("ip", "link")


# What a change costs, and what is heard of it.


def test_a_changed_peer_costs_that_peers_messages_only() -> None:
    with bed_of(3) as bed:
        bed.join(transports.VXLAN)
        one, other, third = bed.nodes
        view = one.view(bed.entries())
        plan = plan_overlay(view)
        heard = _listen(bed, one)

        def change() -> int:
            """Messages sent in a round for one changed peer."""
            nonlocal view, plan
            after = view_of(
                replace(view.snapshot, nodes=bed.entries()),
                one.uid,
                one.paths,
                one.own,
                before=view,
            )
            plan, touched = replan_overlay(plan, view, after)
            view = after
            assert touched is not None
            changes = diff_overlay(plan.state, one.kernel.have, touched)
            assert one.kernel.apply(changes) == []
            messages = list(heard.drain())
            # A neighbour that goes is told of as failed before, an entry before Linux 6.13 twice.
            twice = sum(
                isinstance(each, Put | Drop) and isinstance(each.what, FdbEntry) for each in changes
            )
            assert len(messages) <= len(changes) + 2 + twice
            assert not any(message is None or one.kernel.hear(message) for message in messages)
            assert one.kernel.have == plan.state
            return len(changes)

        with one.netns.entered():
            one.kernel.observe(plan.state)
            other.presence = replace(other.presence, sequence=2, vtep_macs={4: "02:4c:00:00:04:99"})
            new_mac = change()
            one.paths = {
                **one.paths,
                other.uid: PeerPath(transports.VXLAN, underlay=ip_address("172.20.2.99")),
            }
            new_address = change()
            one.paths = {**one.paths, other.uid: bed.path(other, transports.ROUTE)}
            to_route = change()
            third.grant = replace(third.grant, tombstone=True, generation=9)
            removed = change()

        assert (new_mac, new_address, to_route, removed) == (4, 1, 5, 5)


def _listen(bed: OverlayBed, node: Node) -> Notifications:
    with node.netns.entered():
        heard = Notifications(socket.NETLINK_ROUTE, OVERLAY_NOTIFICATIONS)
    bed.undo.callback(heard.close)
    return heard


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_whatever_happens_the_notifications_keep_the_picture_right_or_ask_to_look_anew(
    two: OverlayBed, breakage: str
) -> None:
    one, _ = two.nodes
    want = plan_overlay(one.view(two.entries())).state
    with one.netns.entered():
        heard = _listen(two, one)
        one.kernel.observe(want)
        one.netns.ip(*BREAKAGES[breakage])
        again = [message is None or one.kernel.hear(message) for message in heard.drain()]
        pictured = replace(one.kernel.have, entries=dict(one.kernel.have.entries))
        fresh = one.kernel.observe(want)

    if not any(again):
        assert pictured.entries == fresh.entries
        assert pictured.devices == fresh.devices
