"""Machines for the tests, and what ran on them beside a failure."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator, Iterator

import pytest

from tests.clients.machine import CHECKOUT, Machine, remove_leftovers


@pytest.fixture(scope="session")
def runtimes() -> None:
    """The foreign programs are in build/runtimes; downloads them where they are not."""
    subprocess.run([CHECKOUT / "scripts" / "fetch-runtimes"], check=True)
    remove_leftovers()


@pytest.fixture(scope="module")
def machine(runtimes: None) -> Iterator[Machine]:
    """With the containerd that LIMPET_CLIENTS_CONTAINERD names; else that of this Debian."""
    with Machine(containerd=os.environ.get("LIMPET_CLIENTS_CONTAINERD", "")) as machine:
        yield machine


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    machine = getattr(item, "funcargs", {}).get("machine")
    if report.failed and isinstance(machine, Machine):
        for name, text in machine.logs():
            report.sections.append((name, text[-8000:]))
    return report
