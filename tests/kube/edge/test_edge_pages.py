"""Pages that make a node of a machine with systemd, word for word, beside a real API server."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

from limpet.lab.kube.control_plane import ADMINISTRATORS
from tests.clients.machine import CHECKOUT
from tests.docs.pages import Block
from tests.docs.worlds import Player
from tests.kube.edge.edge_bed import KUBELET, Edge, edge_machine
from tests.kube.edge.metaserver import PORT
from tests.kube.edge.yurthub_bed import URL, YurtHub, YurtNode
from tests.kube.installed.page_worlds import at_the_edge, blocks_of
from tests.waiting import wait_until

NODE = "crane-1"
"""As the pages call it."""
K3S = "/var/lib/rancher/k3s/agent"
CONTAINERD_OF_K3S = """\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
"""
"""Without a table `cni`, which it has for flannel alone.
Source: k3s, pkg/agent/templates/templates_linux.go (`if not .NodeConfig.NoFlannel`)."""
LOOPBACK = "/opt/cni/bin/loopback"
PATH = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin"}
PAGES = blocks_of("edge", "")
OF_K3S, KUBEEDGE, OPENYURT = (f"docs/how-to/{each}.md" for each in ("k3s", "kubeedge", "openyurt"))
WITH_MORE = {OF_K3S, KUBEEDGE, OPENYURT}
"""Pages that need more of the machine than a kubelet's kubeconfig."""
SETTINGS = "/etc/limpet/agent.toml"


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    with edge_machine(tmp_path_factory.mktemp("edge"), NODE) as edge:
        yield edge


@pytest.fixture(scope="module")
def player(edge: Edge, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    with at_the_edge(edge, tmp_path_factory.mktemp("person")) as player:
        yield player


@pytest.fixture
def page(edge: Edge, player: Player) -> Iterator[Player]:
    """The machine is new to the cluster again when the page was played, however it ended."""
    try:
        yield player
    finally:
        edge.machine.run("limpet", "uninstall", "--purge", env=PATH)
        player.run(f"limpet node remove {NODE}", {"at": "cloud"}, "")


def play(edge: Edge, player: Player, blocks: Iterable[Block]) -> None:
    """Settings that a page shows are written where it says."""
    for block in blocks:
        if block.language == "console":
            player.play(block)
        else:
            edge.machine.write(SETTINGS, edge.machine.path(SETTINGS).read_text() + block.text)


def api_server_heard(edge: Edge) -> str:
    """What the node's agent hears; empty while it hears none."""
    found = edge.status().get("cluster", {}).get("api_server", {})
    return str(found["server"]) if found.get("connected") else ""


@contextmanager
def k3s(edge: Edge) -> Iterator[None]:
    """Its kubelet's kubeconfig, its containerd's configuration and no other's, and `loopback`."""
    machine = edge.machine
    machine.run("install", "-D", "/usr/lib/cni/loopback", LOOPBACK)
    machine.write(f"{K3S}/kubelet.kubeconfig", machine.path(KUBELET).read_text())
    machine.write(f"{K3S}/etc/containerd/config.toml", CONTAINERD_OF_K3S)
    debians = machine.path("/etc/containerd/config.toml")
    debians.rename(debians.with_suffix(".aside"))
    try:
        yield
    finally:
        debians.with_suffix(".aside").rename(debians)
        machine.run("rm", "-r", "/var/lib/rancher", LOOPBACK)


def test_a_node_of_k3s_gets_in_where_its_containerd_looks(edge: Edge, page: Player) -> None:
    with k3s(edge):
        play(edge, page, PAGES[OF_K3S])

        assert wait_until(lambda: api_server_heard(edge)).startswith(edge.plane.url_inside)
        assert edge.machine.path("/opt/cni/bin/limpet").exists()
        edge.machine.run("limpet", "uninstall", "--purge", env=PATH)


@pytest.mark.parametrize("path", sorted(PAGES.keys() - WITH_MORE))
def test_a_node_gets_in_as_its_kubelet(edge: Edge, page: Player, path: str) -> None:
    play(edge, page, PAGES[path])

    assert wait_until(lambda: api_server_heard(edge)).startswith(edge.plane.url_inside)


@contextmanager
def metaserver(edge: Edge) -> Iterator[None]:
    """On the machine, with the rights of cloudcore."""
    plane, machine = edge.plane, edge.machine
    user = plane.authority.issue("cloudcore", "cloudcore", groups=[ADMINISTRATORS])
    files = {"ca": plane.authority.certificate, "crt": user.certificate, "key": user.key}
    for name, path in files.items():
        machine.write(f"/run/metaserver/{name}", path.read_text())
    ca, certificate, key, ready = (f"/run/metaserver/{name}" for name in (*files, "ready"))
    words = (plane.url_inside, ca, ready, "--certificate", certificate, "--key", key)
    process = machine.start(
        *(sys.executable, "-m", "tests.kube.edge.metaserver", *words),
        env={"PYTHONPATH": str(CHECKOUT)},
    )
    try:
        wait_until(machine.path(ready).exists, "MetaServer listens")
        yield
    finally:
        process.kill()


def test_a_node_of_kubeedge_gets_in_by_a_token_and_hears_metaserver(
    edge: Edge, page: Player
) -> None:
    with metaserver(edge):
        *node, uninstall, remove = PAGES[KUBEEDGE]
        play(edge, page, node)
        assert wait_until(lambda: api_server_heard(edge)).startswith(f"http://127.0.0.1:{PORT}")
        play(edge, page, [uninstall, remove])
        listed = page.run("limpet node list", {"at": "cloud"}, "")
        assert (listed.returncode, edge.node in listed.stdout) == (0, False)


def test_a_node_of_openyurt_hears_yurthub(edge: Edge, page: Player) -> None:
    machine = edge.machine
    node = YurtNode(NODE, machine.folder, machine.argv(()), machine.path, machine.write)
    yurthub = YurtHub(node, edge.plane)
    yurthub.prepare()
    yurthub.start()
    try:
        play(edge, page, PAGES[OPENYURT])

        assert wait_until(lambda: api_server_heard(edge)).startswith(URL)
    finally:
        yurthub.daemon.kill()
