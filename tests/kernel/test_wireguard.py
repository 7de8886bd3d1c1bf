"""Encrypted tunnels between sites, with the real userspace WireGuard."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from limpet.kernel.netlink import Notifications
from limpet.model.tunnel import TunnelEnd
from limpet.plan.tunnel_diff import (
    DropTunnel,
    PutTunnel,
    PutTunnelPeer,
    TakePeerAnew,
    TunnelChange,
)
from tests.kernel.namespaces import Netns
from tests.kernel.noise import RESPONSE, initiation
from tests.kernel.overlay_bed import ping
from tests.kernel.tunnel_bed import Tunnel, TunnelBed, kernel_has_wireguard

BULK_BYTES = 4 << 20


def counters(netns: Netns, name: str) -> dict[str, int]:
    """Of /proc/net/snmp: counters of one protocol."""
    lines = [line.split() for line in netns.run("cat", "/proc/net/snmp").splitlines()]
    names, values = [line[1:] for line in lines if line[0] == f"{name}:"]
    return dict(zip(names, map(int, values), strict=True))


def fragments(netns: Netns) -> int:
    """Packets that the node has cut, of both versions."""
    v6 = dict(line.split() for line in netns.run("cat", "/proc/net/snmp6").splitlines())
    return counters(netns, "Ip")["FragCreates"] + int(v6["Ip6FragCreates"])


def send_bulk(client: Netns, server: Netns, address: str) -> None:
    """All of it arrives. Raises: AssertionError, OSError."""
    with server.listening(address, 5001) as listening, client.connected(address, 5001) as here:
        there, _ = listening.accept()
        sender = threading.Thread(target=here.sendall, args=(bytes(BULK_BYTES),))
        sender.start()
        with there:
            there.settimeout(20)
            left = BULK_BYTES
            while left and (part := len(there.recv(1 << 18))):
                left -= part
        sender.join()
    assert left == 0


@pytest.mark.parametrize("in_kernel", [False, True])
@pytest.mark.parametrize("version", [4, 6])
def test_pods_of_two_sites_reach_each_other_over_either_underlay(
    tmp_path: Path, version: int, in_kernel: bool
) -> None:
    if in_kernel and not kernel_has_wireguard():
        pytest.skip("this kernel has no WireGuard")
    bed = TunnelBed(2, tmp_path, version=version, in_kernel=in_kernel)
    with bed.undo:
        for one, other in bed.pairs():
            for inner in (4, 6):
                ping(one.node.pod, other.node.address(inner))
                ping(one.node.pod, other.node.overlay(inner))
                ping(one.node.netns, other.node.address(inner), "-I", one.node.overlay(inner))
                send_bulk(one.node.pod, other.node.pod, other.node.address(inner))
        assert [fragments(tunnel.node.netns) for tunnel in bed.tunnels] == [0, 0]
        for one, other in bed.pairs():
            for inner in (4, 6):
                # Larger than the path; the first tells the sender how large that is.
                three = ("-c", "3", "-i", "0.1", "-s", "4000")
                ping(one.node.pod, other.node.address(inner), *three)


def test_three_sites_reach_each_other_through_one_device_each(tmp_path: Path) -> None:
    bed = TunnelBed(3, tmp_path)
    with bed.undo:
        for one, other in bed.pairs():
            ping(one.node.pod, other.node.address(4))
            ping(one.node.pod, other.node.address(6))


@pytest.mark.parametrize("version", [4, 6])
def test_full_packets_fit_a_path_that_is_narrower_than_the_links(
    tmp_path: Path, version: int
) -> None:
    bed = TunnelBed(2, tmp_path, version=version)
    with bed.undo:
        one, other = bed.tunnels
        bed.middle.ip(*(f"link set port{number} mtu 1492" for number in (1, 2)))
        for tunnel in bed.tunnels:
            tunnel.ends = {uid: replace(end, mtu_bytes=1492) for uid, end in tunnel.ends.items()}
        bed.settle_tunnels()

        for inner in (4, 6):
            send_bulk(one.node.pod, other.node.pod, other.node.address(inner))

        places = (one.node.netns, other.node.netns, bed.middle)
        assert [fragments(netns) for netns in places] == [0, 0, 0]


def test_a_sender_outside_the_peers_prefixes_is_not_let_in(tmp_path: Path) -> None:
    bed = TunnelBed(2, tmp_path)
    with bed.undo:
        one, other = bed.tunnels
        one.node.pod.ip("addr add 10.244.9.9/32 dev eth0")
        one.node.netns.ip("route add 10.244.9.9/32 dev limpet0")
        ping(one.node.pod, other.node.address(4))
        before = counters(other.node.pod, "Icmp")["InEchos"]

        with pytest.raises(AssertionError):
            ping(one.node.pod, other.node.address(4), "-I", "10.244.9.9")

        ping(one.node.pod, other.node.address(4))
        assert counters(other.node.pod, "Icmp")["InEchos"] == before + 1


class Flow:
    """Datagrams to and fro between two pods for as long as it is open, one at a time."""

    def __init__(self, client: Netns, server: Netns, address: str) -> None:
        self.sent = 0
        self._answered: set[int] = set()
        self._here = client.open_socket(4, socket.SOCK_DGRAM)
        self._there = server.open_socket(4, socket.SOCK_DGRAM)
        self._there.bind((address, 7000))
        self._address = (address, 7000)
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=run) for run in (self._ask, self._answer)]

    @property
    def answered(self) -> int:
        return len(self._answered)

    @property
    def lost(self) -> int:
        """A late answer, as on a loaded machine, is none that is lost."""
        return self.sent - self.answered

    def _ask(self) -> None:
        self._here.settimeout(1)
        while not self._ended.is_set():
            self._here.sendto(self.sent.to_bytes(8), self._address)
            self.sent += 1
            with suppress(TimeoutError):
                self._hear()
        with suppress(TimeoutError):
            while self.lost:
                self._hear()

    def _hear(self) -> None:
        self._answered.add(int.from_bytes(self._here.recv(8)))

    def _answer(self) -> None:
        self._there.settimeout(0.1)
        while not self._ended.is_set() or self._threads[0].is_alive():
            with suppress(TimeoutError):
                self._there.sendto(*self._there.recvfrom(8))

    def goes_on(self) -> None:
        """Something that is sent from now on is answered. Raises: AssertionError."""
        enough = self.answered + 2
        wait_until(lambda: self.answered >= enough)

    @contextmanager
    def running(self) -> Iterator[Flow]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            for thread in self._threads:
                thread.join()
            self._here.close()
            self._there.close()


def keys_of(changes: list[TunnelChange]) -> set[bytes]:
    """Of the peers that are changed; the device is not."""
    assert not any(isinstance(change, PutTunnel | DropTunnel) for change in changes)
    return {each.public_key for each in changes if not isinstance(each, PutTunnel | DropTunnel)}


def test_a_change_of_one_peer_touches_no_other_and_no_flow_loses_a_packet(tmp_path: Path) -> None:
    bed = TunnelBed(3, tmp_path)
    with bed.undo:
        one, other, third = bed.tunnels
        ping(one.node.pod, other.node.address(4))
        before = one.reading(other)
        nodes = bed.entries()
        changed = {**nodes}
        more = (*third.node.grant.segments, ip_network("10.244.77.0/24"))
        changed[third.node.uid] = replace(
            nodes[third.node.uid], grant=replace(third.node.grant, segments=more)
        )
        without = {uid: entry for uid, entry in nodes.items() if uid != third.node.uid}
        # Of the peer that the flow goes to: it gets a prefix, and loses it.
        grown = {**nodes}
        more = (*other.node.grant.segments, ip_network("10.244.78.0/24"))
        grown[other.node.uid] = replace(
            nodes[other.node.uid], grant=replace(other.node.grant, segments=more)
        )

        flow = Flow(one.node.pod, other.node.pod, other.node.address(4))
        with flow.running():
            for _ in range(5):
                for snapshot in (changed, nodes, without, nodes):
                    changes = one.settle(snapshot)
                    assert keys_of(changes) == {third.key.public_key}
                    flow.goes_on()
                for snapshot in (grown, nodes):
                    changes = one.settle(snapshot)
                    assert keys_of(changes) == {other.key.public_key}
                    flow.goes_on()

        assert flow.lost == 0
        after = one.reading(other)
        assert after.last_handshake_ns == before.last_handshake_ns
        ping(one.node.pod, third.node.address(6))


def test_a_prefix_moves_between_peers_in_one_round(tmp_path: Path) -> None:
    bed = TunnelBed(3, tmp_path)
    with bed.undo:
        one, other, third = bed.tunnels
        nodes = bed.entries()
        moving = ip_network("10.244.77.0/24")
        for holder in (other, third, other):
            entry = nodes[holder.node.uid]
            more = (*holder.node.grant.segments, moving)
            grant = replace(holder.node.grant, segments=more)
            one.settle({**nodes, holder.node.uid: replace(entry, grant=grant)})
            assert moving in one.kernel.have.peers[holder.key.public_key].allowed
        one.settle(nodes)
        assert all(moving not in peer.allowed for peer in one.kernel.have.peers.values())


def wait_until(holds: Callable[[], bool]) -> None:
    """Raises: AssertionError when it does not hold for ten seconds."""
    deadline_s = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@contextmanager
def link_notifications(tunnel: Tunnel) -> Iterator[Callable[[], bool]]:
    """Waits for the next notification of links in the node's namespace; False: none came."""
    with tunnel.node.netns.entered():
        notifications = Notifications(socket.NETLINK_ROUTE, (1,))

    def told() -> bool:
        ready = select.select([notifications], [], [], 5)[0]
        return bool(ready and list(notifications.drain()))

    yield told
    notifications.close()


