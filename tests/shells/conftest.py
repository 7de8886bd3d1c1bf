"""The shells, from Debian's packages where they are not there."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

_PACKAGES = {"zsh": "zsh", "fish": "fish", "mandoc": "mandoc"}


@pytest.fixture(scope="session", autouse=True)
def shells() -> None:
    missing = [package for program, package in _PACKAGES.items() if shutil.which(program) is None]
    if missing:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *missing]
        subprocess.run(command, check=True, capture_output=True, env=environment)
