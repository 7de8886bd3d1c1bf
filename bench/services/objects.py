"""Services and EndpointSlices at the API server, made by hand; and when it told of a change."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from bench.services.part import FLOW_PORT, NAME_PORTS
from limpet.base.http.connection import LinkError
from limpet.kubernetes.access.kubeconfig import find_access
from limpet.kubernetes.client import Client
from limpet.kubernetes.errors import BusyError
from limpet.kubernetes.kinds.objects import Metadata, Object, Resource
from limpet.kubernetes.kinds.services import ENDPOINT_SLICES, SliceView
from limpet.kubernetes.lists import Selection
from limpet.kubernetes.reflector import Reflector
from limpet.kubernetes.reflector_state import ObjectChanges

ENDPOINTS = 5
"""Of each Service that nobody asks."""
SERVER = "10.1.0.3"
ASKED, MOVED = "10.96.250.1", "10.96.250.2"
_MOVED_SLICE = "moved-1"
_AT_ONCE = 8
_TRIES, _PAUSE_S = 10, 2.0
T = TypeVar("T")


class _Service(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    spec: dict[str, Any] | None = None


class _Slice(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    address_type: str = ""
    endpoints: list[dict[str, Any]] | None = None
    ports: list[dict[str, Any]] | None = None


_SERVICES = Resource("Service", "services", _Service, namespaced=True)
_SLICES = Resource("EndpointSlice", "endpointslices", _Slice, "discovery.k8s.io", namespaced=True)


class ServiceObjects:
    """Asks the API server from a thread of its own, on connections that stay, and watches there the
    one slice that is changed. The calling thread waits."""

    def __init__(self, kubeconfig: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._size = 0
        self._told: dict[int, asyncio.Future[float]] = {}
        """By the port that the endpoint is to have: when the API server says so."""
        self._client = self._ask(self._begin(kubeconfig))

    def close(self) -> None:
        self._ask(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    @property
    def count(self) -> int:
        """Objects: of each Service two, and those two that are asked."""
        return 2 * (self._size + 2)

    def grow(self, size: int) -> None:
        """So many Services that nobody asks, with their endpoints."""
        numbers, self._size = range(self._size, size), size
        self._ask(_of_each(numbers, lambda number: _create_unasked(self._client, number)))

    def move_all(self, port: int) -> None:
        """The endpoints of all Services that nobody asks are at this port."""
        changes = {"ports": [{"name": "p8080", "port": port}]}

        async def change(number: int) -> None:
            name = f"other-{number}-1"
            for tries_left in reversed(range(_TRIES)):
                try:
                    await self._client.patch(_SLICES, name, changes, namespace="default")
                    return
                except (LinkError, BusyError):  # the disk is busy, or both who hear of changes
                    if not tries_left:
                        raise
                    await asyncio.sleep(_PAUSE_S)

        self._ask(_of_each(range(self._size), change))

    def move(self, port: int) -> float:
        """The one endpoint that moves is at this port; when the API server told it to who watches,
        by time.monotonic."""
        return self._ask(self._move(port))

    def _ask(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _begin(self, kubeconfig: Path) -> Client:
        client = Client(find_access(kubeconfig))
        await _create(client, "asked", ASKED, [SERVER], (NAME_PORTS[0], FLOW_PORT))
        await _create(client, "moved", MOVED, [SERVER], (NAME_PORTS[0],))
        watching = Reflector(
            client,
            ENDPOINT_SLICES,
            self._hear,
            mirror=False,
            random=random.random,
            selection=Selection(fields=f"metadata.name={_MOVED_SLICE}"),
        )
        self._watching = asyncio.create_task(watching.run())
        while not watching.follow_state.listed:
            await asyncio.sleep(0.01)
        return client

    async def _end(self) -> None:
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)
        self._client.close()
        await asyncio.sleep(0)  # what was aborted ends

    async def _hear(self, changes: ObjectChanges[SliceView]) -> None:
        now_s = time.monotonic()
        for each in changes.put:
            for port in each.ports or ():
                if (told := self._told.pop(port.port or 0, None)) is not None:
                    told.set_result(now_s)

    async def _move(self, port: int) -> float:
        told: asyncio.Future[float] = self._loop.create_future()
        self._told[port] = told
        changes = {"ports": [{"name": f"p{NAME_PORTS[0]}", "port": port}]}
        await self._client.patch(_SLICES, _MOVED_SLICE, changes, namespace="default")
        return await told


async def _of_each(numbers: range, do: Callable[[int], Any]) -> None:
    some = asyncio.Semaphore(_AT_ONCE)

    async def one(number: int) -> None:
        async with some:
            await do(number)

    await asyncio.gather(*map(one, numbers))


async def _create_unasked(client: Client, number: int) -> None:
    at = f"10.96.{number // 250}.{number % 250 + 2}"
    first = number * ENDPOINTS
    ends = [f"10.2.{each // 250}.{each % 250 + 1}" for each in range(first, first + ENDPOINTS)]
    await _create(client, f"other-{number}", at, ends, (8080,))


async def _create(
    client: Client, name: str, address: str, ends: list[str], ports: tuple[int, ...]
) -> None:
    """Port 80 leads to the first of `ports`, the others to themselves."""
    asked = [{"name": f"p{each}", "port": each, "targetPort": each} for each in ports]
    asked[0]["port"] = 80
    spec = {"clusterIP": address, "ports": asked}
    metadata = Metadata(name=name)
    await client.create(_SERVICES, _Service(metadata=metadata, spec=spec), namespace="default")
    labels = {"kubernetes.io/service-name": name}
    made = _Slice(
        metadata=Metadata(name=f"{name}-1", labels=labels),
        address_type="IPv4",
        endpoints=[{"addresses": [each], "conditions": {"ready": True}} for each in ends],
        ports=[{"name": f"p{each}", "port": each} for each in ports],
    )
    await client.create(_SLICES, made, namespace="default")
