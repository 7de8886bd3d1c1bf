"""What a pod may send, tried with frames made by hand, without port security and with it."""

from __future__ import annotations

import asyncio
import json
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from ipaddress import ip_network

import pytest

from limpet.base.addresses import link_local_of
from limpet.base.errors import KernelError
from limpet.base.node_state import NodeState
from limpet.base.ownership import NFT_PORTS_TABLE
from limpet.datapath.loop import Loop
from limpet.datapath.node.pod.attachment import AllowedSources, Bandwidth
from limpet.datapath.node.ports.apply import PortKernel
from limpet.datapath.node.ports.diff import PutTable, diff_ports
from limpet.datapath.node.ports.part import Mode, PortPart
from limpet.datapath.node.ports.plan import plan_ports
from limpet.datapath.node.ports.ruleset import plan_frame
from limpet.datapath.node.ports.state import PortTable
from tests.beds.namespaces import Netns, NetnsFactory
from tests.beds.node_bed import GATEWAYS
from tests.beds.own_tables import others_can_delete
from tests.beds.policies.ports_bed import Frame, PortsBed, has_come, packet_socket
from tests.beds.traffic.pod_frames import (
    BROADCAST,
    arp,
    ethernet,
    first_fragment,
    fragment,
    group_mac,
    icmpv6,
    igmp,
    neighbour,
    router_advertisement,
    solicited_node,
    udp,
    with_hop_by_hop,
)
from tests.waiting import wait_until

needs_own_tables = pytest.mark.skipif(others_can_delete(), reason="Linux before 6.9")
OUTSIDE4, OUTSIDE6 = "198.51.100.7", "2001:db8:7::7"
ALL_NODES = "ff02::1"


@pytest.fixture
def ports(make_netns: NetnsFactory) -> Iterator[PortsBed]:
    bed = PortsBed(make_netns)
    yield bed
    bed.close()


@pytest.fixture
def changeable(make_netns: NetnsFactory) -> Iterator[PortsBed]:
    """Its table is nobody's, as on kernels before 6.9."""
    bed = PortsBed(make_netns, flags=0)
    yield bed
    bed.close()


