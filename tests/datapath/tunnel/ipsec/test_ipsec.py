"""What IPsec's tunnels do beside what all do (test_tunnels.py)."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from limpet.base.errors import KernelError
from limpet.base.ownership import IPSEC_IFNAME, IPSEC_RULE_PRIORITY, ROUTE_TABLE
from limpet.base.process import programs as companion
from limpet.cluster.topology.tunnel_end import TunnelEnd
from limpet.datapath.teardown import remove_kernel_state
from limpet.datapath.tunnel.diff import CallPeer, DropTunnel, PutTunnel
from limpet.datapath.tunnel.ipsec import vici as ipsec_vici
from limpet.datapath.tunnel.ipsec.port import IPSEC_PORT
from limpet.datapath.tunnel.ipsec.vici import Vici
from limpet.datapath.tunnel.part import TunnelPart
from limpet.datapath.tunnel.state import TunnelDevice, TunnelState
from limpet.lab.clock import clock_environment
from limpet.linux.netlink.socket import RouteSocket
from tests.beds.namespaces import Netns, NetnsFactory
from tests.beds.overlay_bed import ping
from tests.beds.traffic.tunnel_traffic import Flow, is_silent, send_bulk
from tests.beds.tunnel_bed import TunnelBed
from tests.datapath.tunnel.ipsec.ipsec_bed import (
    IpsecTunnel,
    charon,
    ipsec_kernel,
    skip_without_esp,
)
from tests.waiting import PATIENCE_S, pause, wait_until


class IpsecBed(TunnelBed):
    """Two sites."""

    def __init__(self, folder: Path, kind: type[IpsecTunnel] = IpsecTunnel) -> None:
        super().__init__(2, folder, kind=kind)

    @property
    def both(self) -> tuple[IpsecTunnel, IpsecTunnel]:
        one, other = self.tunnels
        assert isinstance(one, IpsecTunnel)
        assert isinstance(other, IpsecTunnel)
        return one, other


@pytest.fixture(params=["userspace", "kernel"])
def _either_esp(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "kernel":
        skip_without_esp()
        monkeypatch.setattr(IpsecTunnel, "in_kernel", True)


either_esp = pytest.mark.usefixtures("_either_esp")


@either_esp
def test_no_packet_is_lost_when_sas_are_made_anew(tmp_path: Path) -> None:
    bed = IpsecBed(tmp_path)
    with bed.undo:
        one, other = bed.both
        flow = Flow(one.node.pod, other.node.pod, other.node.address(4))
        with flow.running():
            for tunnel in bed.both:
                for what in ("child", "ike"):
                    before = tunnel.made()
                    flow.goes_on()
                    tunnel.rekey(what)
                    wait_until(lambda: tunnel.made().isdisjoint(before))  # noqa: B023
                    flow.goes_on()

        assert flow.lost == 0


@either_esp
def test_a_dead_path_is_left_for_another_endpoint_although_the_peer_keeps_the_old(
    tmp_path: Path,
) -> None:
    bed = IpsecBed(tmp_path)
    with bed.undo:
        one, other = bed.both
        # The end that begins does not know: its peer waits for it, and then begins itself.
        late = max(bed.both, key=lambda each: each.key.public_key)
        early = one if late is other else other
        ping(late.node.pod, early.node.address(4))
        bed.middle.ip(f"route add blackhole {bed.underlay(early.node, 4)}/32")
        assert is_silent(late.node.pod, early.node.address(4))

        late.ends = {early.node.uid: TunnelEnd(bed.endpoint(early, 6))}
        late.settle(bed.entries())

        wait_until(lambda: not is_silent(late.node.pod, early.node.address(4)))
        send_bulk(late.node.pod, early.node.pod, early.node.address(6))


@either_esp
def test_a_living_path_is_left_for_another_while_packets_flow(tmp_path: Path) -> None:
    bed = IpsecBed(tmp_path)
    with bed.undo:
        one, other = bed.both
        flow = Flow(one.node.pod, other.node.pod, other.node.address(4))
        with flow.running():
            flow.goes_on()
            for tunnel, peer in bed.pairs():
                tunnel.ends = {peer.node.uid: TunnelEnd(bed.endpoint(peer, 6))}
                tunnel.settle(bed.entries())
            wait_until(lambda: [sa.remote for sa in one.sas()] == [bed.endpoint(other, 6)])
            flow.goes_on()

        # An end may send by the new SA a moment before the other has it.
        assert flow.lost <= 2
        assert [sa.remote for sa in other.sas()] == [bed.endpoint(one, 6)]


@either_esp
def test_a_peer_behind_a_port_forward_is_reached_at_its_outer_address_and_port(
    tmp_path: Path,
) -> None:
    bed = IpsecBed(tmp_path)
    with bed.undo:
        one, other = bed.both
        address, port = bed.endpoint(other)
        bed.middle.run(
            "nft",
            "add table ip forwarded; add chain ip forwarded in { type nat hook prerouting "
            "priority dstnat; }; add rule ip forwarded in ip daddr 172.20.1.254 udp dport 4444 "
            f"dnat to {address}:{port}; add chain ip forwarded out {{ type nat hook postrouting "
            f"priority srcnat; }}; add rule ip forwarded out ip saddr {address} masquerade random",
        )
        outer = ip_address("172.20.1.254"), 4444
        other.ends = {}
        other.settle(bed.entries())

        one.ends = {other.node.uid: TunnelEnd(outer)}
        one.settle(bed.entries())

        wait_until(lambda: outer in [sa.remote for sa in one.sas() if sa.children])
        for inner in (4, 6):
            send_bulk(one.node.pod, other.node.pod, other.node.address(inner))
            send_bulk(other.node.pod, one.node.pod, one.node.address(inner))


@either_esp
def test_a_network_behind_a_peer_that_refuses_it_keeps_nothing_else_out(tmp_path: Path) -> None:
    bed = IpsecBed(tmp_path)
    with bed.undo:
        one, other = bed.both
        # The daemon of a node that has no address in it refuses the whole for it.
        behind = ip_network("172.30.0.0/16")
        other.node.grant = replace(other.node.grant, prefixes_behind=(behind,))
        for tunnel in bed.both:
            os.kill(tunnel.pid, signal.SIGKILL)
        wait_until(lambda: all(t.node.route.link(IPSEC_IFNAME) is None for t in bed.both))

        bed.settle_tunnels()

        for inner in (4, 6):
            wait_until(lambda: not is_silent(one.node.pod, other.node.address(inner)))  # noqa: B023
        other.node.netns.ip("addr add 172.30.0.1/32 dev lo")
        one.apply(CallPeer(other.key.public_key))
        wait_until(lambda: not is_silent(one.node.pod, "172.30.0.1"))


@contextmanager
def passed_on(one: IpsecTunnel, other: IpsecTunnel) -> Iterator[tuple[int, int]]:
    """A port on each node's loopback; what comes to one leaves from the other, as from agents that
    have a relay's TLS connection between them."""
    ends = [tunnel.node.netns.open_socket(4, socket.SOCK_DGRAM) for tunnel in (one, other)]
    ended = threading.Event()

    def pass_on(here: socket.socket, there: socket.socket, to: tuple[str, int]) -> None:
        while not ended.is_set():
            with suppress(TimeoutError):
                there.sendto(here.recv(1 << 16), to)

    for end in ends:
        end.bind(("127.0.0.1", 0))
        end.settimeout(0.1)
    ways = [
        (ends[0], ends[1], ("127.0.0.1", other.key.port)),
        (ends[1], ends[0], ("127.0.0.1", one.key.port)),
    ]
    threads = [threading.Thread(target=pass_on, args=way) for way in ways]
    for thread in threads:
        thread.start()
    try:
        yield ends[0].getsockname()[1], ends[1].getsockname()[1]
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        for end in ends:
            end.close()


