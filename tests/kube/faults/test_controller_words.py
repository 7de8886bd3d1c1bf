"""What a controller says when something is missing at the API server; and it goes on trying."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from limpet.base.errors import LimpetError
from limpet.lab.kube.control_plane import ControlPlane
from tests.controller.machines import Controller
from tests.waiting import wait_until

CRDS = Path(__file__).parents[3] / "deploy" / "crds"


@pytest.fixture(name="controller")
def _controller(api: ControlPlane, tmp_path: Path) -> Iterator[Controller]:
    found = Controller(
        tmp_path / "c", store="kubernetes", kubeconfig=str(api.kubeconfig), namespace="limpet"
    )
    try:
        yield found
    finally:
        found.kill_if_it_runs()


def says(controller: Controller, *words: str) -> None:
    wait_until(lambda: all(each in controller.log.read_text() for each in words), str(words))


def answers(controller: Controller) -> Any:
    try:
        return controller.ask("network.show")
    except LimpetError:
        return None


def test_no_rights_no_namespace_no_definitions_are_told_and_then_it_goes_on(
    api: ControlPlane, controller: Controller
) -> None:
    controller.settings["kubeconfig"] = str(api.write_kubeconfig("nobody", "nobody"))
    controller.start()
    says(controller, "the Lease is not renewed", "the account lacks this right")
    controller.kill()

    controller.settings["kubeconfig"] = str(api.kubeconfig)
    controller.start()
    says(controller, "make Lease limpet/limpet-controller", "kubectl create namespace limpet")

    api.kubectl("create", "namespace", "limpet")
    says(controller, "not watched", "kubectl apply -f deploy/crds")

    api.kubectl("apply", "-f", str(CRDS))
    assert wait_until(lambda: answers(controller))["cluster"] == "limpet"


def test_a_kubeconfig_that_is_not_there_is_told(controller: Controller) -> None:
    controller.settings["kubeconfig"] = "/nowhere/kubeconfig"

    code, words = controller.run()

    assert code == 1
    assert "/nowhere/kubeconfig" in words
    assert "Traceback" not in words


def test_back_ups_of_a_file_are_refused_in_words(controller: Controller, tmp_path: Path) -> None:
    controller.write_config()
    for command in ("backup", "restore"):
        done = controller.command("controller", command, str(tmp_path / "file"))
        assert done.returncode != 0
        assert "etcdctl snapshot" in done.stderr