def forgeries(bed: PortsBed) -> dict[str, Frame]:
    """What no pod may send by default."""
    me, victim, node = bed.mac(0), bed.mac(1), bed.bridge_mac
    mine4, mine6 = bed.address(0, 4), bed.address(0, 6)
    theirs4, theirs6 = bed.address(1, 4), bed.address(1, 6)
    gateway4, gateway6 = GATEWAYS
    local, router = str(link_local_of(me)), str(link_local_of(node))
    their_local = str(link_local_of(victim))
    everybody = group_mac(ALL_NODES)

    def unsaid(following: int, tag: bytes) -> bytes:
        return ethernet(me, victim, "ip6", first_fragment(mine6, theirs6, following, tag))

    return {
        "another pod's IPv4 address": lambda t: ethernet(
            me, victim, "ip", udp(gateway4, theirs4, t)
        ),
        "an outside IPv4 address": lambda t: ethernet(me, node, "ip", udp(OUTSIDE4, theirs4, t)),
        "another pod's IPv6 address": lambda t: ethernet(
            me, victim, "ip6", udp(gateway6, theirs6, t)
        ),
        "an outside IPv6 address": lambda t: ethernet(me, node, "ip6", udp(OUTSIDE6, theirs6, t)),
        "the gateway's link-local address": lambda t: ethernet(
            me, everybody, "ip6", udp(router, ALL_NODES, t)
        ),
        "another pod's MAC": lambda t: ethernet(
            victim, BROADCAST, "ip", udp(mine4, "255.255.255.255", t)
        ),
        "the gateway's MAC": lambda t: ethernet(node, victim, "ip", udp(mine4, theirs4, t)),
        "a MAC of nobody": lambda t: ethernet(
            "02:00:00:00:00:77", victim, "ip", udp(mine4, theirs4, t)
        ),
        "ARP: the gateway is at my MAC": lambda t: ethernet(
            me, victim, "arp", arp(2, me, gateway4, theirs4, t)
        ),
        "ARP: a pod is at my MAC, told the gateway": lambda t: ethernet(
            me, node, "arp", arp(2, me, theirs4, gateway4, t)
        ),
        "ARP: my question comes from a pod's address": lambda t: ethernet(
            me, BROADCAST, "arp", arp(1, me, theirs4, gateway4, t)
        ),
        "ARP: I am at another MAC": lambda t: ethernet(
            me, BROADCAST, "arp", arp(2, victim, mine4, mine4, t)
        ),
        "another pod's link-local address": lambda t: ethernet(
            me, everybody, "ip6", udp(str(link_local_of(victim)), ALL_NODES, t)
        ),
        "another pod's MAC, IPv6": lambda t: ethernet(
            victim, everybody, "ip6", udp(mine6, ALL_NODES, t)
        ),
        "the gateway's MAC, IPv6": lambda t: ethernet(node, victim, "ip6", udp(mine6, theirs6, t)),
        "a MAC of nobody, IPv6": lambda t: ethernet(
            "02:00:00:00:00:77", victim, "ip6", udp(mine6, theirs6, t)
        ),
        **{
            f"a first fragment that ends before {what}": partial(unsaid, following)
            for what, following in (("UDP", 17), ("ICMPv6", 58), ("more options", 60))
        },
        "ND: the gateway is at my MAC": lambda t: ethernet(
            me, victim, "ip6", neighbour(mine6, theirs6, 136, gateway6, me, t, 0x20000000)
        ),
        "ND: a pod is at my MAC, told the gateway": lambda t: ethernet(
            me, node, "ip6", neighbour(mine6, gateway6, 136, theirs6, me, t, 0x60000000)
        ),
        "ND: the gateway's link-local address is at my MAC": lambda t: ethernet(
            me, victim, "ip6", neighbour(local, theirs6, 136, router, me, t, 0x20000000)
        ),
        "ND: a pod's link-local address is at my MAC": lambda t: ethernet(
            me, node, "ip6", neighbour(local, gateway6, 136, their_local, me, t, 0x60000000)
        ),
        "ND: all are told that the gateway is at my MAC": lambda t: ethernet(
            me, everybody, "ip6", neighbour(mine6, ALL_NODES, 136, gateway6, me, t, 0x20000000)
        ),
        "ND behind a header of options: the gateway is at my MAC": lambda t: ethernet(
            me,
            victim,
            "ip6",
            with_hop_by_hop(neighbour(mine6, theirs6, 136, gateway6, me, t, 0x20000000)),
        ),
        "ND: my question comes from the gateway's link-local address": lambda t: ethernet(
            me,
            group_mac(solicited_node(theirs6)),
            "ip6",
            neighbour(router, solicited_node(theirs6), 135, theirs6, me, t),
        ),
        "ND: my question comes from a pod's address": lambda t: ethernet(
            me,
            group_mac(solicited_node(gateway6)),
            "ip6",
            neighbour(theirs6, solicited_node(gateway6), 135, gateway6, me, t),
        ),
        "ND: a pod's address is looked for as a duplicate": lambda t: ethernet(
            me,
            group_mac(solicited_node(theirs6)),
            "ip6",
            neighbour("::", solicited_node(theirs6), 135, theirs6, me, t),
        ),
        "RA": lambda t: ethernet(me, everybody, "ip6", router_advertisement(local, t)),
        "RA from the gateway's address": lambda t: ethernet(
            me, everybody, "ip6", router_advertisement(router, t)
        ),
        "RA to one pod": lambda t: ethernet(
            me, victim, "ip6", router_advertisement(local, t, target=their_local)
        ),
        "RA behind a header of options": lambda t: ethernet(
            me, everybody, "ip6", with_hop_by_hop(router_advertisement(local, t))
        ),
        "RA in a VLAN": lambda t: ethernet(
            me, everybody, "ip6", router_advertisement(local, t), vlan=5
        ),
        "ICMPv6 redirect from the gateway's address": lambda t: ethernet(
            me, victim, "ip6", icmpv6(router, theirs6, 137, bytes(36) + t)
        ),
        "ICMPv6 redirect": lambda t: ethernet(
            me, victim, "ip6", icmpv6(local, theirs6, 137, bytes(36) + t)
        ),
        "a DHCP server's answer": lambda t: ethernet(
            me, BROADCAST, "ip", udp(mine4, "255.255.255.255", t, ports=(67, 68))
        ),
        "a DHCP server's answer from another port": lambda t: ethernet(
            me, victim, "ip", udp(mine4, theirs4, t, ports=(6767, 68))
        ),
        "a DHCPv6 server's answer": lambda t: ethernet(
            me, victim, "ip6", udp(local, their_local, t, ports=(547, 546))
        ),
        "a DHCPv6 server's answer from another port": lambda t: ethernet(
            me, victim, "ip6", udp(local, their_local, t, ports=(5470, 546))
        ),
        "a DHCPv6 server's answer from the gateway's address": lambda t: ethernet(
            me, victim, "ip6", udp(router, their_local, t, ports=(547, 546))
        ),
        "IGMP query": lambda t: ethernet(
            me,
            group_mac("224.0.0.1"),
            "ip",
            igmp(mine4, "224.0.0.1", struct.pack(">BBHI", 0x11, 100, 0, 0), t),
        ),
        "MLD query": lambda t: ethernet(
            me, everybody, "ip6", icmpv6(local, ALL_NODES, 130, bytes(20) + t)
        ),
        "own addresses in a VLAN": lambda t: ethernet(
            me, victim, "ip", udp(mine4, theirs4, t), vlan=5
        ),
        "own IPv6 addresses in a VLAN": lambda t: ethernet(
            me, victim, "ip6", udp(mine6, theirs6, t), vlan=5
        ),
        "another protocol": lambda t: ethernet(me, victim, "other", t),
        "reverse ARP": lambda t: ethernet(me, BROADCAST, "arp", arp(3, me, theirs4, theirs4, t)),
    }


