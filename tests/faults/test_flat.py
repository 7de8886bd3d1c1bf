"""What an agent uses does not grow with what it has done."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from limpet.lab.world.node import LabNode
from limpet.lab.world.pod import LabPod
from tests.effort import effort
from tests.waiting import wait_until

PAIRS = effort(500, 1500)
WARM_UP = effort(250, 500)
AT_ONCE = 4
GROWTH_KIB = 615
"""3,000 requests that leaked 210 bytes each would show; in `make test` 1,000 that leaked 630."""
RUNS = 12
"""A leak grows in each of them, the allocator's noise in some: the first without growth is enough.
"""


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_descriptors_threads_and_memory_stay_flat_over_thousands_of_pods(node: LabNode) -> None:
    pods = [node.pod(f"p{n}") for n in range(AT_ONCE)]

    def add_and_delete(pod: LabPod, times: int) -> None:
        for _ in range(times):
            pod.add()
            pod.delete()

    def pairs(count: int) -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(add_and_delete, pods, [count // AT_ONCE] * AT_ONCE))

    def is_flat() -> bool:
        """What is taken away behind the answer holds a namespace or a file for a moment."""
        now = usage(node.agent_pid)
        return now["fds"] <= seen[0]["fds"] + 1 and now["threads"] <= seen[0]["threads"]

    pairs(WARM_UP)
    seen = [usage(node.agent_pid)]
    for _ in range(RUNS):
        pairs(PAIRS)
        wait_until(is_flat, "descriptors and threads are as many as before")
        seen.append(usage(node.agent_pid))
        if seen[-1]["rss_kib"] < seen[-2]["rss_kib"] + GROWTH_KIB:
            return
    raise AssertionError(f"it grows with every {PAIRS} pods: {seen}")


def usage(pid: int) -> dict[str, int]:
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return {
        "fds": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "threads": int(status["Threads"]),
        "rss_kib": int(status["VmRSS"].split()[0]),
    }
