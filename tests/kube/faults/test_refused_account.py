"""An agent whose account may not read what Limpet writes is told of by doctor, at once."""

from __future__ import annotations

from limpet.lab.world.node import LabNode
from tests.controller.machines import Controller
from tests.kube.installed.test_manifests import User, admin
from tests.kube.nodes.test_joining_agent import cluster, connected, controller, node
from tests.lab.bed import findings
from tests.waiting import wait_until

__all__ = ["admin", "controller", "node"]

FINDING = "api-server-refuses"


def test_an_account_without_rights_is_named_until_there_is_one_with_them(
    admin: User, node: LabNode, controller: Controller
) -> None:
    controller.start()
    node.start_agent()
    wait_until(lambda: cluster(node) is not None and connected(node), "it is a node")
    assert FINDING not in findings(node)
    own = node.settings["kubernetes_kubeconfig"]
    nobody = admin.api.write_kubeconfig("somebody", "somebody", inside=True)

    node.stop_agent()
    node.settings["kubernetes_kubeconfig"] = str(nobody)
    node.start_agent()

    said = wait_until(lambda: findings(node).get(FINDING, ""), "it is named")
    assert 'User "somebody" cannot list resource' in said
    assert "api-server-away" not in findings(node)
    assert node.ask("status")["ready"]

    node.stop_agent()
    node.settings["kubernetes_kubeconfig"] = own
    node.start_agent()
    wait_until(lambda: cluster(node) is not None and connected(node), "it hears the API server")
    assert FINDING not in findings(node)
