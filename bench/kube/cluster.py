"""A Kubernetes cluster of many nodes that are objects only: the real etcd, API server and
controller, and room for one real agent.

The control plane and the controller are in the namespace outside of the agent's node, which asks
both over a wire. What the other nodes are is written by the controller's own code.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any

import msgspec
from tests.controller.machines import Controller
from tests.waiting import wait_until

from bench.nodes.member import FIRST_ADDRESS, TUNNEL_PORT, node_key
from bench.nodes.node import OUTSIDE_ADDRESSES, Node, ip
from limpet.base.errors import LimpetError
from limpet.base.settings import Folders
from limpet.cloud.join import join
from limpet.cloud.join_requests import JoinOrder
from limpet.cloud.second_road.presence_object import PRESENCES, PresenceObject
from limpet.cluster.api import JoinRequest, Token, format_token, join_proof, secret_digest
from limpet.cluster.documents import Document
from limpet.cluster.keys import public_key_of, uid_of
from limpet.cluster.kinds import PRESENCE
from limpet.cluster.kinds.network import Network
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.seal import seal
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath
from limpet.controller.registry.records import TOKEN, TokenRecord
from limpet.controller.registry.registry import Registry
from limpet.controller.registry.tables import Tables
from limpet.controller.state import grants, published
from limpet.controller.state.authority import create_cluster, digest_of
from limpet.controller.store.kubernetes.store import KubernetesStore
from limpet.kubernetes.access.kubeconfig import find_access
from limpet.kubernetes.client import Client
from limpet.kubernetes.kinds.objects import LEASES, Lease, LeaseSpec, Metadata, Object, Resource
from limpet.kubernetes.kinds.resources import document_object
from limpet.lab.kube.control_plane import ADMINISTRATORS, ControlPlane
from limpet.paths.proven import write_paths

CONTROLLER = f"{OUTSIDE_ADDRESSES[0]}:7470"
OWN_NAME = "real"
"""Of the node that has an agent."""
_CRDS = Path(__file__).resolve().parents[2] / "deploy" / "crds"
_CLUSTER = "bench"
_NAMESPACE = "limpet-system"
_POD_CIDRS = (IPv4Network("10.0.0.0/8"), IPv6Network("fd00::/16"))
_JOIN_AT_ONCE, _AT_ONCE = 50, 4
_LEASES_NAMESPACE = "kube-node-lease"
_CONDITIONS = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
_SELDOM_CHANGED = {
    "capacity": {"cpu": "4", "memory": "8130812Ki", "pods": "110"},
    "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
    "images": [
        {"names": [f"registry.example/some/image-{number}:v1.{number}"], "sizeBytes": 12345678}
        for number in range(50)
    ],
}
"""Of a Node's status; kubelets tell of up to 50 images."""