@either_esp
def test_a_peer_is_reached_through_ports_on_loopback(tmp_path: Path) -> None:
    bed = IpsecBed(tmp_path)
    with bed.undo:
        one, other = bed.both
        with passed_on(one, other) as ports:
            bed.middle.ip(*(f"link set port{number} down" for number in (1, 2)))
            for (tunnel, peer), port in zip(bed.pairs(), ports, strict=True):
                end = TunnelEnd((ip_address("127.0.0.1"), port))
                tunnel.ends = {peer.node.uid: end}
                tunnel.settle(bed.entries())

            wait_until(lambda: not is_silent(one.node.pod, other.node.address(4)))
            send_bulk(one.node.pod, other.node.pod, other.node.address(6))


@either_esp
def test_a_removed_peer_is_cut_off_at_once_and_does_not_come_in_again(tmp_path: Path) -> None:
    bed = IpsecBed(tmp_path)
    with bed.undo:
        one, other = bed.both
        ping(other.node.pod, one.node.address(4))

        one.settle({one.node.uid: bed.entries()[one.node.uid]})

        assert one.sas() == []
        assert is_silent(other.node.pod, one.node.address(4))
        assert not other.begins(one)
        assert one.sas() == []


class TurnedBackTunnel(IpsecTunnel):
    """The first node's clock is that of a machine whose battery is empty."""

    @property
    def program(self) -> str:
        if self.node.number != 1:
            return super().program
        script = self.folder / "charon-in-1970"
        clock = clock_environment("1970-01-01 00:10:00", self.folder)
        words = " ".join(f"{name}={value}" for name, value in clock.items())
        script.write_text(f"#!/bin/sh\nexec env {words} {charon()}\n")
        script.chmod(0o755)
        return str(script)


