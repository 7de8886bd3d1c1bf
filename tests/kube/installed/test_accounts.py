"""The accounts of deploy/limpet.yaml have all the rights that their programs use."""

from __future__ import annotations

import asyncio
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from limpet.base.errors import LimpetError
from limpet.lab.kube.control_plane import ControlPlane
from tests.cloud.bed import Member
from tests.controller.machines import Controller, Node
from tests.kube.installed.test_manifests import AS_CONTROLLER, MANIFEST, SPACE, pod
from tests.kube.test_source import Listener, listening
from tests.waiting import until, until_answered, wait_until


def settings_in_the_manifests() -> dict[str, Any]:
    for document in yaml.safe_load_all(MANIFEST.read_text()):
        if (document["kind"], document["metadata"]["name"]) == ("ConfigMap", "limpet-controller"):
            return tomllib.loads(document["data"]["controller.toml"])
    raise AssertionError("deploy/limpet.yaml has no settings of the controller")


def kubeconfig_of(api: ControlPlane, folder: Path, account: str, *words: str) -> Path:
    """For the account, by a token. `words`: what it is bound to."""
    token = api.kubectl("create", "token", account, "-n", SPACE, *words).strip()
    config = yaml.safe_load(api.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    path = folder / f"{account}.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture
def controller(api: ControlPlane, tmp_path: Path) -> Iterator[Controller]:
    """As its account, with the manifests' settings but for ports."""
    api.kubectl("apply", "-f", str(MANIFEST))
    kubeconfig = kubeconfig_of(api, tmp_path, "limpet-controller")
    settings = {**settings_in_the_manifests(), "kubeconfig": str(kubeconfig)}
    del settings["metrics_listen"]
    controller = Controller(tmp_path / "c", pod_cidrs=["10.0.0.0/16"], **settings)
    try:
        yield controller.start()
    finally:
        controller.kill_if_it_runs()


def answers(controller: Controller) -> bool:
    """It leads."""
    try:
        controller.ask("network.show")
    except LimpetError:
        return False
    return True


def test_the_controllers_account_suffices_for_a_clusters_life(
    api: ControlPlane, controller: Controller
) -> None:
    wait_until(lambda: answers(controller), "it leads, by its Lease")

    async def join() -> Node:
        async with Node(controller.url, "node-a") as node:
            await node.join(await asyncio.to_thread(controller.token))
            return node

    node = asyncio.run(join())

    held = json.loads(api.kubectl("get", "nodegrant", "node-a", "-o", "json"))
    assert held["spec"]["uid"] == node.uid
    assert held["spec"]["segments"] == [str(each) for each in node.grant.segments]
    kept = api.kubectl(
        "get", "secret,configmap", "-n", SPACE, "-l", "limpet.dev/kind", "-o", "name"
    )
    assert "secret/limpet-authority" in kept

    community = {
        "apiVersion": "limpet.dev/v1alpha1",
        "kind": "Community",
        "metadata": {"name": "harbour"},
        "spec": {"members": ["node-a"]},
    }
    api.kubectl("apply", "-f", "-", stdin=json.dumps(community))
    api.kubectl("wait", "--for=condition=Ready", "community/harbour", "--timeout=120s")
    api.kubectl("delete", "nodegrant", "node-a")
    wait_until(
        lambda: node.uid in api.kubectl("get", "nodegrants", "-o", "jsonpath={.items[*].spec.uid}"),
        "the grant that was deleted by hand is back",
    )
    log = controller.log.read_text()
    assert "forbidden" not in log.lower(), log


def test_an_agents_account_suffices_to_hear_the_cluster_and_to_write_its_presence(
    api: ControlPlane, controller: Controller, tmp_path: Path
) -> None:
    """Over what it wrote before, leaving what the controller has noted there as it is."""
    wait_until(lambda: answers(controller), "it leads, by its Lease")
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "digger-1"}}
    for each in (node, pod("agent-digger-1", "digger-1", "limpet-agent")):
        api.kubectl("create", "-f", "-", stdin=json.dumps(each))
    bound = ("--bound-object-kind=Pod", "--bound-object-name=agent-digger-1")
    kubeconfig = kubeconfig_of(api, tmp_path, "limpet-agent", *bound)
    member = Member(tmp_path / "digger-1", "digger-1")
    member.join(controller)

    async def run(*words: str) -> str:
        return await asyncio.to_thread(api.kubectl, *words)

    async def written(addresses: list[str]) -> dict[str, Any]:
        """The presence, when the agent has written these addresses into it."""

        async def find() -> dict[str, Any] | None:
            listed = json.loads(await run("get", "nodepresences", "-o", "json"))["items"]
            found = [each for each in listed if each["spec"].get("addresses") == addresses]
            return found[0] if found else None

        found = await until_answered(find)
        assert found is not None
        return found

    async def work() -> None:
        agent = Listener(member, kubeconfig)
        async with listening(agent):
            agent.running.announce("192.0.2.1")
            await written(["192.0.2.1"])
            noted = ("--type=merge", f"--patch={json.dumps({'record': {'atSeconds': 5}})}")
            await run("patch", "nodepresence", "digger-1", *noted, AS_CONTROLLER)
            agent.running.announce("192.0.2.2")
            # The policy refuses a presence whose record the agent has changed or left out.
            assert (await written(["192.0.2.2"]))["record"]
            await until(lambda: agent.road.state.connected)

    asyncio.run(work())