def test_a_tunnels_own_packets_never_go_into_another_tunnel(tmp_path: Path) -> None:
    bed = TunnelBed(3, tmp_path)
    with bed.undo:
        one, other, third = bed.tunnels
        # What is behind one peer has the address of another's site in it.
        site = ip_network("192.0.3.0/24")
        other.node.grant = replace(other.node.grant, prefixes_behind=(site,))
        one.settle(bed.entries())
        assert one.ifname in one.node.netns.run("ip", "route", "get", bed.underlay(third.node, 4))

        for inner in (4, 6):
            ping(one.node.pod, third.node.address(inner))

        assert one.reading(third).peer.endpoint == bed.endpoint(third)


def move(bed: TunnelBed, tunnel: Tunnel) -> str:
    """The node has another address on its link, and its router knows."""
    number = tunnel.node.number
    tunnel.node.netns.ip(
        "addr flush dev eth0 scope global",
        f"addr add 192.0.{number + 100}.7/24 dev eth0",
        f"route add default via 192.0.{number + 100}.254",
    )
    bed.middle.ip(f"addr add 192.0.{number + 100}.254/24 dev port{number}")
    return f"192.0.{number + 100}.7"


def test_a_peer_that_moves_is_followed_and_an_older_plan_does_not_bring_it_back(
    tmp_path: Path,
) -> None:
    bed = TunnelBed(2, tmp_path)
    with bed.undo:
        one, other = bed.tunnels
        ping(one.node.pod, other.node.address(4))
        moved = (ip_address(move(bed, other)), other.key.port)

        ping(other.node.pod, one.node.address(4))

        assert one.reading(other).peer.endpoint == moved
        assert one.settle(bed.entries()) == []
        one.restart()
        assert one.settle(bed.entries()) == []
        ping(one.node.pod, other.node.address(6))

        # What is new to the plan is set, also after the restart.
        elsewhere = ip_address("192.0.9.9"), 7
        one.ends = {other.node.uid: TunnelEnd(elsewhere)}
        one.settle(bed.entries())
        assert one.reading(other).peer.endpoint == elsewhere
        one.ends = {}
        one.settle(bed.entries())
        assert one.reading(other).peer.endpoint == elsewhere
        one.ends = {other.node.uid: TunnelEnd(moved)}
        one.settle(bed.entries())
        ping(one.node.pod, other.node.address(4))


