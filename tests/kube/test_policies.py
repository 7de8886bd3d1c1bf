"""A real agent holds its pods to what a real API server tells of policies, also without it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from limpet.lab.kube.control_plane import ControlPlane
from limpet.lab.world.node import LabNode
from tests.agent.test_policies import Knock, limpet
from tests.beds.namespaces import Netns, NetnsFactory, connect_namespaces
from tests.kube.installed.test_manifests import User, admin, bound_token
from tests.kube.nodes.test_joining_agent import kubeconfig_inside
from tests.waiting import wait_until

__all__ = ["admin"]

POLICY: dict[str, Any] = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {
        "podSelector": {"matchLabels": {"app": "web"}},
        "ingress": [
            {
                "from": [
                    {
                        "podSelector": {"matchLabels": {"app": "client"}},
                        "namespaceSelector": {"matchLabels": {"team": "a"}},
                    }
                ],
                "ports": [{"port": "http"}],
            }
        ],
    },
}


OWN, OTHER = "192.0.2.1", "192.0.2.2"
"""Addresses of nodes."""
ACCOUNT = {
    "apiVersion": "v1",
    "kind": "ServiceAccount",
    "metadata": {"name": "default", "namespace": "default"},
}


def pod(name: str, app: str, node: str = "node-a", **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "i", "ports": [{"name": "http", "containerPort": 80}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": app}},
        "spec": {"nodeName": node, "containers": [container], **spec},
    }


def apply(plane: ControlPlane, *objects: dict[str, Any]) -> None:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)


@pytest.fixture
def node(admin: User, tmp_path: Path) -> Iterator[LabNode]:
    """On the API server's machine, with the account of the agent; its segment is its own."""
    node = LabNode(
        admin.api.netns,
        tmp_path / "node-a",
        create=False,
        source="kubernetes",
        segments=["10.244.7.0/24"],
        policies="on",
        kubernetes_kubeconfig=str(kubeconfig_inside(admin.api, bound_token(admin, "node-a"))),
    )
    try:
        yield node
    finally:
        for each in node.pods.values():
            each.remove()
        node.agent.kill()
        shutil.rmtree(node.run_dir, ignore_errors=True)


def test_pods_are_held_to_policies_of_an_api_server_and_also_while_it_is_away(
    admin: User, node: LabNode
) -> None:
    plane = admin.api
    apply(
        plane, ACCOUNT, POLICY, pod("web", "web"), pod("client", "client"), pod("stranger", "other")
    )
    node.start_agent()
    wait_until(lambda: node.ask("policy.list")["policies"], "the policy is heard")
    web, client, stranger = (node.pod(name) for name in ("web", "client", "stranger"))
    for each in (web, client, stranger):
        each.add()
    knock = Knock(node)
    assert not knock(client, web), "its namespace has no such label"

    plane.kubectl("label", "namespace", "default", "team=a")
    wait_until(lambda: shown(node)["sides"][0]["rules"][0]["addresses"], "the label is heard")
    wait_until(lambda: knock(client, web), "the client is let in")
    assert not knock(client, web, 81)
    assert not knock(stranger, web)

    kept = Path(node.settings["state_dir"]) / "policies-of-kubernetes.jsonl"
    wait_until(lambda: kept.exists() and b'"team"' in kept.read_bytes(), "it is on the disk")
    node.stop_agent()
    node.settings["kubernetes_server"] = "https://192.0.2.99:6443"  # nobody is there
    for family in ("inet", "bridge"):
        node.run("nft", "delete", "table", family, "limpet_policy")
    node.start_agent()
    assert knock(client, web)
    assert not knock(stranger, web)
    again = node.pod("stranger", container_id="stranger-again")
    again.add()
    assert not knock(again, web)
    done = limpet(node, "policy", "apply", "-", text=json.dumps(POLICY))
    assert "(change them there, with kubectl)" in done.stderr


def test_pods_of_the_cluster_are_heard_when_a_policy_needs_them(admin: User, node: LabNode) -> None:
    plane = admin.api
    apply(plane, ACCOUNT, pod("web", "web"), pod("client", "client"), pod("stranger", "other"))
    plane.kubectl("delete", "networkpolicies", "--all")
    plane.kubectl("label", "namespace", "default", "--overwrite", "team=a")
    node.start_agent()
    kept = Path(node.settings["state_dir"]) / "policies-of-kubernetes.jsonl"
    wait_until(lambda: kept.exists() and b'"team"' in kept.read_bytes(), "all there is is heard")
    web, client, stranger = (node.pod(name) for name in ("web", "client", "stranger"))
    for each in (web, client, stranger):
        each.add()
    knock = Knock(node)
    assert knock(stranger, web)
    assert b'"client"' not in kept.read_bytes()

    apply(plane, POLICY)
    wait_until(lambda: not knock(stranger, web), "the policy holds")
    wait_until(lambda: knock(client, web), "its peers are known")
    wait_until(lambda: b'"client"' in kept.read_bytes(), "they are on the disk")


def test_pods_with_a_nodes_network_are_that_node_and_no_pods(
    admin: User, node: LabNode, make_netns: NetnsFactory
) -> None:
    """By what an API server has of them: `hostNetwork`, and the node's address as their own."""
    plane, own, other = admin.api, Netns(node.name), make_netns("other")
    connect_namespaces(own, "up0", other, "up0")
    own.ip(f"address add {OWN}/24 dev up0")
    other.ip(f"address add {OTHER}/24 dev up0", f"route add 10.244.7.0/24 via {OWN}")
    plane.kubectl("delete", "pods", "--all", "--grace-period=0", "--force")
    apply(plane, ACCOUNT, POLICY, pod("web", "web"), pod("far", "client", "node-b"))
    plane.kubectl("label", "namespace", "default", "--overwrite", "team=a")
    give(plane, "far", OTHER)
    node.start_agent()
    wait_until(lambda: node.ask("policy.list")["policies"], "the policy is heard")
    web = node.pod("web")
    web.add()
    knock = Knock(node)
    wait_until(lambda: knock(other, web), "a pod with that address is let in")

    plane.kubectl("delete", "pod", "far", "--grace-period=0", "--force")
    apply(plane, pod("far", "client", "node-b", hostNetwork=True))
    give(plane, "far", OTHER)
    wait_until(lambda: not knock(other, web), "it is the node's address now, which no selector is")
    apply(plane, pod("web-too", "web", hostNetwork=True))
    give(plane, "web-too", OWN)
    kept = Path(node.settings["state_dir"]) / "policies-of-kubernetes.jsonl"
    wait_until(lambda: kept.exists() and OWN.encode() in kept.read_bytes(), "one of this node, too")
    assert not knock(other, web)
    assert knock(own, web), "the own node is always let in"
    assert knock(other, OWN, 81), "the node is not closed"
    assert knock(web, OWN, 81)

    block = {"from": [{"ipBlock": {"cidr": f"{OTHER}/32"}}], "ports": [{"port": "http"}]}
    apply(plane, {**POLICY, "spec": {**POLICY["spec"], "ingress": [block]}})
    wait_until(lambda: knock(other, web), "its address lets it in")
    assert not knock(other, web, 81)


def give(plane: ControlPlane, name: str, address: str) -> None:
    """As the pod's kubelet tells its address."""
    status = {"status": {"podIP": address, "podIPs": [{"ip": address}]}}
    words = ("--subresource=status", "--type=merge", "-p", json.dumps(status))
    plane.kubectl("patch", "pod", name, *words)


def shown(node: LabNode) -> dict[str, Any]:
    return node.ask("policy.show", namespace="default", name="web")
