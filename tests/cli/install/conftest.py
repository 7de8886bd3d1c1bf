"""Machines to install on."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.cli.install.service_machine import ServiceMachine
from tests.clients.machine import CHECKOUT


@pytest.fixture(scope="module", autouse=True)
def _runtimes() -> None:
    """The foreign programs are in build/runtimes."""
    subprocess.run([CHECKOUT / "scripts" / "fetch-runtimes"], check=True)


@pytest.fixture
def machine() -> Iterator[ServiceMachine]:
    with ServiceMachine() as machine:
        yield machine
