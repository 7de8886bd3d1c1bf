"""A real agent that has joined a cluster of 5,000 nodes, started from what is on its disk."""

from __future__ import annotations

import hashlib
import time
from ipaddress import IPv4Address, IPv4Network, IPv6Network
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.bed import Bed
from bench.figures import Figure, Target
from bench.nodes.node import OUTSIDE_ADDRESSES, Node, output_of
from bench.nodes.plugins import Limpet
from bench.nodes.resident import cpu_s
from limpet.base.addresses import Address
from limpet.base.ownership import ROUTE_TABLE, VXLAN_IFNAME_PREFIX
from limpet.cluster.documents import Document, Known
from limpet.cluster.identity import ClusterFile
from limpet.cluster.keys import public_key_of, uid_of
from limpet.cluster.kinds import GRANT, KINDS, PRESENCE
from limpet.cluster.kinds.grant import Grant, Role
from limpet.cluster.kinds.network import Network
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.seal import open_sealed, seal
from limpet.cluster.snapshot.file import SnapshotFile
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath
from limpet.controller.registry.tables import Tables
from limpet.controller.state.authority import create_cluster, node_certificate
from limpet.paths.proven import write_paths

NODES = 5000
TUNNEL_PORT = 25000
"""Of all nodes' tunnels."""
FIRST_ADDRESS = IPv4Address("172.16.0.0")
"""Each node's is as much above it as its number says."""
_WATCHED_S = 5.0
_POD_CIDRS = (IPv4Network("10.0.0.0/8"), IPv6Network("fd00::/16"))


def member(bed: Bed, rounds: int) -> list[Figure]:
    """How soon it is ready, what it keeps in memory, what it costs while nothing changes."""
    if bed.reference_only:
        return []
    ready, resident, busy = [], [], []
    node = Node("member", bed.disk_folder)
    try:
        # As the agent that `Limpet` starts has it.
        write_cluster(node.folder / "state" / "cluster", NODES)
        settings = {"segments": [], "peer_port": 7471}
        plugin = Limpet(node, settings=settings)
        try:
            ready.append(plugin.ready_ms)
            for _ in range(rounds - 1):
                plugin.stop()
                ready.append(plugin.start())
            _check_programmed(node)
            for _ in range(rounds):
                began_s, used_s = time.monotonic(), cpu_s(plugin.agent_pid)
                time.sleep(_WATCHED_S)
                used_s = cpu_s(plugin.agent_pid) - used_s
                busy.append(used_s / (time.monotonic() - began_s) * 100)
                resident.append(plugin.resident_mb())
        except Exception as error:
            error.add_note(plugin.log_tail())
            raise
        finally:
            plugin.close()
    finally:
        node.close()
    what = f"agent in a cluster of {NODES} nodes"
    small = Target(100, of_ratio=False)
    return [
        Figure("member-ready", f"{what}: start to ready", "ms", ready),
        Figure("member-memory", f"{what}: resident", "MB", resident, target=small),
        Figure("member-cpu", "... while no other node answers: of one core", "CPU %", busy),
    ]


def write_cluster(folder: Path, nodes: int, *, tunnelled: bool = False) -> None:
    """What `limpet join` writes for the first of them, and a snapshot of all.

    `tunnelled`: the others are reached through encrypted tunnels.
    """
    folder.mkdir(parents=True)
    tables = Tables(0.0)
    create_cluster(tables, Network("bench", 0, 0, (), _POD_CIDRS))
    authority = tables.authority
    own = node_key(0)
    pem = Ed25519PrivateKey.from_private_bytes(own).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (folder / "node.key").write_bytes(own)
    (folder / "node.key.pem").write_bytes(pem)
    (folder / "node.pem").write_text(node_certificate(authority, public_key_of(own)))
    (folder / "ca.pem").write_text(authority.ca_certificate)
    pinned = public_key_of(authority.cluster_keys[0])
    snapshot = SnapshotFile(folder / "snapshot.log", own_uid=uid_of(public_key_of(own)))
    snapshot.read(pinned)
    cluster_key = authority.cluster_keys[-1]
    entries = [_entry(number, cluster_key) for number in range(nodes)]
    network = open_sealed(tables.first_documents[0], Known(KINDS, pinned))
    snapshot.put([network, *(document for entry in entries for document in entry)])
    snapshot.durable().result()
    snapshot.close()
    write_paths(
        folder / "paths.json",
        {said.name: _path(said.value, tunnelled=tunnelled) for _grant, said in entries[1:]},
    )
    joined = ClusterFile("n0", pinned, (f"{OUTSIDE_ADDRESSES[0]}:7470",))
    (folder / "cluster.json").write_bytes(msgspec.json.encode(joined))


def _path(said: Presence, *, tunnelled: bool) -> PeerPath:
    if tunnelled:
        return PeerPath(transports.TUNNEL, endpoint=(_address(said), TUNNEL_PORT))
    return PeerPath(transports.VXLAN, underlay=_address(said))


def _address(said: Presence) -> Address:
    return said.addresses[0]


def _check_programmed(node: Node) -> None:
    """RuntimeError unless every other node is reached."""
    for version in (4, 6):
        routes = output_of(
            node.netns, ["ip", f"-{version}", "route", "show", "table", str(ROUTE_TABLE)]
        )
        found = routes.count(f" dev {VXLAN_IFNAME_PREFIX}4 ")
        if found != NODES - 1:
            raise RuntimeError(f"member: {found} routes of IPv{version} to {NODES - 1} nodes")


def node_key(number: int) -> bytes:
    """Of the node with that number."""
    return hashlib.sha256(b"bench %d" % number).digest()


def _entry(number: int, cluster_key: bytes) -> tuple[Document, Document]:
    """Grant and presence."""
    public_key = public_key_of(node_key(number))
    uid = uid_of(public_key)
    v4, v6 = (int(cidr.network_address) for cidr in _POD_CIDRS)
    grant = Grant(
        uid,
        f"n{number}",
        public_key,
        1,
        number + 1,
        segments=(
            IPv4Network((v4 + (number << 8), 24)),
            IPv6Network((v6 + (number << 64), 64)),
        ),
        roles=frozenset({Role.EDGE}),
    )
    presence = Presence(
        uid,
        1,
        f"boot-{number}",
        addresses=(FIRST_ADDRESS + number,),
        port=7471,
        tunnel_port=TUNNEL_PORT,
        vtep_macs={4: f"02:4c:04:00:{number >> 8:02x}:{number & 255:02x}"},
    )
    return seal(GRANT, grant, cluster_key), seal(PRESENCE, presence, node_key(number))
