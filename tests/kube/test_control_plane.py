"""The bed itself: an API server that answers, refuses, dies and comes back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from limpet.lab.command import LabError
from limpet.lab.kube.control_plane import ControlPlane
from limpet.lab.kube.programs import CONTROL_PLANE_PROGRAMS, built_programs, find_programs
from tests.kube.conftest import control_plane_alone
from tests.waiting import wait_until

_CONFIG_MAP = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "kept"},
    "data": {"word": "limpet"},
}


def test_an_administrator_reads_and_writes_from_outside_of_the_namespace(api: ControlPlane) -> None:
    api.kubectl("apply", "-f", "-", stdin=json.dumps(_CONFIG_MAP | {"metadata": {"name": "a"}}))

    assert api.kubectl("get", "configmap", "a", "-o", "jsonpath={.data.word}") == "limpet"
    version = json.loads(api.kubectl("version", "-o", "json"))
    assert version["serverVersion"]["gitVersion"] == version["clientVersion"]["gitVersion"]


def test_programs_that_are_built_are_found_without_building_any() -> None:
    assert built_programs(*CONTROL_PLANE_PROGRAMS) == find_programs(*CONTROL_PLANE_PROGRAMS)
    assert built_programs("etcd", "no-such-program") is None


def test_a_user_without_rights_is_refused(api: ControlPlane) -> None:
    kubeconfig = api.write_kubeconfig("nobody", "nobody", groups=["strangers"])

    with pytest.raises(LabError, match="forbidden"):
        api.kubectl("get", "configmaps", f"--kubeconfig={kubeconfig}")


def test_what_was_written_is_there_after_a_crash_of_both_processes(api: ControlPlane) -> None:
    api.kubectl("apply", "-f", "-", stdin=json.dumps(_CONFIG_MAP))
    url = api.url

    for name in ("kube-apiserver", "etcd"):
        api.stop_process(name, signal.SIGKILL)
    assert not api.is_ready()
    for name in ("etcd", "kube-apiserver"):
        api.start_process(name)

    assert api.url == url
    assert api.kubectl("get", "configmap", "kept", "-o", "jsonpath={.data.word}") == "limpet"


def test_a_whole_control_plane_hands_out_pod_networks(tmp_path: Path) -> None:
    with control_plane_alone(tmp_path) as plane:
        plane.pod_networks = ("10.244.0.0/16", "fd00:10:244::/56")
        plane.start()
        plane.kubectl("create", "namespace", "made")
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "crane-1"}}
        plane.kubectl("create", "-f", "-", stdin=json.dumps(node))

        def pod_networks() -> list[str]:
            found = json.loads(plane.kubectl("get", "node", "crane-1", "-o", "json"))
            return list(found["spec"].get("podCIDRs", ()))

        assert wait_until(pod_networks) == ["10.244.0.0/24", "fd00:10:244::/64"]
        wait_until(
            lambda: "default" in plane.kubectl("get", "serviceaccounts", "--namespace=made"),
            "the controller manager makes the namespace's account",
        )


def test_programs_that_are_built_already_are_found_in_under_a_second() -> None:
    script = Path(__file__).parents[2] / "scripts" / "fetch-kubernetes"
    folder = find_programs(*CONTROL_PLANE_PROGRAMS)

    before = os.times()
    done = subprocess.run(
        [script, *CONTROL_PLANE_PROGRAMS], capture_output=True, text=True, check=True
    )
    after = os.times()

    spent_s = after.children_user + after.children_system
    spent_s -= before.children_user + before.children_system
    assert done.stdout.strip() == str(folder)
    assert spent_s < 1  # of processor time, so it holds on a busy machine too
