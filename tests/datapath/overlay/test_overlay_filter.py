"""What a peer may not send is dropped before it is unpacked, and counted."""

from __future__ import annotations

import json
import re
import socket
import struct
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address, ip_address, ip_network

import pytest

from limpet.base.ownership import NFT_OVERLAY_TABLE
from limpet.cluster.kinds.network import Encryption
from limpet.cluster.topology import transports
from limpet.datapath.overlay.filter.apply import PeerFilter, PutFilter
from limpet.datapath.overlay.filter.elements import filter_commands
from limpet.datapath.overlay.filter.ruleset import FORGED_COUNTER, plan_filter
from limpet.datapath.overlay.plan import plan_overlay
from limpet.linux.netlink.codec import parse_mac
from limpet.linux.nftables import Nftables
from tests.beds.namespaces import Netns, connect_namespaces
from tests.beds.overlay_bed import Node, OverlayBed, is_lost, ping, vtep_mac
from tests.waiting import PATIENCE_S

FAMILIES = (4, 6)
TUNNEL = 23456
SOON_S = 0.3
"""So long what is not to arrive is waited for; what is to, as long as it takes."""
_PING_ONCE = ("ping", "-n", "-c", "1", "-W", "1")


class Filtered:
    """Three nodes; the first one has the filter."""

    def __init__(self, bed: OverlayBed) -> None:
        self.bed = bed
        self.one, self.other, self.third = bed.nodes
        with self.one.netns.entered():
            self.nft = Nftables(NFT_OVERLAY_TABLE)
        bed.undo.callback(self.nft.close)
        self.put()

    def put(self) -> None:
        view = self.one.view(self.bed.entries())
        text = plan_filter(view, plan_overlay(view), bridges=["limpet0"])
        self.nft.put_table(text)

    @property
    def dropped(self) -> int:
        listed = self.nft.run(
            f"list counter inet {NFT_OVERLAY_TABLE} {FORGED_COUNTER}", what="the counter"
        )
        found = re.search(r"packets (\d+)", listed)
        assert found is not None
        return int(found[1])


@pytest.fixture(params=FAMILIES, ids=["underlay4", "underlay6"])
def filtered(request: pytest.FixtureRequest) -> Iterator[Filtered]:
    bed = OverlayBed(3)
    try:
        bed.join(transports.VXLAN, request.param)
        for node in bed.nodes:
            addresses = tuple(ip_address(bed.underlay(node, version)) for version in FAMILIES)
            node.presence = replace(node.presence, addresses=addresses)
        bed.settle()
        yield Filtered(bed)
    finally:
        bed.close()


def underlay_version(filtered: Filtered) -> int:
    path = filtered.one.paths[filtered.other.uid].underlay
    return 4 if isinstance(path, IPv4Address) else 6


def forge(source: str, target: str, *, mac: str, vni: int = 1, tagged: bool = False) -> bytes:
    """VXLAN and all within it: a UDP datagram of four bytes to port 5000 of `target`."""
    udp = struct.pack(">HHHH", 5001, 5000, 12, 0) + b"evil"
    one, other = ip_address(source), ip_address(target)
    if one.version == 4:
        head = struct.pack(">BBHHHBBH", 0x45, 0, 32, 1, 0, 64, 17, 0) + one.packed + other.packed
        head = head[:10] + struct.pack(">H", _checksum(head)) + head[12:]
        kind = b"\x08\x00"
    else:
        head = struct.pack(">IHBB", 6 << 28, 12, 17, 64) + one.packed + other.packed
        pseudo = one.packed + other.packed + struct.pack(">II", 12, 17)
        udp = udp[:6] + struct.pack(">H", _checksum(pseudo + udp)) + udp[8:]
        kind = b"\x86\xdd"
    ethernet = parse_mac(mac) + b"\x02\0\0\0\0\1" + (b"\x81\0\0\1" if tagged else b"") + kind
    return struct.pack(">II", 0x08000000, vni << 8) + ethernet + head + udp


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF - total


