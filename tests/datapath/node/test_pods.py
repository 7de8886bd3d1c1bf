"""Pods' interfaces: made, used at once, taken away, made again."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from limpet.base.bounds.tenants import POD_LISTED
from limpet.base.errors import KernelError
from limpet.base.ownership import DYING_GROUP
from limpet.cni.protocol.values import IpamConf
from limpet.datapath.node.pod.announcer import Announcer
from limpet.datapath.node.pod.attachment import Attachment, Bandwidth, RouteSpec
from limpet.datapath.node.pod.attachments import Attachments
from limpet.datapath.node.pod.interface import (
    InterfaceExists,
    delete_inside,
    read_inside,
    retire_host_end,
    retire_inside,
    shaper_ifname,
)
from limpet.datapath.node.pod.keeper import PodKeeper
from limpet.lab.netns import delete_namespace, make_namespace
from limpet.linux.namespaces import Namespace, every_namespace, namespace_id, scan_namespaces
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink import link_codec
from tests.beds.namespaces import Netns, NetnsFactory, talk
from tests.beds.node_bed import CONF, GATEWAYS, MAIN, NodeBed
from tests.waiting import PATIENCE_S

_TENTATIVE = 0x40
"""IFA_F_TENTATIVE. Source: include/uapi/linux/if_addr.h."""
SHAPED = Bandwidth(20_000_000, 1_000_000, 20_000_000, 1_000_000)


@pytest.fixture
def ready(bed: NodeBed) -> NodeBed:
    """A node with its bridge."""
    bed.settle()
    return bed


@contextmanager
def created(
    bed: NodeBed, name: str, number: int, **wishes: Any
) -> Iterator[tuple[Netns, Attachment]]:
    """A pod just created, before any round."""
    netns = bed.make_netns(name)
    attachment = bed.attachment(netns, name, number, **wishes)
    bed.create(attachment)
    yield netns, attachment


def retire(bed: NodeBed, netns: Netns, attachment: Attachment) -> None:
    with Namespace(netns.path) as pod:
        assert retire_inside(pod, attachment.holder.ifname)
    assert retire_host_end(bed.kernel.route, attachment.link.host_ifname)


# Making.


def test_a_pod_is_as_it_was_asked_for(ready: NodeBed) -> None:
    conf = replace(
        CONF,
        main=replace(MAIN, mtu_bytes=1400),
        ipam=IpamConf(
            routes=(
                RouteSpec(ip_network("10.99.0.0/16"), mtu=1300, priority=77),
                RouteSpec(ip_network("fd99::/64"), table=1000),
                RouteSpec(ip_network("169.254.9.9/32"), scope=253),
            )
        ),
    )
    with created(ready, "one", 2, conf=conf) as (netns, attachment):
        link = netns.run("ip", "-d", "link", "show", "eth0")
        assert "mtu 1400" in link
        assert "link/ether 0a:58:0a:f4:07:02" in link
        routes = netns.run("ip", "route") + netns.run("ip", "-6", "route", "show", "table", "all")
        for expected in (
            "default via 10.244.7.1 dev eth0",
            "10.99.0.0/16 via 10.244.7.1 dev eth0 proto static metric 77 mtu 1300",
            "169.254.9.9 dev eth0 proto static scope link",
            "fd99::/64 via fd00:7::1 dev eth0 table 1000",
            "default via fd00:7::1 dev eth0",
        ):
            assert expected in routes
        assert netns.sysctl("net/ipv6/conf/eth0/accept_ra") == "0"
        host = ready.kernel.route.link(attachment.link.host_ifname)
        bridge = ready.kernel.route.link("limpet0")
        assert host is not None
        assert bridge is not None
        assert (host.mac, host.mtu_bytes, host.up) == (attachment.link.host_mac, 1400, True)
        assert host.master_ifindex == bridge.ifindex


def test_addresses_can_be_used_at_once(ready: NodeBed) -> None:
    with (
        ready.node.listening(GATEWAYS[0], 99) as server4,
        ready.node.listening(GATEWAYS[1], 99) as server6,
    ):
        for number in range(2, 12):
            with created(ready, f"p{number}", number) as (netns, attachment):
                # A dump, unlike a question for one link, says what is without changing it.
                links = ready.kernel.route.dump(link_codec.dump_links())
                (host,) = (
                    link
                    for link in links
                    if link_codec.parse_link(link).ifname == attachment.link.host_ifname
                )
                assert link_codec.link_is_operational(host)
                with Namespace(netns.path) as pod:
                    flags = [info.flags for info in read_inside(pod)[1] if info.scope == 0]
                assert not any(each & _TENTATIVE for each in flags)
                for address, gateway, server in zip(
                    attachment.addresses, GATEWAYS, (server4, server6), strict=True
                ):
                    source = str(address.ip)
                    with netns.connected(gateway, 99, source=source), server.accept()[0] as there:
                        assert there.getpeername()[0] == source


def test_a_pod_in_a_namespace_without_ipv6_gets_its_ipv6_address(ready: NodeBed) -> None:
    netns = ready.make_netns("one")
    netns.sysctl("net/ipv6/conf/default/disable_ipv6", "1")
    netns.sysctl("net/ipv6/conf/all/disable_ipv6", "1")
    ready.create(ready.attachment(netns, "one", 2))

    with ready.node.listening(GATEWAYS[1], 99) as server:
        assert talk(netns, GATEWAYS[1], 99, server) == "fd00:7::2"


def test_a_second_network_leaves_the_default_route_of_the_first(ready: NodeBed) -> None:
    with created(ready, "one", 2) as (netns, _):
        ready.create(ready.attachment(netns, "one", 3, ifname="eth1"))

        for options in ((), ("-6",)):
            routes = netns.run("ip", *options, "route", "show", "default")
            assert routes.count("default") == 1
            assert "dev eth0" in routes


def test_an_interface_that_is_there_is_left_alone(ready: NodeBed) -> None:
    with created(ready, "one", 2) as (netns, attachment):
        before = netns.run("ip", "-o", "address", "show", "scope", "global")
        other = ready.attachment(netns, "two", 3)
        other = replace(other, link=replace(other.link, host_ifname="limffffffffffff"))

        with pytest.raises(InterfaceExists, match=r"interface eth0 in .*: EEXIST"):
            ready.create(other)
        elsewhere = replace(attachment.netns, path=ready.make_netns("other").path)
        with pytest.raises(InterfaceExists):
            ready.create(replace(attachment, netns=elsewhere))

        assert netns.run("ip", "-o", "address", "show", "scope", "global") == before
        assert ready.links() == {"limpet0", attachment.link.host_ifname}


NOWHERE = RouteSpec(ip_network("10.0.0.0/8"), ip_address("192.0.2.9"))


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param({"conf": replace(CONF, ipam=IpamConf(routes=(NOWHERE,)))}, id="gateway"),
        pytest.param({"mtu_bytes": 1000}, id="MTU too small for IPv6"),
        pytest.param({"bandwidth": SHAPED}, id="shaper exists"),
    ],
)
def test_a_failure_leaves_nothing_and_another_try_succeeds(
    ready: NodeBed, broken: dict[str, Any]
) -> None:
    netns = ready.make_netns("one")
    mtu_bytes = broken.pop("mtu_bytes", 1450)
    attachment = ready.attachment(netns, "one", 2, **broken)
    attachment = replace(attachment, link=replace(attachment.link, mtu_bytes=mtu_bytes))
    if "bandwidth" in broken:
        ready.node.ip(f"link add {shaper_ifname(attachment.link.host_ifname)} type bridge")

    with pytest.raises(KernelError):
        ready.create(attachment)

    ready.reap()
    assert ready.links() == {"limpet0"}
    assert ready.links_of(netns) == set()
    ready.create(ready.attachment(netns, "one", 2))


def test_a_bridge_that_is_gone_is_told_from_other_failures(ready: NodeBed) -> None:
    attachment = ready.attachment(ready.make_netns("one"), "one", 2)
    ready.node.ip("link delete limpet0")

    with pytest.raises(KernelError) as failure:
        ready.create(attachment)

    assert failure.value.errno == errno.ENODEV
    assert ready.links() == set()


def test_every_name_of_a_host_end_has_a_shaper_with_another_name(ready: NodeBed) -> None:
    # Names are hexadecimal: each of 16 pods would meet its own shaper's name, were that one too.
    netns = ready.make_netns("one")
    for first in "0bf":
        attachment = ready.attachment(netns, "one", 2, bandwidth=SHAPED)
        link = replace(attachment.link, host_ifname=f"lim{first}00000000001")
        attachment = replace(attachment, link=link)
        ready.create(attachment)
        retire(ready, netns, attachment)
    ready.reap()
    assert ready.links() == {"limpet0"}


# Taking away.


def test_a_retired_interface_is_silent_at_once_and_its_name_is_free(ready: NodeBed) -> None:
    netns = ready.make_netns("one")
    attachment = ready.attachment(netns, "one", 2, bandwidth=SHAPED)
    with ready.node.listening(GATEWAYS[0], 99) as server:
        for _ in range(5):
            ready.create(attachment)
            talk(netns, GATEWAYS[0], 99, server)
            retire(ready, netns, attachment)
            with pytest.raises(OSError, match="unreachable"):
                netns.connected(GATEWAYS[0], 99).__enter__()

    dying = [link for link in ready.kernel.route.links().values() if link.group == DYING_GROUP]
    assert len(dying) == 10  # host ends and shapers
    assert not any(link.up for link in dying)
    ready.reap()
    assert ready.links() == {"limpet0"}
    assert ready.links_of(netns) == set()


def test_what_is_gone_is_not_retired_again(ready: NodeBed) -> None:
    with created(ready, "one", 2) as (netns, attachment):
        retire(ready, netns, attachment)

        assert retire_host_end(ready.kernel.route, attachment.link.host_ifname) is False
        with Namespace(netns.path) as pod:
            assert retire_inside(pod, "eth0") is False
            assert delete_inside(pod, "eth0") is False


def test_the_loopback_of_a_pod_is_never_retired(ready: NodeBed) -> None:
    with Namespace(ready.make_netns("one").path) as pod:
        assert retire_inside(pod, "lo") is False
        assert delete_inside(pod, "lo") is False


def test_a_pod_whose_namespace_is_gone_leaves_no_shaper_behind(ready: NodeBed) -> None:
    netns = ready.make_netns("one")
    attachment = ready.attachment(netns, "one", 2, bandwidth=SHAPED)
    ready.create(attachment)
    ready.remove_netns(netns)
    assert ready.links() == {"limpet0", shaper_ifname(attachment.link.host_ifname)}

    assert retire_host_end(ready.kernel.route, attachment.link.host_ifname) is False

    ready.reap()
    assert ready.links() == {"limpet0"}


def test_an_interface_of_another_plugin_is_deleted_by_its_name(ready: NodeBed) -> None:
    netns = ready.make_netns("one")
    netns.ip("link add eth0 type bridge")

    with Namespace(netns.path) as pod:
        assert delete_inside(pod, "eth0") is True

    assert ready.links_of(netns) == set()


def test_removing_the_dying_removes_nobody_else(ready: NodeBed) -> None:
    ready.node.ip(
        "link add a0 type bridge",
        "link add b0 group 7 type bridge",
        "link add limxnotdying type bridge",
        f"link add c0 group {DYING_GROUP - 1} type bridge",
    )
    with created(ready, "one", 2), created(ready, "two", 3) as (netns, two):
        retire(ready, netns, two)
        before = ready.links()

        ready.reap()

        (gone,) = before - ready.links()
        assert gone.startswith("limx")
        ready.reap()  # an empty group is fine


# Packets between pods.


def test_isolated_pods_reach_the_node_and_others_but_not_each_other(ready: NodeBed) -> None:
    alone = replace(CONF, main=replace(MAIN, port_isolation=True))
    with (
        created(ready, "one", 2, conf=alone) as (one, _),
        created(ready, "two", 3, conf=alone) as (two, _),
        created(ready, "other", 4) as (other, _),
        two.listening("0.0.0.0", 80) as in_two,
        other.listening("0.0.0.0", 80) as in_other,
        ready.node.listening("0.0.0.0", 99) as in_node,
    ):
        talk(one, GATEWAYS[0], 99, in_node)
        talk(one, "10.244.7.4", 80, in_other)
        talk(other, "10.244.7.3", 80, in_two)
        with pytest.raises(OSError, match=r"timed out|No route"):
            one.connected("10.244.7.3", 80, patience_s=0.3).__enter__()


@pytest.mark.parametrize("hairpin", [True, False])
def test_with_hairpin_a_pod_gets_back_what_it_sends_to_the_bridge(
    ready: NodeBed, hairpin: bool
) -> None:
    with created(ready, "one", 2, conf=replace(CONF, main=replace(MAIN, hairpin_mode=hairpin))) as (
        netns,
        attachment,
    ):
        with netns.entered():
            end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B5))
            end.bind(("eth0", 0x88B5))
        with ready.node.entered():
            bridge = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        own, unknown = wire.parse_mac(attachment.link.mac), b"\x02\0\0\0\0\x63"
        with end, bridge:
            end.settimeout(PATIENCE_S)
            # The bridge floods what is for a MAC that nobody has; the second surely comes.
            end.send(unknown + own + b"\x88\xb5" + b"back".ljust(50))
            bridge.sendto(b"\xff" * 6 + unknown + b"\x88\xb5" + b"end".ljust(50), ("limpet0", 0))
            seen: list[bytes] = []
            while b"end" not in seen:
                frame, source = end.recvfrom(100)
                if source[2] != socket.PACKET_OUTGOING:
                    seen.append(frame[14:].rstrip())
        assert seen == ([b"back", b"end"] if hairpin else [b"end"])


def neighbour(netns: Netns, address: str) -> str:
    found = netns.run("ip", "neigh", "show", "to", address).split()
    return found[found.index("lladdr") + 1] if "lladdr" in found else ""


_ASKED = {"mac": "02:00:00:00:00:42"}


@pytest.mark.parametrize(("former", "later"), [({}, _ASKED), (_ASKED, {})], ids=["asked", "plain"])
def test_other_pods_and_the_node_find_an_address_at_its_new_place_at_once(
    ready: NodeBed, former: dict[str, Any], later: dict[str, Any]
) -> None:
    """Also where the later MAC is that of the address, and the former one was asked for."""
    with ready.node.entered():
        announcer = Announcer()
    with (
        created(ready, "one", 2, **former) as (old, attachment),
        created(ready, "two", 3) as (other, _),
    ):
        addresses = [str(address.ip) for address in attachment.addresses]
        for address in addresses:
            with old.listening(address, 80) as server:
                talk(other, address, 80, server)
                talk(ready.node, address, 80, server)
        before = attachment.link.mac
        assert [neighbour(other, address) for address in addresses] == [before] * 2
        retire(ready, old, attachment)

        netns = ready.make_netns("again")
        again = ready.attachment(netns, "again", 2, **later)
        ready.create(again)
        mac = again.link.mac
        assert mac != before
        assert [neighbour(ready.node, address) for address in addresses] == [mac] * 2
        announcer.announce(again, "limpet0")
        announcer.close()  # they have been sent now

        assert [neighbour(other, address) for address in addresses] == [mac] * 2
        for address in addresses:
            with netns.listening(address, 80) as server:
                for client in (other, ready.node):
                    talk(client, address, 80, server)


def test_an_announcement_on_a_bridge_that_is_gone_does_no_harm(ready: NodeBed) -> None:
    attachment = ready.attachment(ready.make_netns("one"), "one", 2)
    with ready.node.entered():
        announcer = Announcer()

    announcer.announce(attachment, "nosuchbridge")
    announcer.close()


# Namespaces.


def test_the_thread_comes_back_to_where_it_was(make_netns: NetnsFactory) -> None:
    outer, inner = make_netns(), make_netns()
    home = namespace_id("/proc/thread-self/ns/net")
    with Namespace(outer.path) as one, Namespace(inner.path) as two, one.entered():
        with two.entered():
            assert namespace_id("/proc/thread-self/ns/net") == two.id
        assert namespace_id("/proc/thread-self/ns/net") == one.id
        with pytest.raises(ZeroDivisionError), two.entered():
            raise ZeroDivisionError
        assert namespace_id("/proc/thread-self/ns/net") == one.id
    assert namespace_id("/proc/thread-self/ns/net") == home


def test_what_is_no_network_namespace_is_not_entered(
    make_netns: NetnsFactory, tmp_path: Any
) -> None:
    file = tmp_path / "left"
    file.touch()
    assert namespace_id(str(file)) is None
    assert namespace_id(str(tmp_path / "absent")) is None
    with pytest.raises(KernelError, match=r"open network namespace .*absent: ENOENT"):
        Namespace(str(tmp_path / "absent"))
    with pytest.raises(KernelError, match=r"open network namespace .*left: EINVAL"):
        Namespace(str(file))


def test_a_namespace_is_told_from_the_next_at_the_same_path(make_netns: NetnsFactory) -> None:
    netns = make_netns()
    with Namespace(netns.path) as old:
        before = old.id
        delete_namespace(netns.name)
        assert namespace_id(netns.path) is None
        make_namespace(netns.name)
        assert namespace_id(netns.path) not in (None, before)


def test_namespaces_are_found_by_mount_and_by_process(make_netns: NetnsFactory) -> None:
    mounted = make_netns()
    process = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        found = [namespace_id(path) for path in every_namespace()]
        assert found[0] == namespace_id("/proc/self/ns/net")
        assert namespace_id(mounted.path) in found
        assert namespace_id(f"/proc/{process.pid}/ns/net") in found
        assert len(set(found)) == len(found)
    finally:
        process.communicate()


def test_of_addresses_without_number_a_check_lists_so_many_and_a_scan_keeps_what_it_looks_for(
    make_netns: NetnsFactory,
) -> None:
    """A pod with rights in its own namespace may make them; its agent lists them by itself."""
    crowded, other = make_netns(), make_netns()
    most = POD_LISTED.most
    lines = [
        f"address add 10.200.{number >> 8}.{number & 255}/32 dev lo" for number in range(most + 1)
    ]

    def add(some: list[str]) -> None:
        command = ["nsenter", f"--net={crowded.path}", "ip", "-batch", "-"]
        subprocess.run(command, input="\n".join(some), text=True, check=True)

    add(lines[: most - 16])  # beside those of loopback, and each has a route of its own
    other.ip("address add 10.201.0.1/32 dev lo")
    with Namespace(crowded.path) as pod:
        assert len(read_inside(pod)[1]) > most - 16
        add(lines[most - 16 :])
        with pytest.raises(KernelError, match=f"list [a-z]+: E2BIG .*more than {most:,}"):
            read_inside(pod)

    wanted = [ip_address(each) for each in ("10.200.0.7", "10.201.0.1", "10.201.0.2")]
    scan = scan_namespaces(wanted)
    assert scan.addresses == {each.packed for each in wanted[:2]}
    inside = scan.namespaces[namespace_id(crowded.path) or (0, 0)]
    assert inside == {wanted[0].packed}


_SCAN = """
import os, resource, sys
from ipaddress import ip_address
from limpet.base.errors import KernelError
from limpet.linux.namespaces import scan_namespaces