def test_a_pair_goes_over_to_the_other_underlay_within_its_session(tmp_path: Path) -> None:
    bed = TunnelBed(2, tmp_path)
    with bed.undo:
        one, other = bed.tunnels
        ping(one.node.pod, other.node.address(4))
        before = one.reading(other).last_handshake_ns

        one.ends = {other.node.uid: TunnelEnd(bed.endpoint(other, 6))}
        changes = one.settle(bed.entries())

        assert keys_of(changes) == {other.key.public_key}
        send_bulk(one.node.pod, other.node.pod, other.node.address(6))
        assert one.reading(other).peer.endpoint == bed.endpoint(other, 6)
        assert other.reading(one).peer.endpoint == bed.endpoint(one, 6)
        assert one.reading(other).last_handshake_ns == before


def test_a_keepalive_reaches_a_peer_that_knows_no_endpoint(tmp_path: Path) -> None:
    bed = TunnelBed(2, tmp_path)
    with bed.undo:
        one, other = bed.tunnels
        entries = bed.entries()
        only_one = {one.node.uid: entries[one.node.uid]}
        other.settle({other.node.uid: entries[other.node.uid]})
        one.settle(only_one)
        other.ends = {}
        other.settle(entries)
        one.ends = {other.node.uid: TunnelEnd(bed.endpoint(other), behind_nat=True)}

        one.settle(entries)

        wait_until(lambda: other.reading(one).peer.endpoint is not None)
        ping(other.node.pod, one.node.address(4))