def test_a_node_in_1970_has_its_tunnels(tmp_path: Path) -> None:
    bed = IpsecBed(tmp_path, kind=TurnedBackTunnel)
    with bed.undo:
        one, other = bed.both
        wait_until(lambda: not is_silent(one.node.pod, other.node.address(4)))
        ping(other.node.pod, one.node.address(6))


@either_esp
def test_nothing_is_left_of_a_tunnel_that_is_dropped_also_when_its_program_was_killed(
    tmp_path: Path,
) -> None:
    bed = IpsecBed(tmp_path)
    with bed.undo:
        for tunnel, kill in zip(bed.both, (False, True), strict=True):
            if kill:
                os.kill(tunnel.pid, signal.SIGKILL)
                wait_until(lambda: tunnel.node.route.link(IPSEC_IFNAME) is None)  # noqa: B023
            with tunnel.node.netns.entered():
                assert tunnel.kernel.apply([DropTunnel(IPSEC_IFNAME)]) == []
                assert tunnel.kernel.process.pid is None
            assert tunnel.node.route.link(IPSEC_IFNAME) is None
            for option in ((), ("-6",)):
                rules = tunnel.node.netns.run("ip", *option, "rule")
                assert f"{IPSEC_RULE_PRIORITY}:" not in rules


class PortSharingTunnel(IpsecTunnel):
    inner_port = IPSEC_PORT