def own_frames(bed: PortsBed) -> dict[str, Frame]:
    """What a pod needs to send."""
    me, victim, node = bed.mac(0), bed.mac(1), bed.bridge_mac
    mine4, mine6 = bed.address(0, 4), bed.address(0, 6)
    theirs4, theirs6 = bed.address(1, 4), bed.address(1, 6)
    gateway4 = GATEWAYS[0]
    local = str(link_local_of(me))
    everybody = group_mac(ALL_NODES)
    mdns = group_mac("224.0.0.251")

    def rest(kind: int, tag: bytes) -> bytes:
        body = tag.ljust(16, b"\0")
        return ethernet(me, victim, "ip6", fragment(mine6, theirs6, kind, 1400, body))

    return {
        "IPv4": lambda t: ethernet(me, victim, "ip", udp(mine4, theirs4, t)),
        "IPv4 to the node": lambda t: ethernet(me, node, "ip", udp(mine4, gateway4, t)),
        "IPv4 multicast": lambda t: ethernet(me, mdns, "ip", udp(mine4, "224.0.0.251", t)),
        "IPv4 broadcast": lambda t: ethernet(me, BROADCAST, "ip", udp(mine4, "255.255.255.255", t)),
        "IPv6": lambda t: ethernet(me, victim, "ip6", udp(mine6, theirs6, t)),
        **{f"IPv6, the rest of {kind}": partial(rest, kind) for kind in (6, 17, 58, 60)},
        "IPv6 link-local": lambda t: ethernet(
            me, victim, "ip6", udp(local, str(link_local_of(victim)), t)
        ),
        "IPv6 multicast": lambda t: ethernet(me, everybody, "ip6", udp(local, ALL_NODES, t)),
        "ARP question": lambda t: ethernet(me, BROADCAST, "arp", arp(1, me, mine4, theirs4, t)),
        "ARP answer": lambda t: ethernet(me, victim, "arp", arp(2, me, mine4, theirs4, t)),
        "gratuitous ARP": lambda t: ethernet(me, BROADCAST, "arp", arp(2, me, mine4, mine4, t)),
        "ARP probe": lambda t: ethernet(me, BROADCAST, "arp", arp(1, me, "0.0.0.0", mine4, t)),
        "ND question": lambda t: ethernet(
            me,
            group_mac(solicited_node(theirs6)),
            "ip6",
            neighbour(mine6, solicited_node(theirs6), 135, theirs6, me, t),
        ),
        "ND answer": lambda t: ethernet(
            me, victim, "ip6", neighbour(mine6, theirs6, 136, mine6, me, t, 0x60000000)
        ),
        "unsolicited advertisement": lambda t: ethernet(
            me, everybody, "ip6", neighbour(mine6, ALL_NODES, 136, mine6, me, t, 0x20000000)
        ),
        "duplicate address detection": lambda t: ethernet(
            me,
            group_mac(solicited_node(mine6)),
            "ip6",
            neighbour("::", solicited_node(mine6), 135, mine6, me, t),
        ),
        "duplicate address detection, link-local": lambda t: ethernet(
            me,
            group_mac(solicited_node(local)),
            "ip6",
            neighbour("::", solicited_node(local), 135, local, me, t),
        ),
        "router solicitation": lambda t: ethernet(
            me, group_mac("ff02::2"), "ip6", icmpv6(local, "ff02::2", 133, bytes(4) + t)
        ),
        "MLD report without an address": lambda t: ethernet(
            me, group_mac("ff02::16"), "ip6", icmpv6("::", "ff02::16", 143, bytes(4) + t)
        ),
        "IGMP report": lambda t: ethernet(
            me,
            group_mac("224.0.0.22"),
            "ip",
            igmp(mine4, "224.0.0.22", struct.pack(">BBHI", 0x22, 0, 0, 0), t),
        ),
        "DHCP discover": lambda t: ethernet(
            me, BROADCAST, "ip", udp("0.0.0.0", "255.255.255.255", t, ports=(68, 67))
        ),
        "DHCPv6 solicit": lambda t: ethernet(
            me, group_mac("ff02::1:2"), "ip6", udp(local, "ff02::1:2", t, ports=(546, 547))
        ),
    }


