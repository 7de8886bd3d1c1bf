"""`limpet install --kubernetes` on a machine with systemd, and a real API server next door."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.install.test_install import LIMPET, assert_unchanged, limpet, refusal, state_of
from tests.kube.edge.edge_bed import KUBELET, Edge, edge_machine
from tests.waiting import wait_until

NODE = "edge-1"


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    with edge_machine(tmp_path_factory.mktemp("edge"), NODE) as edge:
        yield edge


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (("--kubernetes",), "--kubeconfig", 2),
        (("--kubeconfig", KUBELET), "go with --kubernetes", 2),
        (("--kubernetes", "--kubeconfig", KUBELET), "--token", 1),
        (("--kubernetes", "--kubeconfig", "/nowhere", "--token", "TOKEN"), "/nowhere", 1),
        (
            ("--kubernetes", "--kubeconfig", KUBELET, "--token", "TOKEN", "--name", "edge-9"),
            "edge-9",
            1,
        ),
    ],
    ids=["no kubeconfig", "no kubernetes", "no token", "no such file", "no such node"],
)
def test_what_cannot_be_is_refused_in_words_and_changes_nothing(
    edge: Edge, words: tuple[str, ...], said: str, code: int
) -> None:
    before = state_of(edge.machine)
    token = edge.token()

    words = tuple(token if each == "TOKEN" else each for each in words)
    assert said in "".join(refusal(edge.machine, "install", *words, code=code))

    assert_unchanged(before, edge.machine)


def test_a_node_is_installed_by_a_token_goes_on_without_the_api_server_and_is_taken_away(
    edge: Edge,
) -> None:
    """As its kubelet, under its Node's name, with controllers that the API server names."""
    before = state_of(edge.machine)

    said = edge.install("--token", edge.token())

    assert f"{NODE} (" in said
    assert "joined" in said
    assert "limpet.dev/agent=systemd" in said
    wait_until(edge.presence, "its presence is written as its kubelet")
    assert edge.machine.run("systemctl", "is-enabled", "limpet-agent").strip() == "enabled"
    config = edge.machine.path("/etc/limpet/agent.toml").read_text()
    assert 'source = "kubernetes"' in config
    assert 'policies = "on"' in config

    edge.plane.kubectl("label", "node", NODE, "limpet.dev/agent=systemd")
    again = edge.install()
    assert "up to date" in again
    assert "limpet.dev/agent" not in again

    edge.plane.stop_process("kube-apiserver")
    edge.machine.run("systemctl", "restart", "limpet-agent", timeout_s=60)
    wait_until(
        lambda: edge.machine.try_run(*LIMPET, "status").returncode == 0,
        "it serves pods while no API server is there",
    )
    assert edge.status()["cluster"]["segments"]
    edge.plane.start_process("kube-apiserver")

    limpet(edge.machine, "uninstall", "--purge")
    assert_unchanged(before, edge.machine)
