"""TCP from site to site through a relay's port 443, against the same tunnel sent straight.

    iperf3 ── wireguard-go ── node ══ TLS ══ relay ══ TLS ══ node ── wireguard-go ── iperf3

Each of the three has a process and a namespace of its own. Straight, both tunnels send to each
other's port; the packets pass the relay's namespace, which is their router.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from bench.bed import Bed
from bench.figures import Figure, Target
from bench.nodes.netns import Netns
from bench.nodes.node import ip
from bench.nodes.part import Part
from limpet.base.addresses import Endpoint
from limpet.cluster.documents import Document, Known
from limpet.cluster.identity import ClusterFile
from limpet.cluster.keys import public_key_of, uid_of
from limpet.cluster.kinds import GRANT, KINDS
from limpet.cluster.kinds.grant import Grant, Role
from limpet.cluster.kinds.network import Network
from limpet.cluster.seal import open_sealed, seal
from limpet.cluster.snapshot.file import SnapshotFile
from limpet.controller.registry.tables import Tables
from limpet.controller.state.authority import create_cluster, node_certificate
from limpet.datapath.tunnel.state import DeviceSetting, PeerSetting
from limpet.datapath.tunnel.wireguard.device import UserspaceWireguard
from limpet.datapath.tunnel.wireguard.process import WireguardProcess

_ROOT = Path(__file__).resolve().parents[2]
_POD_CIDRS = (ip_network("10.244.0.0/16"),)
_PORT = 51820
_MTU_BYTES = 1440


def relay_tls(bed: Bed, rounds: int) -> list[Figure]:
    """Mbit/s of one TCP stream."""
    if bed.reference_only:
        return []
    through: list[float] = []
    straight: list[float] = []
    prefix = f"lbn-{os.getpid()}-"
    with (
        _first_of_all(),
        tempfile.TemporaryDirectory(dir=bed.disk_folder, prefix=prefix) as folder,
        _three(Path(folder)) as (one, other, relay),
    ):
        for number in range(rounds):
            for tls in (True, False) if number % 2 == 0 else (False, True):
                _point(one, other, tls=tls)
                (through if tls else straight).append(_stream_mbit_per_s(one, other))
        _point(one, other, tls=True)
        for part in (relay, one):
            part.ask({})
        _stream_mbit_per_s(one, other)
        told = {name: part.ask({}) for name, part in (("relay", relay), ("node", one))}
        bed.notes.append(f"relay-tls: event loops under load: {json.dumps(told)}")
    return [
        Figure(
            "relay-tls-tcp",
            "site to site through a relay's port 443, against straight: TCP",
            "Mbit/s",
            through,
            straight,
            Target(300, of_ratio=False, at_least=True),
        )
    ]


@contextmanager
def _first_of_all() -> Iterator[None]:
    """Whatever else runs on the machine is to take as little as it can."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, -20)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)


class _Part:
    """A process in a namespace; a site has a tunnel, too."""

    def __init__(self, name: str, folder: Path, port: int, undo: ExitStack) -> None:
        self.netns = Netns(name)
        undo.callback(self.netns.close)
        self._folder = folder
        self._port = port
        with self.netns.inside():
            ip("link set lo up")

    def start(self, undo: ExitStack) -> None:
        arguments = ["bench.paths.relay_tls_part", str(self._folder), str(self._port)]
        self._process = Part(self.netns, arguments, undo)

    def ask(self, question: dict[str, Any]) -> Any:
        """Raises: RuntimeError."""
        return self._process.ask(question)


class _Site(_Part):
    def __init__(self, number: int, uid: str, folder: Path, undo: ExitStack) -> None:
        super().__init__(f"tls{number}", folder, _PORT, undo)
        self.uid = uid
        self.address = f"192.0.2.{4 * number + 1}"
        self.gateway = f"192.0.2.{4 * number + 2}"
        self.inner = f"10.244.{number}.1"
        self.ends: dict[bool, Endpoint] = {}
        self.key = X25519PrivateKey.generate()
        self.ifname = f"lbn{os.getpid()}t{number}"
        script = subprocess.run(
            [_ROOT / "scripts/fetch-wireguard"], stdout=subprocess.PIPE, text=True, check=True
        )
        log = folder / "wireguard.log"
        process = WireguardProcess(self.ifname, log=log, program=script.stdout.strip())
        self._device = UserspaceWireguard(process)

    def plug(self, relay: Netns, undo: ExitStack) -> None:
        number = self.inner.split(".")[2]
        with self.netns.inside():
            ip(f"link add up0 type veth peer name site{number} netns {relay.name}")
            ip(f"addr add {self.address}/30 dev up0")
            ip("link set up0 up")
            ip(f"route add default via {self.gateway}")
        with relay.inside():
            ip(f"addr add {self.gateway}/30 dev site{number}")
            ip(f"link set site{number} up")
        with self.netns.inside():
            self._device.make()
            undo.callback(self._remove)
            self._device.write(DeviceSetting(self.key.private_bytes_raw(), _PORT, 0))
            ip(f"link set {self.ifname} mtu {_MTU_BYTES} up")
            ip(f"addr add {self.inner}/16 dev {self.ifname}")

    def _remove(self) -> None:
        with self.netns.inside():
            self._device.remove()

    def send_to(self, other: _Site, endpoint: Endpoint) -> None:
        public_key = other.key.public_key().public_bytes_raw()
        allowed = (ip_network(f"{other.inner}/32"),)
        with self.netns.inside():
            self._device.write(DeviceSetting(peers=(PeerSetting(public_key, allowed, endpoint),)))


