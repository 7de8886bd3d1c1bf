"""Control planes for the tests, and what they said beside a failure."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from limpet.lab.command import run_command
from limpet.lab.kube.control_plane import ControlPlane
from limpet.lab.kube.world import KubeWorld
from limpet.lab.netns import delete_namespace, make_namespace
from tests.clients.machine import CHECKOUT
from tests.controller.conftest import controller, make_controller
from tests.controller.machines import Controller

__all__ = ["controller", "make_controller"]

ADDRESSES = ("198.51.100.1", "2001:db8:51::1")
"""Of a control plane that nobody has a wire to."""
_LOG_SHOWN = 6000
_LOGS = ("*.log", "*/*.log", "nodes/*/*.log", "nodes/*/system/*.log")
"""Not in all folders: the roots of running containers come and go."""
_numbers = itertools.count()


@contextmanager
def control_plane_alone(folder: Path) -> Iterator[ControlPlane]:
    """In a namespace of its own, nothing started; all of it is gone afterwards."""
    netns = f"lk{os.getpid()}-{next(_numbers)}"
    make_namespace(netns)
    plane = ControlPlane(netns, folder / netns, ADDRESSES)
    try:
        for address in ADDRESSES:
            run_command("ip", "address", "add", address, "dev", "lo", netns=netns)
        # An API server looks for addresses by the default route.
        run_command("ip", "route", "add", "default", "dev", "lo", netns=netns)
        yield plane
    finally:
        plane.stop()
        delete_namespace(netns)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd and an API server with RBAC, empty at first; one for each file of tests."""
    with control_plane_alone(tmp_path_factory.mktemp("kube")) as plane:
        plane.start(only_api=True)
        yield plane


@pytest.fixture(scope="session")
def archive() -> Path:
    """The image, made of this checkout; to be imported with ctr."""
    script = [CHECKOUT / "scripts" / "build-image"]
    done = subprocess.run(script, check=True, stdout=subprocess.PIPE, text=True)
    return Path(done.stdout.strip())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    beds = [*getattr(item, "funcargs", {}).values()]
    for each in _controllers(beds) if report.failed else ():
        text = each.log.read_text() if each.log.exists() else ""
        report.sections.append((f"controller {each.folder.name}", text[-_LOG_SHOWN:]))
    for bed in beds:
        if report.failed and isinstance(bed, ControlPlane | KubeWorld):
            for log in sorted(log for each in _LOGS for log in bed.folder.glob(each)):
                if not log.is_file():
                    continue  # the link to a container's that is gone
                text = log.read_text(encoding="utf-8", errors="replace")
                report.sections.append((str(log.relative_to(bed.folder)), text[-_LOG_SHOWN:]))
    return report


def _controllers(beds: Iterable[object]) -> Iterator[Controller]:
    """Those of a test, however its bed holds them."""
    for bed in beds:
        if isinstance(bed, Controller):
            yield bed
        elif isinstance(bed, dict | list):
            yield from _controllers(bed.values() if isinstance(bed, dict) else bed)
        elif isinstance(held := getattr(bed, "controller", None), Controller):
            yield held
