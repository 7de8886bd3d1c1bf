"""A cluster in which pages, word for word, install Limpet with its own image; what they say of it
then; and `limpet connectivity test` on its kubelets."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from limpet.cli.connectivity.objects import NAMESPACE
from limpet.lab.kube.world import KubeWorld
from tests.answers import check_answer
from tests.docs.worlds import Player
from tests.kube.installed.cluster import CONTROL_PLANE, rollout, world_without_image
from tests.kube.installed.page_worlds import blocks_of, in_a_cluster, something_outside, web_service
from tests.waiting import wait_until

LOOKING = blocks_of("kube", "manifest")
"""By page; of pages that install, they do so once more."""

pytestmark = pytest.mark.timeout(1500)  # the image is built, five kubelets start


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeWorld]:
    """Nodes on two sites and in the cloud, without a network."""
    with world_without_image(tmp_path_factory.mktemp("connectivity")) as world:
        world.plane.kubectl("label", "nodes", "cloud-1", "cloud-2", f"{CONTROL_PLANE}=")
        yield world


@pytest.fixture(scope="module")
def player(world: KubeWorld) -> Iterator[Player]:
    """Limpet was installed there by its manifest, as the page says, and what answers names."""
    with in_a_cluster(world) as player, something_outside(world):
        assert not world.ready_nodes()
        (installing,) = blocks_of("kube", "empty").values()
        for block in installing:
            player.play(block)
        world.await_ready()
        done = player.run("kubectl apply -f deploy/dns.yaml", {}, "")
        assert done.returncode == 0, done.stderr
        world.plane.kubectl("apply", "-f", "-", stdin=web_service())
        rollout(world, "daemonset/limpet-dns")
        yield player


@pytest.fixture
def cluster(world: KubeWorld, player: Player) -> KubeWorld:
    """Limpet is there."""
    return world


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
    found = json.loads(out)
    check_answer(("connectivity", "test"), found)
    return process.returncode, found, err


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


# What is there is changed here: behind all others


@pytest.mark.parametrize("page", LOOKING)
def test_what_a_page_says_of_a_cluster_works(player: Player, page: str) -> None:
    player.play_all(LOOKING[page])