def test_what_a_pod_may_not_send_does_not_leave_its_port(ports: PortsBed) -> None:
    attempts = forgeries(ports)
    before = {name: ports.arrives(frame) for name, frame in attempts.items()}
    ports.enforce()
    after = {name: ports.arrives(frame) for name, frame in attempts.items()}

    assert before == dict.fromkeys(attempts, True), "an attempt that comes to nothing anyway"
    assert after == dict.fromkeys(attempts, False)


def test_what_a_pod_needs_to_send_arrives(ports: PortsBed) -> None:
    ports.enforce()
    frames = own_frames(ports)

    arrived = {name: ports.arrives(frame) for name, frame in frames.items()}

    assert arrived == dict.fromkeys(frames, True)


def test_frames_that_the_bridge_takes_for_itself_teach_it_no_mac(ports: PortsBed) -> None:
    """They pass no chain of prerouting, and the bridge would learn who has another pod's MAC."""
    victim, thief = (ports.pod(n).attachment.link.host_ifname for n in (1, 0))

    def send(tag: bytes) -> None:
        body = ethernet(ports.mac(1), "01:80:c2:00:00:0e", "other", tag)
        with packet_socket(ports.pod(0).netns, "eth0") as out:
            out.send(body)

    def end_of_mac() -> str:
        """The port by which frames for the victim leave."""
        listed = json.loads(ports.node.run("bridge", "-j", "fdb", "show", "br", "limpet0"))
        found = [each["ifname"] for each in listed if each["mac"] == ports.mac(1)]
        return found[0] if found else ""

    name = "limpet0"
    ports.node.ip(f"link set {name} type bridge no_linklocal_learn 0")

    def is_learned() -> bool:
        send(b"without")  # again, should the victim have said something in between
        return end_of_mac() == thief

    wait_until(is_learned, "an attempt that comes to nothing anyway")

    assert len(ports.bed.settle()) == 1
    assert ports.arrives(own_frames_of(ports, 1), sender=1)
    assert end_of_mac() == victim
    send(b"with")
    # Frames of one link come in order: with this one the other has been dealt with.
    assert ports.arrives(own_frames_of(ports, 0), forget=False)
    assert end_of_mac() == victim


def own_frames_of(bed: PortsBed, pod: int) -> Frame:
    return lambda t: ethernet(
        bed.mac(pod), BROADCAST, "ip", udp(bed.address(pod, 4), "255.255.255.255", t)
    )