class _KubeNode(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    status: dict[str, Any] | None = None


_KUBE_NODES = Resource("Node", "nodes", _KubeNode)


class KubeCluster:
    """API server and the nodes' objects are there when the constructor returns; `undo` ends it."""

    def __init__(self, node: Node, nodes: int, undo: ExitStack) -> None:
        """`nodes`: how many there are beside the real one."""
        self.nodes = nodes
        self._beats = 0
        self._node = node
        with node.outside.inside():
            # An API server looks for addresses by the default route.
            ip("route add default dev lo")
        folder = node.folder / "plane"
        self.plane = ControlPlane(node.outside.name, folder, OUTSIDE_ADDRESSES)
        undo.callback(self.plane.stop)
        self.plane.start(only_api=True)
        self.plane.kubectl("apply", "--server-side", "-f", str(_CRDS))
        self.plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        self.plane.kubectl("create", "namespace", _NAMESPACE)
        self.kubeconfig = self.plane.write_kubeconfig(
            "bench", "bench", groups=[ADMINISTRATORS], inside=True
        )
        asyncio.run(self.with_client(self._make_nodes))

    async def _make_nodes(self) -> None:
        """As the controller writes what it is asked for over HTTPS."""
        store = KubernetesStore(self._client, _NAMESPACE)
        registry = Registry(store, 0.0)
        await registry.start()
        network = Network(_CLUSTER, 0, 0, (), _POD_CIDRS)
        await registry.change(lambda tables: create_cluster(tables, network))
        numbers = range(1, self.nodes + 1)
        for start in range(0, self.nodes, _JOIN_AT_ONCE):
            some = numbers[start : start + _JOIN_AT_ONCE]
            await asyncio.gather(*(registry.change(_joining(number)) for number in some))
        await registry.stop()
        await store.close()

    async def with_client(self, work: Callable[[], Awaitable[None]]) -> None:
        """`work` may ask the API server, from this process."""
        self._client = Client(find_access(self.plane.kubeconfig))
        try:
            await work()
        finally:
            self._client.close()
            await asyncio.sleep(0)  # what was aborted ends

    def start_controller(self, undo: ExitStack) -> None:
        """It leads, and the real node has joined it, but its agent does not run."""
        outside = self._node.outside.name
        made = Controller(
            self._node.folder / "controller",
            store="kubernetes",
            kubeconfig=str(self.kubeconfig),
            namespace=_NAMESPACE,
            listen=CONTROLLER,
            cluster=_CLUSTER,
            pod_cidrs=[str(each) for each in _POD_CIDRS],
            log_level="warning",
        )
        made.prefix = ["nsenter", f"--net=/run/netns/{outside}"]
        undo.callback(made.kill_if_it_runs)
        made.start()
        wait_until(lambda: leads(made), "the controller does not lead")
        token = made.token()
        folders = Folders(
            state_dir=self._node.folder / "state",
            run_dir=self._node.run_folder,
            data_dir=self._node.folder / "networks",
        )
        with self._node.netns.inside():
            join(folders, JoinOrder(token, (CONTROLLER,), OWN_NAME), ())
        paths = {
            uid_of(public_key_of(node_key(number))): PeerPath(
                transports.VXLAN, underlay=FIRST_ADDRESS + number
            )
            for number in range(1, self.nodes + 1)
        }
        write_paths(folders.cluster_dir / "paths.json", paths)
        self.controller = made

    # What the other nodes do

    async def publish(self, number: int, sequence: int) -> None:
        """As a node writes its own presence: it reads the object, and replaces it."""
        name = name_of(number)
        found = await self._client.get(PRESENCES, name)
        wanted = document_object(presence_of(number, sequence), name, name)
        new = msgspec.convert(wanted, PresenceObject)
        new = msgspec.structs.replace(new, metadata=found.metadata, record=found.record)
        await self._client.replace(PRESENCES, new)

    async def create_nodes(self) -> None:
        """Nodes of Kubernetes, as a kubelet describes one, and their Leases."""

        async def create(number: int) -> None:
            metadata = Metadata(name=name_of(number))
            status = {**_SELDOM_CHANGED, **_status(0)}
            await self._client.create(_KUBE_NODES, _KubeNode(metadata=metadata, status=status))
            spec = LeaseSpec(
                holder_identity=name_of(number), lease_duration_seconds=40, renew_time=_time(0)
            )
            lease = Lease(metadata=metadata, spec=spec)
            await self._client.create(LEASES, lease, namespace=_LEASES_NAMESPACE)

        await self._of_each(create)

    async def beat_hearts(self) -> None:
        """Each node renews its Lease, and tells its status once."""
        self._beats += 1

        async def beat(number: int) -> None:
            name = name_of(number)
            renewed = {"spec": {"renewTime": _time(self._beats)}}
            await self._client.patch(LEASES, name, renewed, namespace=_LEASES_NAMESPACE)
            told = {"status": _status(self._beats)}
            await self._client.patch(_KUBE_NODES, name, told, status=True)

        await self._of_each(beat)

    async def _of_each(self, do: Callable[[int], Awaitable[None]]) -> None:
        some = asyncio.Semaphore(_AT_ONCE)

        async def one(number: int) -> None:
            async with some:
                await do(number)

        await asyncio.gather(*(one(number) for number in range(1, self.nodes + 1)))


def name_of(number: int) -> str:
    return f"n{number}"


def _time(beats: int) -> str:
    return f"2026-01-01T{beats // 60:02}:{beats % 60:02}:00.000000Z"


def _status(beats: int) -> dict[str, Any]:
    """What a kubelet changes each time."""
    at = f"{_time(beats).partition('.')[0]}Z"
    return {
        "conditions": [
            {
                "type": kind,
                "status": str(kind == "Ready"),
                "lastHeartbeatTime": at,
                "lastTransitionTime": "2026-01-01T00:00:00Z",
                "reason": "KubeletHasSufficientMemory",
                "message": "kubelet has sufficient memory available",
            }
            for kind in _CONDITIONS
        ]
    }


def presence_of(number: int, sequence: int = 1) -> Document:
    """Signed; with each sequence it has another MAC."""
    key = node_key(number)
    said = Presence(
        uid_of(public_key_of(key)),
        sequence,
        f"boot-{number}",
        addresses=(FIRST_ADDRESS + number,),
        port=7471,
        tunnel_port=TUNNEL_PORT,
        vtep_macs={4: f"02:4c:{sequence & 255:02x}:00:{number >> 8:02x}:{number & 255:02x}"},
    )
    return seal(PRESENCE, said, key)


def _joining(number: int) -> Callable[[Tables], None]:
    key, name = node_key(number), name_of(number)

    def make(tables: Tables) -> None:
        digest = digest_of(tables.authority)
        token = Token(secrets.token_hex(5), secrets.token_bytes(20), digest)
        record = TokenRecord(secret_digest(token.secret), 0.0, 1e9, ("edge",), (), {})
        tables.put(TOKEN, token.id, record)
        text = format_token(token)
        request = JoinRequest(text, name, public_key_of(key), join_proof(text, name, key))
        uid = grants.join(tables, request, digest, 0.0).uid
        published.publish(tables, uid, presence_of(number).sealed, 0.0)

    return make


def leads(controller: Controller) -> bool:
    try:
        controller.ask("network.show")
    except LimpetError:
        return False
    return True