def arrives(
    filtered: Filtered,
    sender: Node,
    source: str,
    *,
    more: bytes = b"",
    patience_s: float = SOON_S,
    **changes: object,
) -> bool:
    """Whether a forged packet from the sender's node gets to the first node's pod."""
    version, inner = underlay_version(filtered), ip_address(source).version
    target = filtered.one.address(inner)
    packet = forge(source, target, mac=vtep_mac(1, version), **changes) + more  # type: ignore[arg-type]
    with (
        filtered.one.pod.open_socket(inner, socket.SOCK_DGRAM) as server,
        sender.netns.open_socket(version, socket.SOCK_DGRAM) as client,
    ):
        server.bind((target, 5000))
        server.settimeout(patience_s)
        client.sendto(packet, (filtered.bed.underlay(filtered.one, version), 8472))
        try:
            return server.recv(16) == b"evil"
        except TimeoutError:
            return False


def test_a_peers_own_sources_are_let_in_and_all_others_dropped_and_counted(
    filtered: Filtered,
) -> None:
    other, third = filtered.other, filtered.third
    for version in FAMILIES:
        ping(filtered.one.pod, other.address(version))
        ping(other.netns, filtered.one.address(version))
        assert arrives(filtered, other, other.address(version), patience_s=PATIENCE_S)
    assert filtered.dropped == 0

    forged = [
        *(third.address(version) for version in FAMILIES),
        *(filtered.one.overlay(version) for version in FAMILIES),
        "10.244.3.1",
        "198.51.100.1",
        "2001:db8:ffff::1",
        "fd00:0:0:3::ffff",
    ]
    for count, source in enumerate(forged, start=1):
        assert not arrives(filtered, other, source)
        assert filtered.dropped == count


def test_what_is_no_plain_ip_inside_is_dropped(filtered: Filtered) -> None:
    other = filtered.other

    assert not arrives(filtered, other, other.address(4), tagged=True)
    assert filtered.dropped == 1


def test_another_vni_on_the_port_is_not_ours_to_judge(filtered: Filtered) -> None:
    arrives(filtered, filtered.other, "198.51.100.1", vni=7)

    assert filtered.dropped == 0


def test_a_pod_cannot_talk_to_the_nodes_vxlan_port(filtered: Filtered) -> None:
    version = underlay_version(filtered)
    one = filtered.one
    packet = forge(filtered.other.address(4), one.address(4), mac=vtep_mac(1, version))
    with one.pod.open_socket(version, socket.SOCK_DGRAM) as client:
        client.sendto(packet, (filtered.bed.underlay(one, version), 8472))

    assert filtered.dropped == 1


def test_a_fragment_too_short_to_be_judged_is_dropped(filtered: Filtered) -> None:
    version = underlay_version(filtered)
    with filtered.other.netns.open_socket(version, socket.SOCK_DGRAM) as client:
        client.sendto(bytes(4), (filtered.bed.underlay(filtered.one, version), 8472))
        short = forge(filtered.other.address(4), filtered.one.address(4), mac=vtep_mac(1, version))
        client.sendto(short[:30], (filtered.bed.underlay(filtered.one, version), 8472))

    assert filtered.dropped == 1  # the first one does not even have our VNI


def test_a_packet_that_comes_in_fragments_is_judged_as_a_whole(filtered: Filtered) -> None:
    other, more = filtered.other, bytes(2000)

    assert arrives(filtered, other, other.address(4), more=more, patience_s=PATIENCE_S)
    assert filtered.dropped == 0
    assert not arrives(filtered, other, filtered.third.address(4), more=more)
    assert filtered.dropped == 1


