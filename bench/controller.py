"""Figures of the controller: `python -m bench.controller`. Everything on loopback, durable."""

from __future__ import annotations

import asyncio
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path

from tests.controller.machines import Controller, Node, join_all, until_bookmark
from tests.unit.controller.cluster_tables import join, network

from limpet.controller import grants
from limpet.controller.authority import create_cluster
from limpet.controller.registry import Registry
from limpet.controller.sqlite import SqliteStore
from limpet.controller.store import Create
from limpet.wire.api import WatchKind

_AT_ONCE = 32


async def store_grants(folder: Path, nodes: int = 50, each: int = 40) -> float:
    """Durable segment grants a second at the registry and its store, without HTTP."""
    store = SqliteStore(folder / "store.db")
    registry = Registry(store, 0.0)
    await registry.start()
    made = network("10.0.0.0/8", segment_quota=1024)
    await registry.change(lambda tables: create_cluster(tables, made))
    uids = [
        (await registry.change(lambda tables, n=n: join(tables, n, "n"))).uid  # type: ignore[misc]
        for n in range(1, nodes + 1)
    ]

    async def grow(uid: str) -> None:
        for _ in range(each):
            await registry.change(
                lambda tables: grants.request_segments(
                    tables, uid, tables.grants[uid].generation, (4,), 0.0
                )
            )

    start_s = time.perf_counter()
    await asyncio.gather(*map(grow, uids))
    rate = nodes * each / (time.perf_counter() - start_s)
    await registry.stop()
    await store.close()
    return rate


async def store_writes(folder: Path, count: int = 2000) -> tuple[float, float]:
    """Writes a second of the bare store: 32 at once, and one after the other."""
    store = SqliteStore(folder / "bare.db")
    some = asyncio.Semaphore(_AT_ONCE)

    async def write(name: str) -> None:
        async with some:
            await store.write([Create("a", name, b"x" * 600)])

    start_s = time.perf_counter()
    await asyncio.gather(*(write(f"m{number}") for number in range(count)))
    at_once = count / (time.perf_counter() - start_s)
    start_s = time.perf_counter()
    for number in range(300):
        await store.write([Create("a", f"s{number}", b"x" * 600)])
    one_by_one = 300 / (time.perf_counter() - start_s)
    await store.close()
    return at_once, one_by_one


def _cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _own_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def https_grants(controller: Controller, nodes: int = 32, each: int = 30) -> None:
    start_s = time.perf_counter()
    joined = await join_all(controller, *(f"n{number}" for number in range(nodes)))
    print(f"joins over HTTPS: {nodes / (time.perf_counter() - start_s):.0f}/s")
    await asyncio.gather(*(node.hello() for node in joined))  # the handshakes

    async def grow(node: Node) -> None:
        for _ in range(each):
            await node.request_segments(4)

    start_s, server_s, own_s = time.perf_counter(), _cpu_of(controller.pid), _own_cpu()
    await asyncio.gather(*map(grow, joined))
    took_s = time.perf_counter() - start_s
    own = (_own_cpu() - own_s) / took_s
    print(
        f"segment grants over HTTPS: {nodes * each / took_s:.0f}/s (controller's CPU "
        f"{(_cpu_of(controller.pid) - server_s) / took_s:.0%}, clients' {own:.0%})"
    )
    await asyncio.gather(*(node.close() for node in joined))


async def watchers(controller: Controller, count: int = 2000, changes: int = 5) -> None:
    """All watch as nodes of their own."""
    nodes: list[Node] = []
    for first in range(0, count, 50):
        nodes += await join_all(controller, *(f"w{first + number}" for number in range(50)))
    version = ""
    ready, heard = asyncio.Semaphore(0), asyncio.Semaphore(0)
    times: list[float] = []
    changed_at_s = 0.0
    async with nodes[0].watch() as lines:
        version = (await until_bookmark(lines))[-1].version

    async def watch(node: Node) -> None:
        async with node.watch(version) as lines:
            await until_bookmark(lines)
            ready.release()
            async for line in lines:
                if line.kind is WatchKind.ENTRY:
                    times.append(time.perf_counter() - changed_at_s)
                    heard.release()

    tasks = []
    for node in nodes:
        tasks.append(asyncio.create_task(watch(node)))
        await ready.acquire()
    for number in range(changes):
        changed_at_s = time.perf_counter()
        await nodes[0].publish()
        for _ in range(count):
            await heard.acquire()
        part = sorted(times[number * count :])
        print(
            f"{count} watchers, one change: p50 {statistics.median(part):.3f} s, "
            f"p99 {part[int(count * 0.99)]:.3f} s"
        )
    status = Path(f"/proc/{controller.pid}/status").read_text()
    print(next(line for line in status.splitlines() if line.startswith("VmRSS")))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.gather(*(node.close() for node in nodes))


def main() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (16384, 16384))
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name).absolute()
        at_once, one_by_one = asyncio.run(store_writes(folder))
        print(f"bare store: {at_once:.0f} writes/s 32 at once, {one_by_one:.0f}/s one by one")
        print(f"store and registry: {asyncio.run(store_grants(folder)):.0f} grants/s")
        controller = Controller(
            folder / "c", pod_cidrs=["10.0.0.0/8"], segment_quota=1024, log_level="warning"
        ).start()
        try:
            asyncio.run(https_grants(controller))
            asyncio.run(watchers(controller))
        finally:
            controller.stop()


if __name__ == "__main__":
    main()
