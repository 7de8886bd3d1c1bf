"""A real agent that is in no cluster gets into it by itself, and goes on as a node of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from limpet.base.errors import LimpetError
from limpet.lab.kube.control_plane import ControlPlane
from limpet.lab.world.node import LabNode
from tests.controller.machines import Controller
from tests.kube.installed.test_accounts import settings_in_the_manifests
from tests.kube.installed.test_manifests import User, admin, bound_token
from tests.kube.nodes.test_joining import FOR_CONTROLLER
from tests.waiting import wait_until

__all__ = ["admin"]


@pytest.fixture
def controller(admin: User, tmp_path: Path) -> Iterator[Controller]:
    """On the API server's machine, not started."""
    kubeconfig = admin.api.write_kubeconfig(
        "controller", "controller", groups=["system:masters"], inside=True
    )
    settings = {**settings_in_the_manifests(), "kubeconfig": str(kubeconfig)}
    del settings["metrics_listen"]
    controller = Controller(tmp_path / "c", pod_cidrs=["10.0.0.0/16"], **settings)
    controller.prefix = ["nsenter", f"--net=/run/netns/{admin.api.netns}"]
    try:
        yield controller
    finally:
        controller.kill_if_it_runs()


@pytest.fixture
def node(admin: User, tmp_path: Path) -> Iterator[LabNode]:
    """There too, with what a kubelet mounts into the agent's pod."""
    token_file = tmp_path / "token"
    token_file.write_text(bound_token(admin, "node-a", FOR_CONTROLLER))
    node = LabNode(
        admin.api.netns,
        tmp_path / "node-a",
        create=False,
        source="kubernetes",
        kubernetes_kubeconfig=str(kubeconfig_inside(admin.api, bound_token(admin, "node-a"))),
        kubernetes_join_token_file=str(token_file),
        log_level="debug",
    )
    try:
        yield node
    finally:
        node.agent.kill()
        shutil.rmtree(node.run_dir, ignore_errors=True)


def kubeconfig_inside(api: ControlPlane, token: str) -> Path:
    path = api.write_kubeconfig("agent-node-a", "nobody", inside=True)
    config = yaml.safe_load(path.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    path.write_text(yaml.safe_dump(config))
    return path


def test_an_agent_says_why_it_is_not_in_and_becomes_a_node_in_the_same_process(
    node: LabNode, controller: Controller
) -> None:
    node.start_agent()
    pid = node.agent_pid
    wait_until(lambda: "no controller has made" in reason(node), "it asks for the controllers")
    status = node.ask("status")
    assert status["cluster"] is None
    assert not status["ready"]

    controller.start()
    wait_until(lambda: cluster(node) is not None, "it has joined, and answers as a node")

    status = node.ask("status")
    assert status["pid"] == pid == node.agent_pid
    assert status["cluster"]["node"] == "node-a"
    wait_until(lambda: node.ask("status")["ready"], "pods can be started")
    wait_until(lambda: connected(node), "it speaks with the controller and hears the API server")

    assert_tokens_are_told_nowhere(node, controller)

    node.stop_agent()
    node.start_agent()
    assert cluster(node) is not None


def assert_tokens_are_told_nowhere(node: LabNode, controller: Controller) -> None:
    """Those of the accounts that the agent shows: in no log, for no `ps`, in no answer."""
    kubeconfig = yaml.safe_load(Path(node.settings["kubernetes_kubeconfig"]).read_text())
    tokens = [user["user"]["token"] for user in kubeconfig["users"]]
    tokens.append(Path(node.settings["kubernetes_join_token_file"]).read_text())
    said = {"status": str(node.ask("status")), "peers": str(node.ask("peers"))}
    for name, log in (("agent", node.agent.log), ("controller", controller.log)):
        said[f"the {name}'s log"] = log.read_text(errors="replace")
    for name, pid in (("agent", node.agent_pid), ("controller", controller.pid)):
        for file in ("cmdline", "environ"):
            said[f"{file} of the {name}"] = Path(f"/proc/{pid}/{file}").read_text(errors="replace")
    for token in tokens:
        head, _, signature = token.strip().rpartition(".")
        for where, text in said.items():
            # What is before the signature is no secret, and nobody needs it there either.
            assert signature not in text, where
            assert head not in text, where


def reason(node: LabNode) -> str:
    return " ".join(node.ask("status")["reasons"])


def cluster(node: LabNode) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] | None = node.ask("status")["cluster"]
    except LimpetError:
        return None  # it begins anew just now
    return found


def connected(node: LabNode) -> bool:
    found = cluster(node)
    return (
        found is not None and found["controller"]["connected"] and found["api_server"]["connected"]
    )