def test_standing_flows_of_pods_do_not_meet_the_filter(filtered: Filtered) -> None:
    """The chains that see what they send are of NAT."""
    hooks = re.findall(r"type (\w+ hook \w+)", filtered.nft.list_table() or "")

    filters = ["filter hook ingress", "filter hook input"]
    assert sorted(hooks) == [*filters, "nat hook input", "nat hook postrouting"]


def test_on_a_link_only_peers_addresses_of_the_cluster_come_in(filtered: Filtered) -> None:
    one, other = filtered.one, filtered.other
    for node, peer in ((one, other), (other, one)):
        node.paths = {**node.paths, peer.uid: filtered.bed.path(peer, transports.ROUTE)}
    filtered.bed.settle()
    for version in FAMILIES:
        ping(other.pod, one.address(version))
    other.pod.ip("addr add 10.244.9.9/32 dev eth0", "addr add fd00:0:0:9::9/128 dev eth0 nodad")

    for source, version in (("10.244.9.9", 4), ("fd00:0:0:9::9", 6)):
        before = filtered.dropped
        with pytest.raises(AssertionError):
            other.pod.run(*_PING_ONCE, "-I", source, one.address(version))
        assert filtered.dropped == before + 1


@pytest.mark.parametrize("encryption", Encryption)
def test_by_no_other_link_comes_in_what_the_cluster_has(
    filtered: Filtered, encryption: Encryption
) -> None:
    """A second LAN of the node, on which there is no peer, but what is behind the node itself."""
    one, bed = filtered.one, filtered.bed
    stranger = bed.namespace("stranger")
    connect_namespaces(one.netns, "eth1", stranger, "eth0")
    one.netns.ip("addr add 192.0.2.1/24 dev eth1", "addr add 2001:db8::1/64 dev eth1 nodad")
    stranger.ip("addr add 192.0.2.9/24 dev eth0", "addr add 2001:db8::9/64 dev eth0 nodad")
    stranger.ip("route add default via 192.0.2.1", "route add default via 2001:db8::1")
    sources = {
        "192.0.2.8": True,
        "2001:db8::8": True,
        "10.244.129.7": True,
        "10.244.9.9": False,
        "fd00:0:0:9::9": False,
    }
    if encryption is Encryption.ALL:
        sources |= {filtered.other.address(version): False for version in FAMILIES}
    one.grant = replace(one.grant, prefixes_behind=(ip_network("10.244.128.0/20"),))
    one.own = replace(one.own, open_links=frozenset({"eth1"}))
    view = one.view(bed.entries())
    assert view.network is not None
    sealed = replace(view, network=replace(view.network, encryption=encryption))
    filtered.nft.put_table(plan_filter(sealed, plan_overlay(sealed), bridges=["limpet0"]))

    for source, gets_in in sources.items():
        version, before = ip_address(source).version, filtered.dropped
        single = f"{source}/32" if version == 4 else f"{source}/128 nodad"
        stranger.ip(f"addr add dev eth0 {single}")
        with (
            one.pod.open_socket(version, socket.SOCK_DGRAM) as server,
            stranger.open_socket(version, socket.SOCK_DGRAM) as client,
        ):
            server.bind((one.address(version), 5000))
            server.settimeout(PATIENCE_S if gets_in else SOON_S)
            client.bind((source, 0))
            client.sendto(b"evil", (one.address(version), 5000))
            if gets_in:
                assert server.recv(16) == b"evil"
            else:
                with pytest.raises(TimeoutError):
                    server.recv(16)
        assert filtered.dropped == before + (not gets_in)


PRIORITY, SERVICE_PRIORITY = b"\x81\x00\x60\x00", b"\x88\xa8\x00\x00"
"""Tags of VLAN 0, which are of none."""


