"""Pods of real agents that hear an API server go on, packet by packet, while its objects are
deleted and its etcd is put back from an old copy; the objects come back as they were."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from limpet.base.errors import LimpetError
from limpet.lab.topology import parse_topology
from tests.kube.faults.day_world import DayWorld
from tests.kube.faults.test_lost_objects import asked
from tests.kube.flannel.flannel_bed import NAMESPACE
from tests.lab.bed import Pinging, everybody_reaches_everybody
from tests.waiting import wait_until

TOPOLOGY = """
[cloud]
addresses = ["203.0.113.10/24"]
[site.harbour]
lan = ["192.168.10.0/24"]
nodes = { crane-1 = 1, crane-2 = 1 }
[site.quarry]
lan = ["192.168.20.0/24"]
nodes = { digger-1 = 1 }
"""
LABELS = {"site": "quarry"}
CUSTOM = "clusternetworks,nodegrants,nodepresences,communities"


@pytest.fixture(scope="module", name="world")
def _world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DayWorld]:
    name = f"l{os.getpid()}"
    topology = parse_topology(TOPOLOGY, name, "a test")
    made = DayWorld(topology, name, tmp_path_factory.mktemp("lost") / name)
    try:
        made.up()
        everybody_reaches_everybody(made, within_s=60)
        yield made
    finally:
        made.down()


def specs(world: DayWorld, plural: str, *fields: str) -> dict[str, Any]:
    """Of all objects, by name."""
    items = json.loads(asked(world.plane, "get", plural, "-o", "json") or '{"items": []}')["items"]
    return {
        each["metadata"]["name"]: {field: each["spec"].get(field) for field in fields}
        for each in items
    }


def granted(world: DayWorld) -> dict[str, Any]:
    return specs(world, "nodegrants", "uid", "segments")


def granting(world: DayWorld) -> str:
    path = '{.status.conditions[?(@.type=="Granting")].status}'
    return asked(world.plane, "get", "clusternetwork", "default", "-o", f"jsonpath={path}")


def labels(world: DayWorld, node: str) -> dict[str, str] | None:
    """As a controller that leads knows them; None: nobody leads now."""
    with suppress(LimpetError):
        found: dict[str, str] = world.controller.ask("node.show", node=node)["labels"]
        return found
    world.leader()
    return None


def delete_custom(world: DayWorld) -> None:
    world.plane.kubectl("delete", CUSTOM, "--all")


def delete_everything_while_no_controller_runs(world: DayWorld) -> None:
    for controller in world.controllers:
        controller.stop()
    delete_custom(world)
    world.plane.kubectl("delete", "configmaps", "-n", NAMESPACE, "-l", "limpet.dev/kind")
    world.plane.kubectl("delete", "secrets", "-n", NAMESPACE, "-l", "limpet.dev/kind=token")
    world.start_controller()


def put_etcd_back(world: DayWorld) -> None:
    """As it was before a node's grant was changed."""
    plane, copy = world.plane, world.folder / "etcd-copy"

    def stopped(change: Callable[[], object]) -> None:
        # Killed: one that is asked to end waits a minute for those who watch.
        plane.stop_process("kube-apiserver", signal.SIGKILL)
        plane.stop_process("etcd")
        change()
        plane.start_process("etcd")
        plane.start_process("kube-apiserver")

    stopped(lambda: shutil.copytree(plane.etcd_data, copy))

    def labelled() -> bool:
        with suppress(LimpetError):
            world.awaited_leader().ask("node.label", node="digger-1", add=LABELS, drop=[])
        return labels(world, "digger-1") == LABELS

    wait_until(labelled, "the grant is another than in the copy")
    revision = world.awaited_leader().ask("node.show", node="digger-1")["revision"]
    digger = world.machines["digger-1"]
    wait_until(
        lambda: digger.ask("status")["cluster"]["revision"] >= revision, "its node has heard of it"
    )

    def put_back() -> None:
        shutil.rmtree(plane.etcd_data)
        shutil.copytree(copy, plane.etcd_data)

    stopped(put_back)
    wait_until(lambda: labels(world, "digger-1") == LABELS, "the change is known again")


@pytest.mark.parametrize(
    "fault", [delete_custom, delete_everything_while_no_controller_runs, put_etcd_back]
)
def test_no_packet_is_lost_and_the_objects_come_back(
    world: DayWorld, fault: Callable[[DayWorld], None]
) -> None:
    machines = world.machines
    before = wait_until(lambda: granted(world), "grants are there")
    assert before.keys() == machines.keys()
    pods = {name: next(iter(machine.pods.values())) for name, machine in machines.items()}
    with ExitStack() as undo:
        streams = [
            undo.enter_context(Pinging(pods[source].netns, pods[target].addresses[0].ip))
            for source, target in (("crane-1", "crane-2"), ("crane-2", "digger-1"))
        ]
        fault(world)
        wait_until(lambda: granted(world) == before, "every grant is back as it was")
        wait_until(
            lambda: specs(world, "nodepresences", "uid").keys() == before.keys(),
            "each node has written its presence again",
        )
        wait_until(lambda: granting(world) == "True", "segments are granted again")
        for stream in streams:
            sent, answered = stream.stop()
            assert sent > 100
            assert sent - answered <= 1  # one may be under way at the end
    for name, machine in machines.items():
        segments = {each["prefix"] for each in machine.ask("status")["segments"]}
        assert segments == set(before[name]["segments"])
    for controller in world.controllers:
        assert "Traceback" not in Path(controller.process.log).read_text()
    if fault is put_etcd_back:
        wait_until(lambda: labels(world, "digger-1") == LABELS, "its label is there at the end")
