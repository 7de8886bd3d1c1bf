"""What docs/kubernetes.md says of Helm, word for word, in a cluster whose nodes have no network."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from limpet.lab.kube.programs import find_programs
from limpet.lab.kube.world import KubeWorld
from tests.kube.installed import (
    CONTROL_PLANE,
    answers,
    bare_world,
    deployment,
    rollout,
    running_pods,
)
from tests.kube.test_chart import DEPLOY
from tests.waiting import wait_until

_CHECKOUT = DEPLOY.parent
_WITHIN_S = 300
_API_SERVER = "https://192.0.2.1:6443"
"""Of the page."""

pytestmark = pytest.mark.timeout(1500)  # the image is built, four kubelets start


def commands() -> list[list[str]]:
    """The page's, a list of words each."""
    page = (_CHECKOUT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    _, _, section = page.partition("\n### With Helm\n")
    block = section.split("```")[1].partition("\n")[2]
    lines = block.replace("\\\n", " ").splitlines()
    return [shlex.split(line.removeprefix("$ ")) for line in lines if line.startswith("$ ")]


def play(world: KubeWorld, home: Path, words: list[str]) -> None:
    assert words[0] == "helm"
    said = [word.replace(_API_SERVER, world.plane.url_inside) for word in words[1:]]
    subprocess.run(
        [find_programs("helm") / "helm", *said],
        cwd=_CHECKOUT,
        env={**os.environ, "HOME": str(home), "KUBECONFIG": str(world.plane.kubeconfig)},
        check=True,
    )


def test_an_empty_cluster_gets_its_network_by_the_chart_in_minutes_and_the_page_by_one_value(
    tmp_path: Path, archive: Path, record_property: Callable[[str, object], None]
) -> None:
    install, upgrade = commands()
    with bare_world(tmp_path, archive) as world:
        assert not world.ready_nodes()
        kubectl = world.plane.kubectl
        kubectl("label", "nodes", "cloud-1", "cloud-2", f"{CONTROL_PLANE}=")
        kubectl("apply", "-f", "-", stdin=json.dumps(deployment("server", len(world.machines))))

        began_s = time.monotonic()
        play(world, tmp_path, install)
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

        play(world, tmp_path, [*upgrade, "--set", "page.enabled=true"])
        rollout(world, "deployment/limpet-page")
        rollout(world, "daemonset/limpet-agent")
        assert running_pods(world, "server", len(world.machines)) == pods
