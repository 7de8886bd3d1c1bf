"""What `limpet install --kubernetes` writes into a node's configuration."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from limpet.agent.settings import parse_settings
from limpet.cli.install.kubernetes import KubernetesOptions
from limpet.cli.install.options import AskedSettings

CLUSTER = KubernetesOptions(Path("/etc/kubernetes/kubelet.conf"))


@pytest.mark.parametrize(
    ("asked", "mode"),
    [
        (AskedSettings(kubernetes=CLUSTER), "on"),
        (AskedSettings(kubernetes=CLUSTER, cni=False), None),
        (AskedSettings(), None),
    ],
    ids=["a node of Kubernetes", "one whose pods are another network's", "one of no Kubernetes"],
)
def test_a_node_of_kubernetes_holds_its_pods_to_policies_as_the_daemonset_does(
    asked: AskedSettings, mode: str | None
) -> None:
    written = parse_settings(tomllib.loads(asked.text().decode()), "what is written")

    assert written.policies.mode == mode