def test_a_pod_makes_nobody_take_it_for_a_router(make_netns: NetnsFactory) -> None:
    """On a node without IPv6 segments the bridge listens to routers, and so does a pod."""
    bed = PortsBed(make_netns, state=NodeState(segments=(ip_network("10.244.7.0/24"),)))

    def advertise(tag: bytes) -> bool:
        local = str(link_local_of(bed.mac(0)))
        body = router_advertisement(local, tag)
        return bed.arrives(lambda _: ethernet(bed.mac(0), group_mac(ALL_NODES), "ip6", body))

    def routers() -> list[str]:
        places = (bed.node, bed.pod(1).netns)
        return [line for each in places for line in _default_routes(each)]

    try:
        bed.enforce()
        assert not advertise(b"with")
        assert routers() == []
        with bed.node.entered():
            bed.kernel.apply(PutTable(PortTable()))
        local = str(link_local_of(bed.mac(0)))
        with packet_socket(bed.pod(0).netns, "eth0") as out:
            frame = router_advertisement(local, b"without")
            out.send(ethernet(bed.mac(0), group_mac(ALL_NODES), "ip6", frame))
        wait_until(lambda: len(routers()) == 2, "an attempt that comes to nothing anyway")
    finally:
        bed.close()


def _default_routes(netns: Netns) -> list[str]:
    return netns.run("ip", "-6", "route", "show", "default").splitlines()


# What a pod is allowed beside.


def test_a_pod_sends_from_what_it_is_allowed_beside_its_own(make_netns: NetnsFactory) -> None:
    virtual = "00:00:5e:00:01:07"
    allowed = AllowedSources(
        macs=(virtual,),
        prefixes=(
            ip_network("10.244.7.200/32"),
            ip_network("10.99.0.0/24"),
            ip_network("fd00:99::/64"),
        ),
    )
    bed = PortsBed(make_netns, allowed=allowed)
    me, victim = bed.mac(0), bed.mac(1)
    theirs4, theirs6 = bed.address(1, 4), bed.address(1, 6)
    everybody = group_mac(ALL_NODES)

    def from_mac(mac: str, source: str) -> Frame:
        if ":" in source:
            return lambda t: ethernet(mac, victim, "ip6", udp(source, theirs6, t))
        return lambda t: ethernet(mac, victim, "ip", udp(source, theirs4, t))

    def announced(mac: str, address: str, sender: str) -> Frame:
        if ":" in address:
            return lambda t: ethernet(
                mac, everybody, "ip6", neighbour(sender, ALL_NODES, 136, address, mac, t)
            )
        return lambda t: ethernet(mac, BROADCAST, "arp", arp(2, mac, address, address, t))

    try:
        bed.enforce()
        may = {
            f"{mac} {source}": from_mac(mac, source)
            for mac in (me, virtual)
            for source in (bed.address(0, 4), bed.address(0, 6), "10.244.7.200", "10.99.0.255")
        }
        may |= {
            "prefix of IPv6": from_mac(me, "fd00:99::ffff"),
            "own address": from_mac(me, bed.address(0, 4)),
            "ARP of the virtual address": announced(virtual, "10.244.7.200", ""),
            "NA of the virtual address": announced(virtual, "fd00:99::1", bed.address(0, 6)),
            "link-local of the virtual MAC": from_mac(virtual, str(link_local_of(virtual))),
        }
        may_not = {
            "next address": from_mac(me, "10.244.7.201"),
            "next prefix": from_mac(me, "10.99.1.0"),
            "next prefix of IPv6": from_mac(me, "fd00:99:0:1::"),
            "next MAC": from_mac("00:00:5e:00:01:08", "10.244.7.200"),
            "ARP of another": announced(virtual, theirs4, ""),
            "NA of another": announced(me, theirs6, bed.address(0, 6)),
        }
        assert {name: bed.arrives(each) for name, each in may.items()} == dict.fromkeys(may, True)
        got = {name: bed.arrives(each) for name, each in may_not.items()}
        assert got == dict.fromkeys(may_not, False)
        # Others are held to theirs.
        assert not bed.arrives(
            lambda t: ethernet(victim, me, "ip", udp("10.244.7.200", "10.244.7.2", t)), sender=1
        )
    finally:
        bed.close()


def test_a_pod_that_is_not_checked_sends_what_it_likes(make_netns: NetnsFactory) -> None:
    bed = PortsBed(make_netns, allowed=AllowedSources(unchecked=True))
    try:
        bed.enforce()
        attempts = forgeries(bed)
        some = ["another pod's IPv4 address", "another pod's MAC", "another protocol", "RA"]
        assert [name for name in some if not bed.arrives(attempts[name])] == []
    finally:
        bed.close()