@either_esp
def test_ipsec_shares_the_tunnels_port_with_wireguard(tmp_path: Path) -> None:
    bed = IpsecBed(tmp_path, kind=PortSharingTunnel)
    with bed.undo:
        one, other = bed.both
        with (
            one.node.netns.open_socket(4, socket.SOCK_DGRAM) as wireguard,
            bed.middle.open_socket(4, socket.SOCK_DGRAM) as stranger,
        ):
            wireguard.bind(("0.0.0.0", one.key.port))
            wireguard.settimeout(PATIENCE_S)
            for tunnel, peer in bed.pairs():
                send_bulk(tunnel.node.pod, peer.node.pod, peer.node.address(4))
                assert tunnel.reading(peer).peer.endpoint == bed.endpoint(peer)
            to = (bed.underlay(one.node, 4), one.key.port)
            for first in (b"\xc1\2\3\4", bytes(4), b"\4\0\0\0"):
                stranger.sendto(first + b"whatever comes then", to)
            # Neither ESP nor IKE has come here, though they were sent before.
            assert wireguard.recv(64) == b"\4\0\0\0whatever comes then"

        one.restart()
        assert one.settle(bed.entries()) == []
        pid = one.pid
        one.node.netns.run("nft", "delete", "table", "inet", "limpet_ipsec")
        (change,) = one.settle(bed.entries())
        assert isinstance(change, PutTunnel)
        assert one.pid == pid
        ping(one.node.pod, other.node.address(6))


def test_nothing_of_it_is_left_when_limpet_is_uninstalled_also_where_it_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(companion, "_STOP_TIMEOUT_S", 0.2)
    bed = IpsecBed(tmp_path, kind=PortSharingTunnel)
    with bed.undo:
        for tunnel, hangs in zip(bed.both, (False, True), strict=True):
            pid, netns = tunnel.pid, tunnel.node.netns
            for family in ("", "-6 "):
                netns.ip(f"{family}rule del priority {ROUTE_TABLE}")  # the bed's, not an agent's
            assert "limpet_ipsec" in netns.run("nft", "list", "tables")
            if hangs:
                pause(pid)
            with netns.entered():
                report = remove_kernel_state([TunnelPart.owned(tunnel.run_dir)], {})

            assert report.failed == []
            wait_until(lambda: not Path(f"/proc/{pid}").exists())  # noqa: B023
            assert tunnel.node.route.link(IPSEC_IFNAME) is None
            assert netns.run("nft", "list", "tables") == ""
            for option in ((), ("-6",)):
                rules = netns.run("ip", *option, "rule")
                assert "40000:" not in rules
                routes = netns.run("ip", *option, "route", "show", "table", "all")
                assert "5150" not in routes


# Programs that are not what is needed

FAKE = """\
#!{python}
import os, re, socket
from vici.protocol import Message, Packet, Transport
text = open(os.environ["STRONGSWAN_CONF"]).read()
server = socket.socket(socket.AF_UNIX)
server.bind(re.search("unix://(.*)", text)[1])
server.listen(8)
while True:
    transport = Transport(server.accept()[0])
    try:
        while True:
            packet = transport.receive()
            command = bytes(packet[2 : 2 + packet[1]]).decode()
            answer = {answers!r}[command]
            if not isinstance(answer, bytes):
                answer = bytes([Packet.CMD_RESPONSE]) + Message.serialize(answer)
            transport.send(answer)
    except OSError:
        pass
"""
GOOD = {"version": {"version": "5.9.8"}, "stats": {"plugins": ["vici", "openssl"]}}


def fake(folder: Path, answers: dict[str, object]) -> str:
    """A program that answers so at its socket, and is no strongSwan."""
    path = folder / "fake"
    path.write_text(FAKE.format(python=sys.executable, answers=answers))
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"version": {"version": "5.8.4"}}, r"strongSwan 5\.8\.4: .* older than 5\.9"),
        ({"version": {"daemon": "charon"}}, "read strongSwan's version"),
        ({"version": b""}, "makes no sense"),
        ({"version": b"\1\3\xff\xff\xff"}, "makes no sense"),
        ({"version": b"\2"}, "makes no sense"),
        (GOOD, "kernel-libipsec.* install libcharon-extra-plugins"),
    ],
)
def test_a_strongswan_that_does_not_fit_is_told_of_and_ended(
    tmp_path: Path, make_netns: NetnsFactory, answers: dict[str, object], message: str
) -> None:
    assert message_of(tmp_path, make_netns(), fake(tmp_path, answers), message)


