"""What pages say of Helm, word for word, in a cluster whose nodes have no network."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from limpet.lab.kube.world import KubeWorld
from tests.kube.installed.cluster import (
    CONTROL_PLANE,
    answers,
    bare_world,
    deployment,
    rollout,
    running_pods,
)
from tests.kube.installed.page_worlds import blocks_of, in_a_cluster
from tests.kube.installed.test_manifests import SPACE
from tests.waiting import wait_until

_WITHIN_S = 300

pytestmark = pytest.mark.timeout(1500)  # the image is built, four kubelets start


def test_an_empty_cluster_gets_its_network_by_the_chart_in_minutes_and_the_page_by_one_value(
    tmp_path: Path, archive: Path, record_property: Callable[[str, object], None]
) -> None:
    kubeadm, kubernetes = blocks_of("kube", "chart").values()
    (again, uninstall), (install, upgrade) = kubeadm, kubernetes
    with bare_world(tmp_path, archive) as world, in_a_cluster(world) as player:
        assert not world.ready_nodes()
        kubectl = world.plane.kubectl
        kubectl("label", "nodes", "cloud-1", "cloud-2", f"{CONTROL_PLANE}=")
        kubectl("apply", "-f", "-", stdin=json.dumps(deployment("server", len(world.machines))))

        began_s = time.monotonic()
        player.play(install)
        world.await_ready()
        rollout(world, "deployment/server", "default")
        pods = running_pods(world, "server", len(world.machines))
        for client in pods.values():
            for server in pods.values():
                wait_until(partial(answers, client, server), f"{server.name} to {client.name}")
        took_s = time.monotonic() - began_s
        record_property("from helm install until every pod reaches every other, s", took_s)
        print(f"from helm install until every pod reaches every other: {took_s:.1f} s")  # noqa: T201 - with -s
        assert took_s < _WITHIN_S

        player.play(upgrade)
        (command,) = upgrade.commands
        done = player.run(f"{command.text} --set page.enabled=true", {}, "")
        assert done.returncode == 0, done.stderr
        rollout(world, "deployment/limpet-page")
        rollout(world, "daemonset/limpet-agent")
        assert running_pods(world, "server", len(world.machines)) == pods

        player.play(uninstall)
        wait_until(lambda: not workloads(world), "what the chart has made is gone")
        player.play(again)
        rollout(world, "daemonset/limpet-agent")
        assert running_pods(world, "server", len(world.machines)) == pods
        client, server = pods["crane-1"], pods["digger-1"]
        wait_until(partial(answers, client, server), "what was granted is what it was")


def workloads(world: KubeWorld) -> list[str]:
    kinds = "daemonsets,deployments,pods"
    return world.plane.kubectl("get", kinds, "-n", SPACE, "-o", "name").split()