@contextmanager
def _three(folder: Path) -> Iterator[tuple[_Site, _Site, _Part]]:
    """Two sites, and the relay between them."""
    with ExitStack() as undo:
        uids = write_three(folder)
        relay = _Part("tlsr", folder / "n0", 0, undo)
        one, other = (_Site(n, uids[n], folder / f"n{n}", undo) for n in (1, 2))
        with relay.netns.inside():
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        for site in (one, other):
            site.plug(relay.netns, undo)
        for part in (relay, one, other):
            part.start(undo)
        for site, peer in ((one, other), (other, one)):
            asked = {"relay": uids[0], "address": site.gateway, "peer": peer.uid}
            site.ends = {
                True: (ip_address("127.0.0.1"), site.ask(asked)),
                False: (ip_address(peer.address), _PORT),
            }
        yield one, other, relay


def write_three(folder: Path) -> list[str]:
    """A relay and two nodes that have joined, in `n0` to `n2`; their uids."""
    tables = Tables(quarantine_s=600.0)
    create_cluster(tables, Network("bench", 0, 0, (), _POD_CIDRS))
    authority = tables.authority
    keys = [os.urandom(32) for _ in range(3)]
    cluster_key = authority.cluster_keys[-1]
    pinned = public_key_of(authority.cluster_keys[0])
    entries = [_entry(number, key, cluster_key) for number, key in enumerate(keys)]
    for number, key in enumerate(keys):
        own = folder / f"n{number}"
        own.mkdir()
        pem = Ed25519PrivateKey.from_private_bytes(key).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        (own / "node.key").write_bytes(key)
        (own / "node.key.pem").write_bytes(pem)
        (own / "node.pem").write_text(node_certificate(authority, public_key_of(key)))
        (own / "ca.pem").write_text(authority.ca_certificate)
        joined = ClusterFile(f"n{number}", pinned, ("192.0.2.254:7470",))
        (own / "cluster.json").write_bytes(msgspec.json.encode(joined))
        snapshot = SnapshotFile(own / "snapshot.log", own_uid=entries[number].name)
        snapshot.read(pinned)
        network = open_sealed(tables.first_documents[0], Known(KINDS, pinned))
        snapshot.put([network, *entries])
        snapshot.durable().result()
        snapshot.close()
    return [entry.name for entry in entries]


def _entry(number: int, key: bytes, cluster_key: bytes) -> Document:
    public_key = public_key_of(key)
    grant = Grant(
        uid_of(public_key),
        f"n{number}",
        public_key,
        1,
        number + 1,
        segments=(ip_network(f"10.244.{number}.0/24"),),
        roles=frozenset({Role.RELAY if number == 0 else Role.EDGE}),
    )
    return seal(GRANT, grant, cluster_key)


def _point(one: _Site, other: _Site, *, tls: bool) -> None:
    """Both tunnels send by this way, and have shaken hands."""
    one.send_to(other, one.ends[tls])
    other.send_to(one, other.ends[tls])
    with one.netns.inside():
        subprocess.run(
            ["ping", "-c", "3", "-i", "0.1", "-w", "10", other.inner],
            check=True,
            capture_output=True,
        )


def _stream_mbit_per_s(client: _Site, server: _Site) -> float:
    """By iperf3, as the receiver has it."""
    with server.netns.inside():
        listening = subprocess.Popen(
            ["iperf3", "--server", "--one-off", "--forceflush"],
            stdout=subprocess.PIPE,
            text=True,
        )
    with listening:
        assert listening.stdout is not None
        try:
            if not any("listening" in line for line in listening.stdout):
                raise RuntimeError("iperf3 --server ended before it listened")
            command = ["iperf3", "--client", server.inner, "--time", "3", "--omit", "1"]
            with client.netns.inside():
                done = subprocess.run(
                    [*command, "--congestion", "cubic", "--json"],
                    capture_output=True,
                    text=True,
                    timeout=30,
                )
        finally:
            listening.kill()
    report = json.loads(done.stdout or "{}")
    if done.returncode != 0 or "error" in report:
        raise RuntimeError(f"iperf3: {report.get('error', done.stderr.strip())}")
    return float(report["end"]["sum_received"]["bits_per_second"]) / 1e6