def test_the_agents_restart_finds_everything_as_it_was(tmp_path: Path) -> None:
    bed = TunnelBed(2, tmp_path)
    with bed.undo:
        one, other = bed.tunnels
        ping(one.node.pod, other.node.address(4))
        pid, key = one.pid, one.key
        handshake = one.reading(other).last_handshake_ns

        one.restart()
        changes = one.settle(bed.entries())

        assert (changes, one.pid, one.key) == ([], pid, key)
        assert one.reading(other).last_handshake_ns == handshake


def test_a_killed_program_is_started_anew_with_the_same_key_and_port(tmp_path: Path) -> None:
    bed = TunnelBed(2, tmp_path)
    with bed.undo:
        one, other = bed.tunnels
        ping(one.node.pod, other.node.address(4))
        pid, key = one.pid, one.key
        with link_notifications(one) as told:
            os.kill(pid, signal.SIGKILL)
            while one.node.route.link(one.ifname) is not None:
                assert told(), "the kernel did not tell that the device is gone"

        one.settle(bed.entries())

        assert one.pid != pid
        device = one.kernel.have.device
        assert device is not None
        assert (device.private_key, device.port) == (key.private_key, key.port)
        ping(one.node.pod, other.node.address(4))
        ping(other.node.pod, one.node.address(6))


def answers(sender: socket.socket, message: bytes, to: tuple[str, int]) -> bool:
    """Whether the device takes the handshake; it overlooks one that follows too fast on another."""
    sender.settimeout(0.1)
    for _ in range(5):
        sender.sendto(message, to)
        try:
            return sender.recv(256)[0] == RESPONSE
        except TimeoutError:
            continue
    return False


def test_a_peer_whose_clock_jumped_back_is_let_in_when_it_is_taken_anew(tmp_path: Path) -> None:
    bed = TunnelBed(2, tmp_path)
    with bed.undo:
        one, other = bed.tunnels
        ping(one.node.pod, other.node.address(4))
        private = X25519PrivateKey.generate()
        key = private.public_key().public_bytes_raw()
        prefix = ip_network("10.244.99.0/24")
        one.apply(PutTunnelPeer(key, (prefix,), keepalive_s=0))
        to = (bed.underlay(one.node, 4), one.key.port)

        def handshake(timestamp_s: int) -> bytes:
            return initiation(private, one.key.public_key, timestamp_s=timestamp_s)

        with bed.middle.open_socket(4, socket.SOCK_DGRAM) as sender:
            now_s = int(time.time())
            assert answers(sender, handshake(now_s + 10**8), to)
            assert not answers(sender, handshake(now_s), to)

            before = one.readings()
            one.apply(TakePeerAnew(key))

            assert answers(sender, handshake(now_s), to)
        after = one.readings()
        assert after[key].peer.allowed == {prefix}
        assert after[key].peer.endpoint == before[key].peer.endpoint
        others = other.key.public_key
        assert after[others].last_handshake_ns == before[others].last_handshake_ns
