"""An agent keeps its encrypted tunnel as planned, with the real userspace WireGuard."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from limpet.cluster.datagrams.peer_datagram import BodyKind
from limpet.cluster.topology import transports
from limpet.datapath.event import ActivePeersChanged
from limpet.datapath.tunnel.diff import PutTunnelPeer
from limpet.datapath.tunnel.handshake_reset import Step, encode
from limpet.datapath.tunnel.state import PeerReading
from tests.beds.overlay_bed import is_lost, ping
from tests.beds.traffic.tunnel_traffic import fragments, send_bulk
from tests.beds.tunnel_bed import kernel_has_wireguard, wireguard_go
from tests.datapath.tunnel.noise import RESPONSE, initiation
from tests.datapath.tunnel.site_tunnel_bed import Agent, SiteTunnelBed, look, say
from tests.waiting import wait_until


@pytest.fixture
def make_bed(tmp_path: Path) -> Iterator[Callable[..., SiteTunnelBed]]:
    made: list[SiteTunnelBed] = []

    def make(*arguments: int, **options: bool) -> SiteTunnelBed:
        bed = SiteTunnelBed(tmp_path, *arguments, **options)
        made.append(bed)
        return bed

    yield make
    for bed in made:
        bed.close()


BedMaker = Callable[..., SiteTunnelBed]


def reaches(one: Agent, other: Agent, version: int = 4) -> None:
    """A pod of the one gets an answer of a pod of the other. The first packet may be lost: where
    both ends begin a session at once, it may go by the one that does not stay."""
    address = other.node.address(version)
    wait_until(lambda: not is_lost(one.node.pod, address), f"{address} answers")


@pytest.mark.parametrize("version", [4, 6])
def test_pods_of_two_sites_reach_each_other_through_the_tunnel(
    make_bed: BedMaker, version: int
) -> None:
    bed = make_bed()
    one, other = bed.agents
    bed.join_all(version=version)

    for here, there in ((one, other), (other, one)):
        for inner in (4, 6):
            reaches(here, there, inner)
            ping(here.node.pod, there.node.overlay(inner))
            send_bulk(here.node.pod, there.node.pod, there.node.address(inner))
    assert [fragments(agent.node.netns) for agent in bed.agents] == [0, 0]
    for inner in (4, 6):
        # Larger than the path; the first tells the sender how large that is.
        three = ("-c", "3", "-i", "0.1", "-s", "4000")
        ping(one.node.pod, other.node.address(inner), *three)


def test_a_tunnel_that_is_ended_from_outside_comes_back_with_everything(make_bed: BedMaker) -> None:
    bed = make_bed()
    one, other = bed.agents
    bed.join_all()
    reaches(one, other)

    one.lose_tunnel()

    wait_until(lambda: one.is_routed_to(other))
    reaches(one, other)
    reaches(other, one, 6)


def test_what_others_take_away_comes_back(make_bed: BedMaker) -> None:
    bed = make_bed()
    one, other = bed.agents
    bed.join_all()

    one.node.netns.ip(f"link delete {one.ifname}")
    wait_until(lambda: one.is_routed_to(other))

    one.node.netns.ip("rule del priority 5147", "-6 rule del priority 5147")
    wait_until(lambda: one.rules() == 2)

    one.node.netns.ip(f"addr flush dev {one.ifname}", f"route flush dev {one.ifname} table 5148")
    wait_until(lambda: one.is_routed_to(other))
    shown = ("ip", "-o", "addr", "show", "dev", one.ifname)
    wait_until(lambda: "10.244.1.0/32" in one.node.netns.run(*shown))

    one.node.netns.ip(f"link set {one.ifname} mtu 1300 down")
    wait_until(lambda: "mtu 1440 " in one.node.netns.run("ip", "link", "show", one.ifname))
    wait_until(lambda: one.is_routed_to(other))
    reaches(one, other)


def test_a_change_of_the_rung_keeps_the_session_and_either_end_may_be_first(
    make_bed: BedMaker,
) -> None:
    bed = make_bed()
    for agent in bed.agents:
        # Of packets that come in where their answers do not leave, strict nodes take none.
        agent.node.netns.sysctl("net/ipv4/conf/all/rp_filter", "2")
        agent.node.netns.sysctl("net/ipv4/conf/default/rp_filter", "1")
    one, other = bed.agents
    bed.join_all()
    reaches(one, other)
    session = one.reading(other)
    assert session is not None

    for here, there in ((one, other), (other, one)):
        here.reach({there.node.uid: bed.by(there, transports.VXLAN)})
        wait_until(lambda here=here, there=there: here.is_routed_to(there, "limvx4"))  # type: ignore[misc]
        for version in (4, 6):
            reaches(one, other, version)
            reaches(other, one, version)
    bed.join_all()
    reaches(one, other)

    after = one.reading(other)
    assert after is not None
    assert after.last_handshake_ns == session.last_handshake_ns


def test_a_node_that_is_removed_is_dropped_and_one_that_leaves_drops_everything(
    make_bed: BedMaker,
) -> None:
    bed = make_bed(3)
    one, other, third = bed.agents
    bed.join_all()
    reaches(one, other)

    one.hear_removed(other)

    wait_until(lambda: one.reading(other) is None)
    assert not one.is_routed_to(other)
    assert one.is_routed_to(third)
    reaches(one, third)

    one.hear_removed(one)

    wait_until(lambda: one.ifname not in one.node.netns.run("ip", "link", "show"))
    wait_until(lambda: one.rules() == 0)
    wait_until(lambda: "via" not in one.routes())


def test_an_agent_that_starts_again_finds_the_tunnel_as_it_was(make_bed: BedMaker) -> None:
    bed = make_bed()
    one, other = bed.agents
    bed.join_all()
    reaches(one, other)
    session, pid, routes = one.reading(other), one.pid, one.routes()
    assert session is not None

    one.stop()
    assert one.routes() == routes
    again = bed.start(one.node, ifname=one.ifname)
    again.hear(other)
    again.reach({other.node.uid: bed.by(other, transports.TUNNEL)})
    wait_until(lambda: again.is_routed_to(other))
    reaches(again, other)

    after = again.reading(other)
    assert after is not None
    assert (again.pid, after.last_handshake_ns) == (pid, session.last_handshake_ns)


def test_nodes_of_one_site_have_no_device_and_tell_that_they_can_have_one(
    make_bed: BedMaker,
) -> None:
    bed = make_bed(2, routed=False)
    one, other = bed.agents
    bed.join_all(transports.VXLAN)
    reaches(one, other)

    presence = other.do(lambda: other.membership.presence)
    assert presence is not None
    assert presence.tunnel_port == other.peer_parts.tunnels.wireguard.key.port
    assert not one.has_tunnel
    assert one.ifname not in one.node.netns.run("ip", "link", "show")
    assert one.rules() == 0


@pytest.mark.skipif(kernel_has_wireguard(), reason="this kernel's WireGuard needs no program")
def test_a_node_without_a_program_says_so_and_goes_on_without_a_tunnel(
    make_bed: BedMaker, tmp_path: Path
) -> None:
    bed = make_bed()
    one, other = bed.agents
    bed.end(one)
    missing = tmp_path / "wireguard-go"
    lone = bed.start(one.node, program=str(missing))
    lone.hear(other)
    other.hear(lone)
    lone.reach({other.node.uid: bed.by(other, transports.VXLAN)})
    other.reach({one.node.uid: bed.by(one, transports.VXLAN)})
    wait_until(lambda: lone.is_routed_to(other, "limvx4"))
    wait_until(lambda: other.is_routed_to(lone, "limvx4"))
    reaches(lone, other)

    presence = lone.do(lambda: lone.membership.presence)
    assert presence is not None
    assert presence.tunnel_port == 0
    assert "install the package wireguard-go" in lone.peer_parts.tunnels.wireguard.problem

    missing.symlink_to(wireguard_go())
    lone.reach({other.node.uid: bed.by(other, transports.TUNNEL)})
    lone.do(lambda: lone.part_loop.resync("the timer's"))
    wait_until(lambda: lone.is_routed_to(other))
    assert lone.peer_parts.tunnels.wireguard.problem == ""
    told = lone.do(lambda: lone.membership.presence)
    assert told is not None
    assert told.tunnel_port == lone.peer_parts.tunnels.wireguard.key.port


def test_peers_with_packets_are_active_and_idle_ones_are_not_read(make_bed: BedMaker) -> None:
    bed = make_bed(3)
    one, other, third = bed.agents

    def heard() -> list[frozenset[str]]:
        return [each.uids for each in one.told if isinstance(each, ActivePeersChanged)]

    bed.join_all()
    wait_until(lambda: one.reading(third) is not None)

    def only_one_is_active() -> bool:
        """Handshakes that had to be tried again may look like packets at first."""
        reaches(one, other)
        look(one)
        return heard()[-1:] == [frozenset({other.node.uid})]

    wait_until(only_one_is_active)

    read: list[str] = []
    readings = one.peer_parts.tunnels.wireguard.readings

    def counted() -> Mapping[bytes, PeerReading]:
        read.append("peers")
        return readings()

    one.peer_parts.tunnels.wireguard.readings = counted  # type: ignore[method-assign]

    def quiet() -> bool:
        """Three looks while nothing went through the device: the kernel may send MLD by it."""
        before = packets()
        look(one, after_s=5)
        read.clear()
        for _ in range(3):
            look(one, after_s=5)
        return packets() == before

    def packets() -> str:
        return one.node.netns.run("ip", "-s", "link", "show", "dev", one.ifname)

    wait_until(quiet)
    assert read == []
    look(one, after_s=20)
    assert heard()[-1] == frozenset()


def test_an_active_peers_endpoint_that_is_not_its_paths_is_set_again(make_bed: BedMaker) -> None:
    bed = make_bed()
    one, other = bed.agents
    bed.join_all()
    reaches(one, other)
    planned = bed.endpoint(other)
    key = other.peer_parts.tunnels.wireguard.key.public_key
    setting = PutTunnelPeer(key, endpoint=(ip_address("172.20.2.77"), 7))

    def is_set() -> bool:
        reading = one.reading(other)
        return reading is not None and reading.peer.endpoint == planned

    def is_taken_away() -> bool:
        """Not for long where a packet of the other comes just then: WireGuard goes by that too."""
        assert one.do(lambda: one.peer_parts.tunnels.wireguard.kernel.apply([setting])) == []
        return not is_set()

    wait_until(is_taken_away)
    for _ in range(3):
        say(one, other)
        look(one, after_s=5)
    wait_until(is_set)
    reaches(one, other)


def take_timestamp(bed: SiteTunnelBed, one: Agent, other: Agent, *, ahead_s: int) -> None:
    """The other's tunnel has heard a handshake of the one, from a time that is ahead."""
    private = X25519PrivateKey.from_private_bytes(one.peer_parts.tunnels.wireguard.key.private_key)
    public = other.peer_parts.tunnels.wireguard.key.public_key
    to = (bed.underlay(other.node, 4), other.peer_parts.tunnels.wireguard.key.port)

    def answers() -> bool:
        # It overlooks one that follows too fast on another.
        sender.sendto(initiation(private, public, timestamp_s=int(time.time()) + ahead_s), to)
        try:
            return sender.recv(256)[0] == RESPONSE
        except TimeoutError:
            return False

    with one.node.netns.open_socket(4, socket.SOCK_DGRAM) as sender:
        sender.settimeout(0.2)
        wait_until(answers, "no handshake was answered")


