"""Which files of tests begin first: those that take longest, so that no process is left with one
at the end while the others have nothing to do. Seconds on two quiet cores, four files at a time.

One process begins at the other end: worlds of the lab, which come first, mostly wait, and what
comes last computes, so that no core rests while a world waits.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

_FROM_THE_END = "gw0"

LONGEST_FIRST = (
    # make test
    "lab/sites/test_sites.py",
    "lab/sites/test_nat_matrix.py",
    "cli/install/test_install.py",
    "clients/runtimes/test_containerd_faults.py",
    "lab/world/test_demo.py",
    "soak",  # with the next three, make test-storms
    "faults/test_flat.py",
    "lab/storms",
    "faults",
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


class BothEnds(LoadFileScheduling):  # type: ignore[misc]  # xdist says no types
    """Files in their order; one process takes the last that is left."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node.gateway.id == _FROM_THE_END:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)