def test_a_program_that_is_missing_or_fails_is_told_of(
    tmp_path: Path, make_netns: NetnsFactory
) -> None:
    assert message_of(tmp_path, make_netns(), "no-such-program", "install strongSwan")
    path = tmp_path / "failing"
    path.write_text("#!/bin/sh\necho the reason >&2\nexit 3\n")
    path.chmod(0o755)
    assert message_of(tmp_path, make_netns(), str(path), "it ended at once: the reason")


@pytest.mark.parametrize("version", [4, 6])
def test_a_port_that_another_program_has_is_told_of(
    tmp_path: Path, make_netns: NetnsFactory, version: int
) -> None:
    netns = make_netns()
    with netns.open_socket(version, socket.SOCK_DGRAM) as taken:
        taken.bind(("", 4500))
        assert message_of(tmp_path, netns, charon(), "UDP port 4500 .*another program has it")


def message_of(folder: Path, netns: Netns, program: str, message: str) -> bool:
    """Whether making the tunnel fails so, and leaves no process."""
    import re

    device = TunnelDevice(IPSEC_IFNAME, 1400, b"", 4500)
    with netns.entered(), RouteSocket() as route:
        kernel = ipsec_kernel(route, folder / "run", program)
        try:
            want = TunnelState(device)
            assert kernel.observe(want).device is None
            (failure,) = kernel.apply([PutTunnel(device)])
            assert kernel.process.pid is None
        finally:
            kernel.close()
    return re.search(message, str(failure)) is not None


def test_who_may_not_wait_asks_again_when_one_who_may_has_had_an_answer(
    tmp_path: Path, make_netns: NetnsFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ipsec_vici, "ANSWER_S", 0.1)
    device = TunnelDevice(IPSEC_IFNAME, 1400, b"", 4500)
    with make_netns().entered(), RouteSocket() as route:
        kernel = ipsec_kernel(route, tmp_path / "run", charon())
        patient = Vici(kernel.process, waits_s=0.1)
        hasty = Vici(kernel.process, asks_anyway=False)
        try:
            kernel.observe(TunnelState(device))
            assert kernel.apply([PutTunnel(device)]) == []
            pid = kernel.process.pid
            assert pid is not None
            hasty.ask("version")
            pause(pid)
            for asked in (patient, hasty):
                with pytest.raises(KernelError, match="no answer"):
                    asked.ask("version")
            os.kill(pid, signal.SIGCONT)
            with pytest.raises(KernelError, match="no answer"):
                hasty.ask("version")

            wait_until(lambda: answers(patient))

            assert answers(hasty)
        finally:
            assert kernel.apply([DropTunnel(IPSEC_IFNAME)]) == []
            for each in (kernel, patient, hasty):
                each.close()


def answers(asked: Vici) -> bool:
    try:
        asked.ask("version")
    except KernelError:
        return False
    return True


def test_a_device_of_somebody_else_is_left_alone(tmp_path: Path, make_netns: NetnsFactory) -> None:
    netns = make_netns()
    netns.ip(f"tuntap add dev {IPSEC_IFNAME} mode tun")
    device = TunnelDevice(IPSEC_IFNAME, 1400, b"", 4500)
    with netns.entered(), RouteSocket() as route:
        kernel = ipsec_kernel(route, tmp_path / "run", charon())
        try:
            found = kernel.observe(TunnelState(device)).device
            assert found is not None
            assert not found.ours
            (failure,) = kernel.apply([PutTunnel(device)])
        finally:
            kernel.close()
        assert failure.errno == errno.EEXIST
        assert route.link(IPSEC_IFNAME) is not None


def test_fetching_again_only_looks_at_a_stamp() -> None:
    script = Path(__file__).parents[4] / "scripts" / "fetch-strongswan"
    program = charon()
    before = os.stat(program)
    done = subprocess.run([script], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.strip() == program
    assert os.stat(program) == before