def test_a_node_that_comes_back_with_an_older_clock_is_taken_anew_on_its_request(
    make_bed: BedMaker,
) -> None:
    bed = make_bed(3)
    one, other, third = bed.agents
    bed.join_all()
    asking, asked = one.talk(), other.talk()
    reaches(one, other)
    reaches(other, third)
    take_timestamp(bed, one, other, ahead_s=10**8)
    session = other.reading(third)

    one.lose_tunnel()

    def is_known() -> bool:
        reading = one.reading(other)
        return reading is not None and bool(reading.last_handshake_ns)

    while not is_known():
        say(one, other)
        look(one)
        look(one, after_s=2)
    reaches(one, other)
    assert asking.counters["asked"] >= 1
    assert asked.counters["taken"] >= 1
    after = other.reading(third)
    assert after is not None
    assert session is not None
    assert after.last_handshake_ns == session.last_handshake_ns


def test_a_recorded_request_or_one_of_a_stranger_takes_no_session_away(
    make_bed: BedMaker,
) -> None:
    bed = make_bed()
    one, other = bed.agents
    bed.join_all()
    one.talk()
    asked = other.talk()
    reaches(one, other)
    address, port = bed.endpoint(other)

    def say(step: Step, token: bytes) -> None:
        assert one.courier is not None
        body = encode(step, token)
        one.courier.send(
            BodyKind.HANDSHAKE_RESET,
            body,
            to_uid=other.node.uid,
            address=address,
            port=port,
            by_tunnel=True,
        )

    session = other.reading(one)
    one.do(lambda: say(Step.CONFIRM, b"recorded"))
    wait_until(lambda: asked.counters["refused"] == 1)
    after = other.reading(one)
    assert session is not None
    assert after is not None
    assert after.last_handshake_ns == session.last_handshake_ns
    other.hear_removed(one)
    wait_until(lambda: other.reading(one) is None)
    one.do(lambda: say(Step.ASK, b"whatever"))
    courier = other.courier
    assert courier is not None
    wait_until(lambda: courier.counters["removed"] == 1)

    assert asked.counters["taken"] == 0
