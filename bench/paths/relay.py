"""TCP from site to site through a relay, against the same tunnel sent straight.

    iperf3 ── wireguard-go ── [site] ════ [relay] ════ [site] ── wireguard-go ── iperf3

Straight, the packets pass the relay's namespace too, which is the router between the sites: both
ways have the same links, and differ in what the relay does.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address, ip_network
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from bench.bed import Bed
from bench.figures import Figure, Target
from bench.nodes.netns import Netns
from bench.nodes.node import ip
from limpet.base.addresses import Endpoint
from limpet.datapath.tunnel.state import DeviceSetting, PeerSetting
from limpet.datapath.tunnel.wireguard.device import UserspaceWireguard
from limpet.datapath.tunnel.wireguard.process import WireguardProcess
from limpet.relay.server.forwarding import RelayKernel
from limpet.relay.server.pairs import ForwardingEntry, PairEnd, UdpFlow

_ROOT = Path(__file__).resolve().parents[2]
_TUNNEL_PORT = 51820
_RELAY_PORTS = (21000, 22999)
_MTU_BYTES = 1420
_BYTES = "400M"
_FIRST = ("nice", "-n", "-20")
_LIMIT_S = 60


def relay_udp(bed: Bed, rounds: int) -> list[Figure]:
    """Mbit/s of one TCP stream, both ways in turn."""
    if bed.reference_only:
        return []
    through: list[float] = []
    straight: list[float] = []
    with _two_sites(bed.disk_folder) as (one, other):
        for number in range(rounds):
            for relayed in (True, False) if number % 2 == 0 else (False, True):
                one.send_to(other, relayed=relayed)
                other.send_to(one, relayed=relayed)
                (through if relayed else straight).append(_stream_mbit_per_s(one, other))
    return [
        Figure(
            "relay-udp-tcp",
            "site to site through a relay, against the same tunnel straight: TCP",
            "Mbit/s",
            through,
            straight,
            Target(0.9, at_least=True),
        )
    ]


class _Site:
    def __init__(self, number: int, folder: Path, relay: Netns, undo: ExitStack) -> None:
        self.netns = Netns(f"rel{number}")
        undo.callback(self.netns.close)
        self.inner = f"10.244.{number}.1"
        self.address = f"192.0.2.{4 * number + 1}"
        self.gateway = f"192.0.2.{4 * number + 2}"
        self.port = _RELAY_PORTS[0] + number
        """The relay's, for this site."""
        self._key = X25519PrivateKey.generate()
        self._ifname = f"lbn{os.getpid()}r{number}"
        program = subprocess.run(
            [_ROOT / "scripts/fetch-wireguard"], stdout=subprocess.PIPE, text=True, check=True
        ).stdout.strip()
        process = WireguardProcess(
            self._ifname, log=folder / f"{self._ifname}.log", program=program
        )
        self._device = UserspaceWireguard(process)
        with self.netns.inside():
            ip("link set lo up")
            ip(f"link add up0 type veth peer name site{number} netns {relay.name}")
            ip(f"addr add {self.address}/30 dev up0")
            ip("link set up0 up")
        with relay.inside():
            ip(f"addr add {self.gateway}/30 dev site{number}")
            ip(f"link set site{number} up")
        with self.netns.inside():
            ip(f"route add default via {self.gateway}")
            self._device.make()
            undo.callback(self._remove)
            self._device.write(DeviceSetting(self._key.private_bytes_raw(), _TUNNEL_PORT, 0))
            ip(f"link set {self._ifname} mtu {_MTU_BYTES} up")
            ip(f"addr add {self.inner}/16 dev {self._ifname}")

    def _remove(self) -> None:
        with self.netns.inside():
            self._device.remove()

    @property
    def place(self) -> UdpFlow:
        return UdpFlow((ip_address(self.address), _TUNNEL_PORT), ip_address(self.gateway))

    def send_to(self, other: _Site, *, relayed: bool) -> None:
        """From now on by this way."""
        endpoint: Endpoint = (ip_address(other.address), _TUNNEL_PORT)
        if relayed:
            endpoint = (ip_address(self.gateway), self.port)
        public_key = other._key.public_key().public_bytes_raw()
        allowed = (ip_network(f"{other.inner}/32"),)
        with self.netns.inside():
            self._device.write(DeviceSetting(peers=(PeerSetting(public_key, allowed, endpoint),)))


@contextmanager
def _two_sites(folder: Path) -> Iterator[tuple[_Site, _Site]]:
    """Joined by a relay as the agent programs it."""
    with ExitStack() as undo:
        own = folder / f"lbn-{os.getpid()}-relay"
        own.mkdir()
        undo.callback(shutil.rmtree, own)
        relay = Netns("relay")
        undo.callback(relay.close)
        with relay.inside():
            ip("link set lo up")
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        one, other = (_Site(number, own, relay, undo) for number in (1, 2))
        with relay.inside():
            kernel = RelayKernel(_RELAY_PORTS)
            undo.callback(kernel.close)
            entries = [
                ForwardingEntry(
                    PairEnd(str(this.port), str(that.port), this.port, that.port, this.place),
                    that.place,
                )
                for this, that in ((one, other), (other, one))
            ]
            kernel.put(_TUNNEL_PORT, entries)
        yield one, other


def _stream_mbit_per_s(client: _Site, server: _Site) -> float:
    """By iperf3, as the receiver has it."""
    with client.netns.inside():
        # The handshake is no part of it.
        subprocess.run(
            ["ping", "-c", "2", "-i", "0.1", "-w", "10", server.inner],
            check=True,
            capture_output=True,
        )
    with server.netns.inside():
        listening = subprocess.Popen(
            [*_FIRST, "iperf3", "--server", "--one-off", "--forceflush"],
            stdout=subprocess.PIPE,
            text=True,
        )
    with listening:
        assert listening.stdout is not None
        try:
            if not any("listening" in line for line in listening.stdout):
                raise RuntimeError("iperf3 --server ended before it listened")
            command = [*_FIRST, "iperf3", "--client", server.inner, "--bytes", _BYTES]
            with client.netns.inside():
                done = subprocess.run(
                    [*command, "--congestion", "cubic", "--json"],
                    capture_output=True,
                    text=True,
                    timeout=_LIMIT_S,
                )
        finally:
            listening.kill()
    report = json.loads(done.stdout or "{}")
    if done.returncode != 0 or "error" in report:
        raise RuntimeError(f"iperf3: {report.get('error', done.stderr.strip())}")
    return float(report["end"]["sum_received"]["bits_per_second"]) / 1e6