def test_a_pod_that_nobody_has_entered_is_cut_off(ports: PortsBed) -> None:
    with ports.node.entered():
        ports.kernel.apply(PutTable(plan_ports([ports.pod(1).attachment])))

    assert not ports.arrives(own_frames_of(ports, 0))
    assert ports.arrives(own_frames_of(ports, 1), sender=1)


def test_a_pod_with_an_egress_limit_is_held_to_its_addresses(make_netns: NetnsFactory) -> None:
    """Its frames take the way over another device to the bridge."""
    limit = Bandwidth(egress_rate_bits=100_000_000, egress_burst_bits=10_000_000)
    bed = PortsBed(make_netns, bandwidth=limit)
    try:
        bed.enforce()
        assert bed.arrives(own_frames_of(bed, 0))
        assert not bed.arrives(forgeries(bed)["another pod's IPv4 address"])
    finally:
        bed.close()


# The kernel's side.


def test_the_table_becomes_what_is_planned_and_is_read_back(ports: PortsBed) -> None:
    pods = [pod.attachment for pod in ports.pods]
    one, both = plan_ports(pods[:1]), plan_ports(pods)
    wide = replace(
        pods[0],
        link=replace(pods[0].link, allowed=AllowedSources(prefixes=(ip_network("10.99.0.0/24"),))),
    )
    have = PortTable()
    with ports.node.entered():
        for want in (one, both, plan_ports([wide, pods[1]]), both, one, PortTable()):
            for change in diff_ports(want, have):
                ports.kernel.apply(change)
            have = ports.kernel.read()
            assert have == want


@needs_own_tables
def test_nothing_forged_arrives_while_another_program_flushes_all_of_nftables(
    make_netns: NetnsFactory,
) -> None:
    """One pod floods another in the name of a third one, which policies may let in; the table is
    there all the time, since it is ours alone."""
    bed = PortsBed(make_netns, 3)
    tag = b"a flood "
    packet = udp(bed.address(1, 4), bed.address(2, 4), tag)
    forged = ethernet(bed.mac(0), bed.mac(2), "ip", packet)
    ended = threading.Event()

    def flood() -> None:
        while not ended.is_set():
            with suppress(BlockingIOError):
                out.send(forged)

    try:
        bed.enforce()
        with (
            packet_socket(bed.pod(2).netns, "eth0") as heard,
            packet_socket(bed.pod(0).netns, "eth0") as out,
        ):
            flooding = threading.Thread(target=flood)
            flooding.start()
            try:
                for damage in 10 * ["flush ruleset", f"delete table bridge {NFT_PORTS_TABLE}"]:
                    before = bed.dropped()
                    with suppress(AssertionError):  # the second one is refused
                        bed.node.run("nft", damage)
                    wait_until(lambda: bed.dropped() > before, "it floods")  # noqa: B023
            finally:
                ended.set()
                flooding.join()
            assert not has_come(heard, tag)
        assert bed.arrives(lambda t: ethernet(bed.mac(1), bed.mac(2), "ip",
                                              udp(bed.address(1, 4), bed.address(2, 4), t)),
                           sender=1)  # fmt: skip
    finally:
        bed.close()


@needs_own_tables
def test_a_table_that_is_nobodys_any_more_is_gone_on_with(ports: PortsBed) -> None:
    """As when the agent was killed: what others did to it meanwhile is put right, and it is ours
    alone again."""
    want = plan_ports(pod.attachment for pod in ports.pods)
    table = f"bridge {NFT_PORTS_TABLE}"
    ports.enforce()
    for damage in (f"delete table {table}", f"insert rule {table} prerouting accept", ""):
        ports.kernel.close()
        if damage:
            ports.node.run("nft", damage)
        with ports.node.entered():
            ports.kernel = PortKernel()
            for change in diff_ports(want, ports.kernel.read()):
                ports.kernel.apply(change)
            assert ports.kernel.read() == want, damage
            with pytest.raises(AssertionError, match="not permitted"):
                ports.node.run("nft", f"delete table {table}")


def test_damage_is_seen_and_mended(changeable: PortsBed) -> None:
    ports = changeable
    pods = [pod.attachment for pod in ports.pods]
    want = plan_ports(pods)
    element = sorted(want.held("own4"))[0]
    ifname, _, rest = element.partition(" . ")
    table = "bridge limpet_ports"
    for damage in (
        f"delete table {table}",
        f"flush chain {table} prerouting",
        f"delete element {table} own4 {{ {ifname} . {rest} }}",
        f"add element {table} unchecked {{ {ifname} }}",
        f"insert rule {table} prerouting accept",
    ):
        ports.enforce()
        ports.node.run("nft", damage)
        with ports.node.entered():
            have = ports.kernel.read()
            assert have != want, damage
            for change in diff_ports(want, have):
                ports.kernel.apply(change)
            assert ports.kernel.read() == want, damage