def comes_in_plainly(
    filtered: Filtered, source: str, *tags: bytes, patience_s: float = SOON_S
) -> bool:
    """Whether a frame of the third node with these tags gets to the first one's pod."""
    one, version = filtered.one, ip_address(source).version
    target = one.address(version)
    (link,) = json.loads(one.netns.run("ip", "-j", "link", "show", "eth0"))
    bare = forge(source, target, mac="02:00:00:00:00:01")[8 + 12 :]  # without VXLAN and MACs
    frame = parse_mac(link["address"]) + b"\x02\0\0\0\0\1" + b"".join(tags) + bare
    with filtered.third.netns.entered():
        sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    with sender, one.pod.open_socket(version, socket.SOCK_DGRAM) as server:
        server.bind((target, 5000))
        server.settimeout(patience_s)
        sender.bind(("eth0", 0))
        sender.send(frame)
        try:
            return server.recv(16) == b"evil"
        except TimeoutError:
            return False


def test_in_tags_of_no_vlan_nothing_comes_past_the_filter(filtered: Filtered) -> None:
    with filtered.one.netns.entered():
        whole = PeerFilter(lambda: ["limpet0"], 0)
    filtered.bed.undo.callback(whole.close)
    view = filtered.one.view(filtered.bed.entries())
    plan = plan_overlay(view)
    whole.put(PutFilter(view, plan))
    whole.in_place = False
    assert whole.diff(view, plan, plan) is None, "the kernel has something else"

    for count, version in enumerate(FAMILIES):
        peer = filtered.other.address(version)
        stranger = {4: "10.244.9.9", 6: "fd00:0:0:9::9"}[version]
        assert comes_in_plainly(filtered, peer, patience_s=PATIENCE_S)
        assert comes_in_plainly(filtered, peer, PRIORITY, patience_s=PATIENCE_S)
        tagged = [(PRIORITY,), (PRIORITY, PRIORITY), (SERVICE_PRIORITY, PRIORITY), (PRIORITY,) * 3]
        for more, tags in enumerate(tagged, start=1):
            assert not comes_in_plainly(filtered, stranger, *tags)
            assert whole.forged_packets() == count * len(tagged) + more


def test_prefixes_of_other_lengths_are_let_in_too(filtered: Filtered) -> None:
    other = filtered.other
    behind = (ip_network("10.244.128.0/20"), ip_network("2001:db8:beef::/48"))
    other.grant = replace(other.grant, prefixes_behind=behind)
    filtered.put()

    assert arrives(filtered, other, "10.244.129.7", patience_s=PATIENCE_S)
    assert arrives(filtered, other, "2001:db8:beef::7", patience_s=PATIENCE_S)
    assert arrives(filtered, other, other.address(4), patience_s=PATIENCE_S)
    assert not arrives(filtered, other, "10.244.144.7")
    assert not arrives(filtered, other, "2001:db8:bee0::7")
    assert not arrives(filtered, filtered.third, "10.244.129.7")


def test_a_changed_peer_changes_its_elements_only(filtered: Filtered) -> None:
    one, third = filtered.one, filtered.third
    before = plan_overlay(one.view(filtered.bed.entries()))
    third.grant = replace(
        third.grant, segments=(*third.grant.segments, ip_network("10.244.8.0/24"))
    )
    view = one.view(filtered.bed.entries())
    after = plan_overlay(view)
    assert not arrives(filtered, third, "10.244.8.8")

    filtered.nft.run(filter_commands(view, before, after, [third.uid]), what="the peers")

    assert arrives(filtered, third, "10.244.8.8", patience_s=PATIENCE_S)
    filtered.nft.run(filter_commands(view, after, before, [third.uid]), what="the peers")
    assert not arrives(filtered, third, "10.244.8.8")
    assert not is_lost(filtered.other.pod, one.address(4))


