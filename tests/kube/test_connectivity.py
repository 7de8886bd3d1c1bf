"""`limpet connectivity test` on real kubelets, with Limpet's own image."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from limpet.cli.connectivity.objects import NAMESPACE
from limpet.lab.kube.world import KubeWorld
from tests.kube.installed import CONTROL_PLANE, bare_world, rollout
from tests.kube.service_day import manifest_with_services
from tests.kube.test_manifests import MANIFEST
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(1500)  # the image is built, five kubelets start


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, archive: Path) -> Iterator[KubeWorld]:
    """Nodes on two sites and in the cloud, which Limpet was installed on by its manifests."""
    with bare_world(tmp_path_factory.mktemp("connectivity"), archive) as world:
        kubectl = world.plane.kubectl
        kubectl("label", "nodes", "cloud-1", "cloud-2", f"{CONTROL_PLANE}=")
        kubectl("apply", "-f", "-", stdin=manifest_with_services(world))
        kubectl("apply", "-f", str(MANIFEST.parent / "dns.yaml"))
        world.await_ready()
        rollout(world, "daemonset/limpet-dns")
        yield world


def start(world: KubeWorld, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "limpet", "connectivity", "test"]
    return subprocess.Popen(
        [*command, f"--kubeconfig={world.plane.kubeconfig}", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def report(world: KubeWorld, *words: str) -> tuple[int, dict[str, Any], str]:
    process = start(world, "--output=json", *words)
    out, err = process.communicate(timeout=600)
    assert "Traceback" not in err
    return process.returncode, json.loads(out), err


def namespaces(world: KubeWorld) -> str:
    return world.plane.kubectl("get", "namespaces", "-o", "name")


def test_every_pod_reaches_every_pod_and_node_with_whole_packets_and_nothing_is_left(
    cluster: KubeWorld,
) -> None:
    names = sorted(cluster.machines)

    code, found, err = report(cluster, "--services", "--policies")

    assert [each for each in found["results"] if each["error"]] == [], found["broken"]
    assert code == 0, err
    assert found["nodes"] == names
    pods = [each for each in found["results"] if each["kind"] == "pod"]
    ways = {(each["source"], each["target"], each["family"]) for each in pods}
    assert ways == {(one, other, v) for one in names for other in names for v in (4, 6)}
    assert all(each["packet_bytes"] >= 1280 and each["tcp_ms"] > 0 for each in pods)
    for each in pods:
        assert (each["rung"] == "local") is (each["source"] == each["target"])
    nodes = [each for each in found["results"] if each["kind"] == "node"]
    # The gateways of each node, and the own node's own addresses.
    assert len(nodes) == len(names) * (len(names) * 2 + 2)
    denied = {
        (one["source"], one["address"]) for one in found["results"] if one["kind"] == "denied"
    }
    assert denied == {(one["source"], one["address"]) for one in pods}
    for one in names:
        served = [each for each in found["results"] if each["source"] == one and each["tcp_ms"]]
        kinds = Counter((each["kind"], each["target"]) for each in served)
        assert kinds["service", "by its address"] == kinds["hairpin", "to itself"] == 2
        assert kinds["service", "by its name"] == 1
        assert kinds["service", "by a node's port"] >= 1
    assert NAMESPACE not in namespaces(cluster)


def test_a_pair_that_does_not_reach_each_other_is_named_and_the_exit_code_says_so(
    cluster: KubeWorld,
) -> None:
    """What carries them is dropped, and the leftovers of a test that was killed are no obstacle."""
    cluster.plane.kubectl("create", "namespace", NAMESPACE)
    system = next(each.system for each in cluster.kube_machines if each.label == "crane-1")
    system.run(
        "nft",
        "add table inet wall; add chain inet wall in { type filter hook forward priority -300; };"
        'add rule inet wall in iifname "limpet0" meta l4proto tcp drop',
    )
    try:
        process = start(cluster, "--nodes", "crane-1,digger-1")
        out, err = process.communicate(timeout=600)
    finally:
        system.run("nft", "delete", "table", "inet", "wall")

    assert process.returncode == 1
    assert "an earlier test was not taken away" in err
    failed = [line for line in out.splitlines() if "no answer by TCP" in line]
    assert failed
    assert "failed" in out.splitlines()[-1]
    assert all("cloud" not in line for line in out.splitlines())
    assert NAMESPACE not in namespaces(cluster)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 1)])
def test_one_that_is_stopped_takes_its_pods_away(
    cluster: KubeWorld, number: signal.Signals, code: int
) -> None:
    process = start(cluster, "--nodes", "crane-1,digger-1")
    pods = ("get", "pods", "-n", NAMESPACE, "-o", "name")
    wait_until(lambda: "answerer" in cluster.plane.kubectl(*pods), "its pods are made")

    process.send_signal(number)
    _, err = process.communicate(timeout=300)

    assert process.returncode == code
    assert "Traceback" not in err
    assert NAMESPACE not in namespaces(cluster)
