"""Named network namespaces of this machine: the one way in which lab, tests and bench make them."""

from __future__ import annotations

import contextlib
from pathlib import Path

from limpet.lab.command import LabError, run_command

FOLDER = Path("/run/netns")
"""Where `ip netns` has them, each a file of its name."""


def make_namespace(name: str) -> None:
    """With its loopback device up. Raises: LabError."""
    run_command("ip", "netns", "add", name)
    run_command("ip", "link", "set", "lo", "up", netns=name)


def delete_namespace(name: str) -> None:
    """What lives in it goes with it; does nothing when it has gone."""
    with contextlib.suppress(LabError):
        run_command("ip", "netns", "del", name)
