"""A node that forwards goes on listening to the routers of its site, and to nobody else."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

from tests.beds.namespaces import Netns
from tests.beds.node_bed import NodeBed
from tests.waiting import wait_until

FORWARDING = "net/ipv6/conf/all/forwarding"


def accept_ra(ifname: str) -> str:
    return f"net/ipv6/conf/{ifname}/accept_ra"


def device(bed: NodeBed, ifname: str) -> None:
    """What leads out and is no veth; hardware is in no namespace of a test."""
    bed.node.ip(f"link add link wan0 name {ifname} type macvlan mode bridge")
    bed.node.ip(f"link set {ifname} up")


def wan(bed: NodeBed) -> Netns:
    """A router beyond `wan0`, which is down."""
    router = bed.make_netns("router")
    bed.node.ip(f"link add wan0 type veth peer name lan0 netns {router.name}")
    router.sysctl("net/ipv6/conf/lan0/accept_dad", "0")
    router.ip("link set lan0 up")
    return router


def listening(bed: NodeBed, *, own_forwarding: bool) -> frozenset[str]:
    with bed.node.entered():
        return bed.kernel.facts(["limpet0"], own_forwarding=own_forwarding).listening_uplinks


def advertise(router: Netns) -> None:
    with router.entered():
        raw = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
        at = socket.if_nametoindex("lan0")
    # Without a route to anywhere, where the kernel has not yet seen that the cable is plugged.
    with raw, suppress(OSError):
        raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
        raw.sendto(struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0), ("ff02::1", 0, 0, at))


def test_a_router_that_is_heard_only_after_the_first_round_configures_the_node(
    bed: NodeBed,
) -> None:
    router = wan(bed)
    bed.settle()
    assert bed.node.sysctl(FORWARDING) == "1"
    assert bed.changed_sysctls.index(accept_ra("wan0")) < bed.changed_sysctls.index(FORWARDING)

    bed.node.ip("link set wan0 up")

    def is_routed() -> bool:
        advertise(router)
        return "default" in bed.node.run("ip", "-6", "route", "show", "dev", "wan0")

    wait_until(is_routed)
    assert bed.pending() == []


def test_a_link_that_comes_late_listens_where_the_node_forwards_for_us_alone(bed: NodeBed) -> None:
    wan(bed)
    bed.settle()
    device(bed, "eth5")
    bed.node.ip("link add br0 type bridge")
    device(bed, "eth6")
    bed.node.ip("link set eth6 master br0", "link set br0 up")

    assert listening(bed, own_forwarding=True) == {"eth5", "br0"}
    assert listening(bed, own_forwarding=False) == set()


def test_a_node_that_was_a_router_before_takes_no_advertisements(bed: NodeBed) -> None:
    bed.node.sysctl(FORWARDING, "1")
    wan(bed)
    device(bed, "eth5")

    bed.settle()

    assert [bed.node.sysctl(accept_ra(each)) for each in ("wan0", "eth5")] == ["1", "1"]


def test_pods_of_others_do_not_become_routers_of_the_node(bed: NodeBed) -> None:
    wan(bed)
    device(bed, "eth5")
    theirs = bed.make_netns("theirs")
    bed.node.ip(
        f"link add cali0 type veth peer name eth0 netns {theirs.name}",
        f"link add port0 type veth peer name eth1 netns {theirs.name}",
        "link add docker0 type bridge",
        "link set port0 master docker0",
    )
    bed.pod("one", 2)

    assert listening(bed, own_forwarding=True) == set()
    assert bed.node.sysctl(accept_ra("eth5")) == "2"
    assert [bed.node.sysctl(accept_ra(each)) for each in ("cali0", "docker0")] == ["1", "1"]


def test_what_listens_to_no_router_is_left_alone(bed: NodeBed) -> None:
    wan(bed)
    bed.node.sysctl(accept_ra("wan0"), "0")
    # As NetworkManager has it, which hears advertisements itself.
    bed.node.ip(
        "link set wan0 up",
        "address add 2001:db8::1/64 dev wan0 nodad",
        "-6 route add default via 2001:db8::2 dev wan0 proto ra",
    )

    bed.settle()

    assert bed.node.sysctl(accept_ra("wan0")) == "0"
