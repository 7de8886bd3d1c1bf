"""The controller under load: a real one in a process of its own, on loopback, its disk synced."""

from __future__ import annotations

import asyncio
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from tests.controller.machines import Controller, Node, join_all, until_bookmark
from tests.unit.controller.state.cluster_tables import join, network

from bench.bed import Bed
from bench.figures import Figure, Target
from bench.nodes.resident import cpu_s, resident_kib
from limpet.cluster.api import WatchKind
from limpet.controller.registry.registry import Registry
from limpet.controller.state import grants
from limpet.controller.state.authority import create_cluster
from limpet.controller.store.interface import StorePut
from limpet.controller.store.sqlite import SqliteStore

WATCHERS = 2000
_AT_ONCE = 32
_GRANTING_NODES = 32
_GRANTS_EACH = 30
_OPEN_FILES = 16384
_JOINS_AT_ONCE = 50


def controller_store(bed: Bed, rounds: int) -> list[Figure]:
    """Durable writes and segment grants without HTTP: what disk and registry let through."""
    at_once, one_by_one, granted = [], [], []
    for _ in range(rounds):
        with _folder(bed) as folder:
            written = asyncio.run(_store_writes(folder))
            at_once.append(written[0])
            one_by_one.append(written[1])
            granted.append(asyncio.run(_store_grants(folder)))
    enough = Target(500, of_ratio=False, at_least=True)
    return [
        Figure("store-writes", f"controller's store: writes, {_AT_ONCE} at once", "1/s", at_once),
        Figure("store-writes-1", "... one after the other", "1/s", one_by_one),
        Figure("grants-store", "segments granted at the store", "1/s", granted, target=enough),
    ]


def controller_https(bed: Bed, rounds: int) -> list[Figure]:
    """Joins and segment grants as nodes ask for them, with both sides' processor time apart."""
    joined: list[float] = []
    granted: list[float] = []
    server: list[float] = []
    clients: list[float] = []
    for _ in range(rounds):
        with running_controller(bed) as controller:
            asyncio.run(_grants_over_https(controller, joined, granted, server, clients))
    enough = Target(300, of_ratio=False, at_least=True)
    return [
        Figure("joins-https", "nodes that join, over HTTPS", "1/s", joined),
        Figure("grants-https", "segments granted over HTTPS", "1/s", granted, target=enough),
        Figure("grants-https-cpu", "... the controller", "CPU ms each", server),
        Figure(
            "grants-https-clients", "... the clients, on the same cores", "CPU ms each", clients
        ),
    ]


def controller_watchers(bed: Bed, rounds: int) -> list[Figure]:
    """One node changes and all that watch hear of it."""
    halves: list[float] = []
    last: list[float] = []
    with running_controller(bed) as controller:
        asyncio.run(_tell_watchers(controller, rounds, halves, last))
        resident = resident_kib(controller.pid) * 1024 / 1e6
    soon = Target(2, of_ratio=False)
    what = f"one change heard by {WATCHERS} watching nodes"
    return [
        Figure("watch-p50", f"{what}: half of them", "s", halves),
        Figure("watch-p99", f"{what}: 99 %", "s", last, target=soon),
        Figure("controller-memory", "... the controller's resident memory", "MB", [resident]),
    ]


@contextmanager
def _folder(bed: Bed) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=bed.disk_folder, prefix=f"lbn-{os.getpid()}-") as name:
        yield Path(name)


@contextmanager
def running_controller(bed: Bed) -> Iterator[Controller]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, _OPEN_FILES), hard))
    try:
        with _folder(bed) as folder:
            made = Controller(
                folder / "c", pod_cidrs=["10.0.0.0/8"], segment_quota=1024, log_level="warning"
            )
            made.start()
            try:
                yield made
            finally:
                made.stop()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def _store_writes(folder: Path, writes: int = 2000, alone: int = 300) -> tuple[float, float]:
    """A second, several at once and one after the other."""
    store = SqliteStore(folder / "bare.db")
    some = asyncio.Semaphore(_AT_ONCE)

    async def write(name: str) -> None:
        async with some:
            await store.write([StorePut("a", name, b"x" * 600)])

    started_s = time.perf_counter()
    await asyncio.gather(*(write(f"m{number}") for number in range(writes)))
    at_once = writes / (time.perf_counter() - started_s)
    started_s = time.perf_counter()
    for number in range(alone):
        await store.write([StorePut("a", f"s{number}", b"x" * 600)])
    one_by_one = alone / (time.perf_counter() - started_s)
    await store.close()
    return at_once, one_by_one


async def _store_grants(folder: Path, nodes: int = 50, each: int = 40) -> float:
    """A second, each node asking one after the other."""
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

    started_s = time.perf_counter()
    await asyncio.gather(*map(grow, uids))
    rate = nodes * each / (time.perf_counter() - started_s)
    await registry.stop()
    await store.close()
    return rate


async def _grants_over_https(
    controller: Controller,
    joined: list[float],
    granted: list[float],
    server: list[float],
    clients: list[float],
) -> None:
    started_s = time.perf_counter()
    nodes = await join_all(controller, *(f"n{number}" for number in range(_GRANTING_NODES)))
    joined.append(len(nodes) / (time.perf_counter() - started_s))
    await asyncio.gather(*(node.hello() for node in nodes))  # the handshakes

    async def grow(node: Node) -> None:
        for _ in range(_GRANTS_EACH):
            await node.request_segments(4)

    started_s, server_s, own_s = time.perf_counter(), cpu_s(controller.pid), time.process_time()
    await asyncio.gather(*map(grow, nodes))
    made = len(nodes) * _GRANTS_EACH
    granted.append(made / (time.perf_counter() - started_s))
    clients.append((time.process_time() - own_s) * 1e3 / made)
    server.append((cpu_s(controller.pid) - server_s) * 1e3 / made)
    await asyncio.gather(*(node.close() for node in nodes))


async def _tell_watchers(
    controller: Controller, changes: int, halves: list[float], last: list[float]
) -> None:
    """Seconds until half of them and until 99 % have heard, for each change."""
    nodes = await _join_many(controller)
    async with nodes[0].watch() as lines:
        version = (await until_bookmark(lines))[-1].version
    ready, heard = asyncio.Semaphore(0), asyncio.Semaphore(0)
    times_s: list[float] = []

    async def watch(node: Node) -> None:
        async with node.watch(version) as lines:
            await until_bookmark(lines)
            ready.release()
            async for line in lines:
                if line.kind is WatchKind.DOCUMENT:
                    times_s.append(time.perf_counter())
                    heard.release()

    tasks = []
    for node in nodes:
        tasks.append(asyncio.create_task(watch(node)))
        await ready.acquire()
    for _ in range(changes):
        times_s.clear()
        changed_at_s = time.perf_counter()
        await nodes[0].publish()
        for _ in nodes:
            await heard.acquire()
        took_s = sorted(each - changed_at_s for each in times_s)
        halves.append(statistics.median(took_s))
        last.append(took_s[len(took_s) * 99 // 100])
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.gather(*(node.close() for node in nodes))


async def _join_many(controller: Controller) -> Sequence[Node]:
    nodes: list[Node] = []
    names = (f"w{number}" for number in count())
    while len(nodes) < WATCHERS:
        nodes += await join_all(controller, *(next(names) for _ in range(_JOINS_AT_ONCE)))
    return nodes