def test_what_is_behind_two_peers_at_one_address_is_let_in_until_neither_has_it(
    filtered: Filtered,
) -> None:
    one, other, third = filtered.one, filtered.other, filtered.third
    other.grant = replace(other.grant, prefixes_behind=(ip_network("10.20.1.0/24"),))
    third.grant = replace(third.grant, prefixes_behind=(ip_network("10.20.0.0/16"),))
    third.presence = replace(third.presence, addresses=other.presence.addresses)
    filtered.put()
    before = plan_overlay(one.view(filtered.bed.entries()))
    assert arrives(filtered, other, "10.20.2.7", patience_s=PATIENCE_S)
    third.grant = replace(third.grant, prefixes_behind=())
    view = one.view(filtered.bed.entries())
    after = plan_overlay(view)

    filtered.nft.run(filter_commands(view, before, after, [third.uid]), what="the peers")

    assert arrives(filtered, other, "10.20.1.7", patience_s=PATIENCE_S)
    assert not arrives(filtered, other, "10.20.2.7")


# From a pod.


def pod_injects(
    bed: OverlayBed,
    sender: Node,
    target: Node,
    source: str,
    outer: int,
    *,
    asked: str = "",
    at: Netns | None = None,
    patience_s: float = SOON_S,
) -> bool:
    """Whether what a pod of one node packs into VXLAN over a version gets to a pod of another,
    from `source`. `asked`: where it sends it; empty: to the other node. `at`: who sends in the
    pod's place."""
    inner = ip_address(source).version
    packet = forge(source, target.address(inner), mac=vtep_mac(target.number, outer))
    with (
        target.pod.open_socket(inner, socket.SOCK_DGRAM) as server,
        (at or sender.pod).open_socket(outer, socket.SOCK_DGRAM) as client,
    ):
        server.bind((target.address(inner), 5000))
        server.settimeout(patience_s)
        client.sendto(packet, (asked or bed.underlay(target, outer), 8472))
        try:
            return server.recv(16) == b"evil"
        except TimeoutError:
            return False


def reaches_port(
    bed: OverlayBed,
    sender: Node,
    at: Netns,
    address: str,
    port: int,
    *,
    asked: str = "",
    patience_s: float = SOON_S,
) -> bool:
    """Whether a pod's datagram arrives at a port of a node. `asked`: as above."""
    version = ip_address(address).version
    with (
        at.open_socket(version, socket.SOCK_DGRAM) as server,
        sender.pod.open_socket(version, socket.SOCK_DGRAM) as client,
    ):
        server.bind(("", port))
        server.settimeout(patience_s)
        client.sendto(b"knock", (asked or address, port))
        try:
            return server.recv(16) == b"knock"
        except TimeoutError:
            return False


SERVICE = {4: "198.51.100.7", 6: "2001:db8::7"}
"""Of which who may write EndpointSlices says who serves it."""


def lead_service_to(node: Node, version: int, address: str) -> None:
    """As the table of Services does, at the same place."""
    family = {4: "ip", 6: "ip6"}[version]
    node.netns.run(
        "nft",
        f"add table {family} service; flush table {family} service; "
        f"add chain {family} service c {{ type nat hook prerouting priority -110; }}; "
        f"add rule {family} service c {family} daddr {SERVICE[version]} dnat to {address}",
    )


