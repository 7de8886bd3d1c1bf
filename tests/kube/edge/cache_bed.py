"""The cache that stands in for KubeEdge's MetaServer, on a node of a world."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from limpet.lab.process import Daemon
from limpet.lab.world.machine import Machine
from tests.kube.flannel.flannel_bed import ROOT
from tests.waiting import PATIENCE_S


@contextlib.contextmanager
def running_cache(machine: Machine, upstream: str, authority: Path, *words: str) -> Iterator[None]:
    """It answers within the block; `words`: whom it asks as, and what it has kept already."""
    ready = machine.folder / "cache.ready"
    ready.unlink(missing_ok=True)
    daemon = Daemon("metaserver", machine.folder / "cache.pid", machine.folder / "cache.log")
    daemon.start_and_ask(
        [
            *("nsenter", f"--net={machine.netns_path}", "env", f"PYTHONPATH={ROOT}"),
            *(sys.executable, "-m", "tests.kube.edge.metaserver"),
            *(upstream, str(authority), str(ready), *words),
        ],
        ready.exists,
        within_s=PATIENCE_S,
    )
    try:
        yield
    finally:
        daemon.kill()
