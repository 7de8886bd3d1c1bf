"""The tunnel's side of a node with IPsec: strongSwan, fetched, with certificates of one cluster."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Hashable, Iterable, Mapping
from functools import cache
from pathlib import Path

import pytest
import vici
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from limpet.base.ownership import IPSEC_FOLDER, IPSEC_IFNAME
from limpet.cluster.keys import public_key_of
from limpet.cluster.nodes import NodeEntry
from limpet.cluster.topology.tunnel_end import ipsec_mtu_bytes
from limpet.controller.registry.records import AuthorityRecord
from limpet.controller.registry.tables import Tables
from limpet.controller.state.authority import create_cluster, node_certificate
from limpet.datapath.tunnel.diff import DropTunnel, TunnelChange
from limpet.datapath.tunnel.ipsec.apply import IpsecKernel
from limpet.datapath.tunnel.ipsec.codec import WHOLE, connection_name
from limpet.datapath.tunnel.ipsec.daemon import IpsecDaemon
from limpet.datapath.tunnel.ipsec.esp import esp_lack
from limpet.datapath.tunnel.ipsec.plan import ipsec_state
from limpet.datapath.tunnel.ipsec.process import ANSWER_S, IpsecProcess
from limpet.datapath.tunnel.ipsec.state import IkeSa, IpsecIdentity
from limpet.datapath.tunnel.key import tunnel_public_key
from limpet.datapath.tunnel.state import TunnelState
from limpet.linux.netlink.socket import RouteSocket
from tests.beds.overlay_bed import Node
from tests.beds.tunnel_bed import Tunnel
from tests.unit.cluster_values import network, node_key
from tests.waiting import PATIENCE_S, wait_until


@cache
def charon() -> str:
    """The program, fetched if it is not there."""
    script = Path(__file__).parents[4] / "scripts" / "fetch-strongswan"
    done = subprocess.run([script], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@cache
def authority() -> AuthorityRecord:
    """A cluster's, as its controller makes it."""
    tables = Tables(quarantine_s=600.0)
    create_cluster(tables, network(cluster="test"))
    return tables.authority


def identity(number: int, uid: str, public_key: bytes) -> IpsecIdentity:
    """A node's, with the files that it got when it joined."""
    private_key = Ed25519PrivateKey.from_private_bytes(node_key(number)).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    certificate = node_certificate(authority(), public_key).encode()
    return IpsecIdentity(uid, private_key, certificate)


def ipsec_kernel(route: RouteSocket, folder: Path, program: str) -> IpsecKernel:
    """Of a node without peers."""
    public_key = public_key_of(node_key(1))
    return IpsecKernel(
        route,
        IpsecProcess(folder, program=program),
        identity=identity(1, "uid", public_key),
        own_key=public_key,
        identity_key_of=lambda key: key,
    )


class IpsecTunnel(Tunnel):
    kernel: IpsecKernel
    inner_port = 0
    in_kernel = False

    def __init__(self, node: Node, folder: Path, ifname: str) -> None:
        self.run_dir = Path(tempfile.mkdtemp(prefix="lgi"))  # a socket's path is a short one
        self.run_folder = self.run_dir / IPSEC_FOLDER
        self._identity_keys: dict[bytes, bytes] = {}
        super().__init__(node, folder, IPSEC_IFNAME)
        # For looking on: a connection of its own.
        self.daemon = IpsecDaemon(self.kernel.process, self.identity, waits_s=PATIENCE_S)

    def restart(self) -> None:
        if hasattr(self, "kernel"):
            self.kernel.close()
        self.kernel = IpsecKernel(
            self.node.route,
            IpsecProcess(self.run_folder, program=self.program, in_kernel=self.in_kernel),
            identity=self.identity,
            own_key=self.key.public_key,
            identity_key_of=self._identity_key_of,
            inner_port=self.inner_port,
        )

    @property
    def program(self) -> str:
        return charon()

    @property
    def identity(self) -> IpsecIdentity:
        return identity(self.node.number, self.node.uid, self.node.grant.public_key)

    def _identity_key_of(self, public_key: bytes) -> bytes:
        return self._identity_keys[public_key]

    @property
    def pid(self) -> int:
        with self.node.netns.entered():
            pid = self.kernel.process.pid
        assert pid is not None
        return pid

    def settle(self, nodes: Mapping[str, NodeEntry]) -> list[TunnelChange]:
        grants = [entry.grant for entry in nodes.values()]
        self._identity_keys |= {tunnel_public_key(g.public_key): g.public_key for g in grants}
        return super().settle(nodes)

    def wanted(self, state: TunnelState) -> TunnelState:
        return ipsec_state(state, (4, 6))

    def mtu_bytes(self, uid: str, link_mtu_bytes: int) -> int:
        return ipsec_mtu_bytes(super().mtu_bytes(uid, link_mtu_bytes))

    def connect(self, peers: Iterable[Tunnel]) -> None:
        keys = {peer.key.public_key for peer in peers}
        wait_until(lambda: keys == {sa.public_key for sa in self.sas() if sa.children})

    def session(self, peer: Tunnel) -> Hashable:
        """The one that stays: two ends that begin at once make two, and end one of them soon."""

        def only() -> frozenset[int]:
            found = {sa.uniqueid for sa in self.sas() if sa.public_key == peer.key.public_key}
            return frozenset(found if len(found) == 1 else ())

        return wait_until(only, "one IKE_SA is left")

    def made(self) -> frozenset[tuple[int, int]]:
        """The IKE_SAs with their children: other ones when they were made anew."""
        return frozenset(
            (sa.uniqueid, child.uniqueid) for sa in self.sas() for child in sa.children
        )

    def rekey(self, what: str) -> None:
        """All SAs, `child` or `ike`."""
        for ike, child in self.made():
            number = str(child if what == "child" else ike)
            with self.daemon.process.connect(ANSWER_S) as connection:
                vici.Session(connection).rekey({f"{what}-id": number})

    def begins(self, peer: Tunnel) -> bool:
        """Whether an IKE_SA comes about that this end has begun."""
        with self.daemon.process.connect(ANSWER_S) as connection:
            session = vici.Session(connection)
            name = connection_name(peer.node.grant.public_key, 0)
            try:
                list(session.initiate({"ike": name, "child": WHOLE, "timeout": "1500"}))
            except vici.exception.CommandException:
                return False
        return True

    @property
    def log(self) -> str:
        return (self.run_folder / "charon.log").read_text(encoding="utf-8", errors="replace")

    def sas(self) -> list[IkeSa]:
        with self.node.netns.entered():
            return self.daemon.sas()

    def remove(self) -> None:
        with self.node.netns.entered():
            try:
                self.kernel.observe(TunnelState())
                assert self.kernel.apply([DropTunnel(IPSEC_IFNAME)]) == []
            finally:
                self.kernel.close()
                self.daemon.close()
        shutil.rmtree(self.run_dir)


class KernelEspTunnel(IpsecTunnel):
    """ESP is the kernel's."""

    in_kernel = True


def skip_without_esp() -> None:
    """Skips the test where the kernel makes no ESP."""
    if esp_lack():
        pytest.skip(f"this kernel makes no ESP for tunnels: {esp_lack()}")
