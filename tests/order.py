"""Which files of tests begin first: those that take longest, so that no process is left with one
at the end while the others have nothing to do. Seconds on two quiet cores, four files at a time.
"""

from __future__ import annotations

import pytest

LONGEST_FIRST = (
    # make test
    "lab/sites/test_sites.py",
    "lab/sites/test_nat_matrix.py",
    "cli/install/test_install.py",
    "faults/test_flat.py",
    "clients/runtimes/test_containerd_faults.py",
    "lab/world/test_demo.py",
    "lab/storms",
    "soak",
    "faults",
    "docs",
    "lab",
    "cli/install",
    "clients",
    "controller",
    # make test-kube
    "kube/installed/test_installed.py",
    "kube/faults/test_day.py",
    "kube/installed/test_connectivity.py",
    "kube/faults/test_lost_objects.py",
    "kube/faults/test_replicas.py",
    "kube/faults/test_lost_world.py",
    "kube/flannel/test_flannel_moves.py",
)


def longest_first(items: list[pytest.Item]) -> None:
    """In place; what is in no named file or folder keeps its order, behind them."""
    items.sort(key=lambda item: rank(item.nodeid.partition("::")[0]))


def rank(file: str) -> int:
    path = file.removeprefix("tests/")
    return next(
        (n for n, name in enumerate(LONGEST_FIRST) if path == name or path.startswith(f"{name}/")),
        len(LONGEST_FIRST),
    )
