"""What is kept of Kubernetes' Nodes, and that only what is told gone counts as deleted."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address, ip_network

import msgspec

from limpet.controller.node_objects.node import KubernetesNode, read_node
from limpet.controller.orchestrator.nodes import Nodes
from limpet.kubernetes.access.access import plain_access
from limpet.kubernetes.client import Client
from limpet.kubernetes.kinds.objects import Metadata
from limpet.kubernetes.reflector_state import ObjectChanges


def node(name: str, uid: str = "u1", **changes: str) -> KubernetesNode:
    return KubernetesNode(metadata=Metadata(name=name, uid=uid, labels=changes or None))


def test_a_node_is_read_with_its_cidrs_and_its_numeric_addresses() -> None:
    text = """{"metadata": {"name": "n1", "uid": "u1", "labels": {"a": "b"}},
      "spec": {"podCIDR": "10.244.3.0/24", "podCIDRs": ["10.244.3.0/24", "fd00:244:0:3::/64", "x"]},
      "status": {"capacity": {"pods": "110"}, "addresses": [
        {"type": "InternalIP", "address": "192.0.2.7"}, {"type": "Hostname", "address": "n1"}]}}"""

    found = read_node(msgspec.json.decode(text, type=KubernetesNode))

    assert (found.name, found.uid, found.labels) == ("n1", "u1", {"a": "b"})
    assert found.pod_cidrs == (ip_network("10.244.3.0/24"), ip_network("fd00:244:0:3::/64"))
    assert found.unreadable_cidrs == ("x",)
    assert found.addresses == (ip_address("192.0.2.7"),)


def test_only_a_node_that_was_told_deleted_counts_as_deleted() -> None:
    """Not one that a new list lacks, nor one that is there again."""

    async def run() -> None:
        client = Client(plain_access("http://127.0.0.1:1"))
        nodes = Nodes(client)
        assert not nodes.listed
        await nodes._hear(ObjectChanges(put=[node("n1"), node("n2"), node("n3")], listed=True))
        assert nodes.listed
        assert nodes.objects.keys() == {"n1", "n2", "n3"}

        await nodes._hear(ObjectChanges(gone=[("", "n1")]))
        await nodes._hear(ObjectChanges(gone=[("", "n2")], listed=True))
        await nodes._hear(ObjectChanges(gone=[("", "n3")], put=[node("n3", "u2")]))
        assert nodes.deleted.keys() == {"n1"}
        assert nodes.deleted["n1"][0].uid == "u1"
        assert nodes.objects["n3"].uid == "u2"

        await nodes._hear(ObjectChanges(put=[node("n1", "u3")]))
        assert not nodes.deleted
        client.close()
        await asyncio.sleep(0)

    asyncio.run(run())


def test_what_nobody_looks_at_is_no_change() -> None:
    """Heartbeats of kubelets change a Node all the time."""

    async def run() -> None:
        client = Client(plain_access("http://127.0.0.1:1"))
        nodes = Nodes(client)
        await nodes._hear(ObjectChanges(put=[node("n1")], listed=True))
        changed, turn, before = nodes.changed, nodes.turn, nodes.objects["n1"]
        await nodes._hear(ObjectChanges(put=[node("n1")]))
        assert not changed.done()
        assert nodes.turn == turn
        assert nodes.objects["n1"] is before
        await nodes._hear(ObjectChanges(put=[node("n1", site="quay")]))
        assert changed.done()
        assert nodes.turn == turn + 1
        client.close()
        await asyncio.sleep(0)

    asyncio.run(run())