def test_check_tells_what_is_missing_of_a_pods_protection(changeable: PortsBed) -> None:
    ports = changeable
    ports.enforce()  # what is nobody's stays so
    pods = [pod.attachment for pod in ports.pods]
    table = f"bridge {NFT_PORTS_TABLE}"

    async def scenario() -> None:
        loop = Loop()
        part = PortPart(loop, "on", pods, set)
        loop.add(part)
        part.run("a test")
        assert part.failures == []
        assert part.problems(pods[0]) == []
        ports.node.run("nft", "flush", "set", *table.split(), "own6")
        assert [each[:40] for each in part.problems(pods[0])] == 3 * [
            "port security: set own6 of table bridge "
        ]
        ports.node.run("nft", "delete", "chain", *table.split(), "prerouting")
        assert part.problems(pods[0]) == [
            "port security: table bridge limpet_ports is gone, or not as planned"
        ]
        part.close()
        loop.close()

    with ports.node.entered():
        asyncio.run(scenario())


@contextmanager
def owned_by_another(ports: PortsBed, *tables: str) -> Iterator[None]:
    """Another program owns tables of these names: whatever we ask of them is refused."""
    with (
        ports.node.entered(),
        subprocess.Popen(
            ["nft", "-i"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as owner,
    ):
        assert owner.stdin is not None
        for table in tables:
            owner.stdin.write(f"add table bridge {table} {{ flags owner; }}\n")
        owner.stdin.flush()
        try:
            wait_until(
                lambda: ports.node.run("nft", "list", "ruleset").count("owner") == len(tables)
            )
            yield
        finally:
            owner.stdin.close()
            owner.wait()


def test_a_pod_that_cannot_be_held_to_its_addresses_does_not_start(ports: PortsBed) -> None:
    pod = ports.pod(0).attachment

    async def scenario() -> None:
        loop = Loop()
        part = PortPart(loop, "auto", [], set)
        loop.add(part)
        with pytest.raises(KernelError, match="port security"):
            part.cover(pod)
        assert part.why_not == ""  # the kernel could
        part.close()
        loop.close()

    with owned_by_another(ports, NFT_PORTS_TABLE):
        asyncio.run(scenario())


@pytest.mark.parametrize("mode", ["auto", "on"])
def test_where_the_kernel_cannot_hold_a_pod_check_finds_fault_only_if_it_has_to_be_held(
    ports: PortsBed, mode: Mode
) -> None:
    """CRI-O asks CHECK for each pod that it starts, and takes down what does not pass."""
    pod = ports.pod(0).attachment

    async def scenario() -> None:
        loop = Loop()
        part = PortPart(loop, mode, [pod], set)
        loop.add(part)
        part.run("a test")
        assert "CONFIG_NF_TABLES_BRIDGE" in part.why_not
        assert part.failures == [f"port security: {part.why_not}"]
        if mode == "auto":
            part.cover(pod)
            assert part.problems(pod) == []
        else:
            with pytest.raises(KernelError, match="port security"):
                part.cover(pod)
            assert part.problems(pod) == part.failures
        part.close()
        loop.close()

    # No table can be made, nor one to try it.
    with owned_by_another(ports, NFT_PORTS_TABLE, f"{NFT_PORTS_TABLE}_trial"):
        asyncio.run(scenario())


@pytest.mark.parametrize("wide", [False, True])
def test_the_table_needs_no_file_of_protocols(make_netns: NetnsFactory, wide: bool) -> None:
    """Images of containers often have no /etc/protocols."""
    without = "[ ! -e /etc/protocols ] || mount --bind /dev/null /etc/protocols; exec nft -c -f -"
    command = ["nsenter", f"--net={make_netns().path}", "unshare", "-m", "sh", "-c", without]
    checked = subprocess.run(
        command, input=plan_frame(wide=wide), capture_output=True, text=True, timeout=60
    )
    assert (checked.returncode, checked.stderr) == (0, "")