@pytest.mark.parametrize("version", FAMILIES, ids=["underlay4", "underlay6"])
def test_a_pod_sends_nothing_in_its_nodes_name_to_the_ports_between_nodes(version: int) -> None:
    """Its packets leave with the node's address, which a peer lets in for all of that one's pods:
    so it would speak to others' pods as any pod of its node."""
    bed = OverlayBed(3)
    try:
        bed.join(transports.VXLAN, version)
        for node in bed.nodes:
            at = (ip_address(bed.underlay(node, version)),)
            node.presence = replace(node.presence, addresses=at, tunnel_port=TUNNEL)
        bed.settle()
        one, other, third = bed.nodes
        family = {4: "ip", 6: "ip6"}[version]
        other.netns.run(
            "nft",
            f"table {family} natted {{ chain c {{ type nat hook postrouting priority srcnat; "
            "oifname eth0 masquerade; }; }",
        )
        Filtered(bed)  # the one that is sent to
        # Of the sender's node, and not the sending pod.
        victims = ("10.244.2.99", "fd00:0:0:2::99")
        under, over = bed.underlay(one, version), bed.underlay(third, version)
        own = bed.underlay(other, version)
        for victim in victims:
            injected = pod_injects(bed, other, one, victim, version, patience_s=PATIENCE_S)
            assert injected, "an attempt that comes to nothing anyway"
        assert reaches_port(bed, other, one.netns, under, 7471, patience_s=PATIENCE_S)
        assert reaches_port(bed, other, one.netns, under, TUNNEL, patience_s=PATIENCE_S)

        view = other.view(bed.entries())
        plan = plan_overlay(view)
        with other.netns.entered():
            nft = Nftables(NFT_OVERLAY_TABLE)
        bed.undo.callback(nft.close)
        text = plan_filter(view, plan, bridges=["limpet0"], peer_port=7471, tenants=True)
        nft.put_table(text)
        assert nft.read_ruleset(text) == text
        # Another connection of the pod's: the last one would be a standing flow.
        for victim in victims:
            assert not pod_injects(bed, other, one, victim, version)
        assert not reaches_port(bed, other, one.netns, under, 7471)
        assert not reaches_port(bed, other, other.netns, own, 7471)
        assert not reaches_port(bed, other, other.netns, other.overlay(version), 7471)
        assert not reaches_port(bed, other, one.netns, under, TUNNEL)
        assert nft.read_counter(FORGED_COUNTER) == 6
        # Nor by a Service.
        lead_service_to(other, version, under)
        for victim in victims:
            assert not pod_injects(bed, other, one, victim, version, asked=SERVICE[version])
        assert not reaches_port(bed, other, one.netns, under, TUNNEL, asked=SERVICE[version])
        assert reaches_port(
            bed, other, one.netns, under, 7000, asked=SERVICE[version], patience_s=PATIENCE_S
        )
        # Nor does a host beside the node by that Service, as by its port of the node.
        third.netns.ip(f"route add {SERVICE[version]} via {own}")
        for victim in victims:
            assert not pod_injects(
                bed, other, one, victim, version, asked=SERVICE[version], at=third.netns
            )
        lead_service_to(other, version, own)
        assert not reaches_port(bed, other, other.netns, own, 7471, asked=SERVICE[version])
        assert reaches_port(
            bed, other, other.netns, own, 7000, asked=SERVICE[version], patience_s=PATIENCE_S
        )
        assert nft.read_counter(FORGED_COUNTER) == 12
        assert reaches_port(bed, other, one.netns, under, 7000, patience_s=PATIENCE_S)
        for inner in FAMILIES:
            ping(other.pod, one.address(inner))

        # Nor from a link that another plugin made, where the address tells a pod.
        nft.put_table(plan_filter(view, plan, peer_port=7471))
        for victim in victims:
            assert not pod_injects(bed, other, one, victim, version)
        assert not reaches_port(bed, other, one.netns, under, TUNNEL)
        assert reaches_port(bed, other, one.netns, under, 7000, patience_s=PATIENCE_S)
        nft.put_table(text)

        # A peer that goes takes its address along, but for one that another has too.
        third.presence = replace(third.presence, addresses=(ip_address(under), ip_address(over)))
        shared = other.view(bed.entries())
        both = plan_overlay(shared)
        nft.run(filter_commands(shared, plan, both, [third.uid]), what="changes")
        gone = {key: part for key, part in both.parts.items() if key != third.uid}
        fewer = replace(both, parts=gone)
        nft.run(filter_commands(shared, both, fewer, [third.uid]), what="changes")
        assert nft.read_ruleset(plan_filter(shared, fewer, bridges=["limpet0"], peer_port=7471))
        for port in (7471, TUNNEL):
            assert not reaches_port(bed, other, one.netns, under, port)
            assert reaches_port(bed, other, third.netns, over, port, patience_s=PATIENCE_S)
    finally:
        bed.close()