spare = os.open("/dev/null", os.O_RDONLY)
resource.setrlimit(resource.RLIMIT_NOFILE, (spare + int(sys.argv[1]), spare + 64))
os.close(spare)
try:
    print(len(scan_namespaces([ip_address("10.201.0.1")]).addresses))
except KernelError as error:
    print(error)
"""


@pytest.mark.parametrize("files", [0, 1, 2])
def test_a_machine_that_has_no_room_to_look_has_nothing_taken_for_gone(
    make_netns: NetnsFactory, files: int
) -> None:
    """Who has its address by a record alone lost it, and another pod was given it."""
    make_netns().ip("address add 10.201.0.1/32 dev lo")

    def looked(files: int) -> str:
        command = [sys.executable, "-c", _SCAN, str(files)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert "EMFILE" in looked(files)
    assert looked(32) == "1"


def test_an_interface_that_goes_again_and_again_is_made_anew_after_longer_and_longer(
    bed: NodeBed, tmp_path: Path
) -> None:
    """A pod with CAP_NET_ADMIN may delete its own as fast as it comes."""
    pod, attachments = bed.pod("one", 2), Attachments(tmp_path)
    attachments.put(pod.attachment)
    ifname, gone = pod.attachment.link.host_ifname, list[str]()
    with bed.node.entered():
        announcer = Announcer()
    keeper = PodKeeper(
        attachments,
        announcer,
        is_held=lambda _ifname: True,
        release=lambda attachment: gone.append(attachment.pod.name),
        retired=lambda: None,
    )

    def pause_until_made_s(now_s: float) -> float:
        pod.netns.ip("link delete eth0")
        pause_s = keeper.pause_s(ifname, now_s)
        with bed.node.entered():
            keeper.restore(bed.kernel, ifname, now_s + pause_s)
        return pause_s

    now_s, pauses = 100.0, list[float]()
    for _ in range(7):
        pauses.append(pause_until_made_s(now_s))
        now_s += pauses[-1]
    assert pauses == [0, 1, 2, 5, 10, 30, 30]
    assert pause_until_made_s(now_s + 29) == 1
    assert pause_until_made_s(now_s + 100) == 0, "it has stayed"

    bed.remove_netns(pod.netns)
    assert keeper.pause_s(ifname, now_s + 100) == 0, "the pod itself is gone"
    keeper.restore(bed.kernel, ifname, now_s + 100)
    assert gone == ["one"]
    announcer.close()
