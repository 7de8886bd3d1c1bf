"""An API server of Services, of EndpointSlices and of what policies are made of, on a node's
loopback: a test changes them as it likes, and as fast."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from tests.beds.rogue import STREAM, answer, chunk, serving, take_request

Object = dict[str, Any]
_PATHS = {
    "/api/v1/services": "Service",
    "/apis/discovery.k8s.io/v1/endpointslices": "EndpointSlice",
    # For policies.
    "/apis/networking.k8s.io/v1/networkpolicies": "NetworkPolicy",
    "/api/v1/namespaces": "Namespace",
    "/api/v1/pods": "Pod",
}
_NOT_FOUND = json.dumps({"kind": "Status", "code": 404, "reason": "NotFound"}).encode()


class Enterable(Protocol):
    """A network namespace."""

    def entered(self) -> AbstractContextManager[None]: ...


class ServiceApi:
    """Within the block it answers at `url`, in a thread of its own."""

    def __init__(self, netns: Enterable) -> None:
        self._netns = netns
        self.url = ""
        self.objects: dict[str, dict[str, Object]] = {kind: {} for kind in _PATHS.values()}
        """By kind and name."""
        self.objects["Namespace"]["default"] = {
            "kind": "Namespace",
            "metadata": {"name": "default"},
        }
        self._events: list[tuple[str, bytes]] = []
        """By kind, in order: the version of the first is 1."""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> ServiceApi:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    def _run(self) -> None:
        with self._netns.entered():
            asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self._more = asyncio.Event()
        async with serving(self._talk, None) as at:
            self.url = f"http://{at}"
            self._ready.set()
            await self._ended.wait()

    # Changing

    def put(self, *objects: Object) -> None:
        """Returns when watches are told next."""
        self._change([("MODIFIED", each) for each in objects])

    def delete(self, *objects: Object) -> None:
        self._change([("DELETED", each) for each in objects])

    def _change(self, changes: Iterable[tuple[str, Object]]) -> None:
        done = threading.Event()
        self._loop.call_soon_threadsafe(self._changed, changes, done)
        done.wait()

    def _changed(self, changes: Iterable[tuple[str, Object]], done: threading.Event) -> None:
        for what, item in changes:
            version = str(len(self._events) + 1)
            item["metadata"].setdefault("namespace", "shop")
            item["metadata"]["resourceVersion"] = version
            name, held = item["metadata"]["name"], self.objects[item["kind"]]
            if what == "DELETED":
                held.pop(name, None)
            else:
                held[name] = item
            line = json.dumps({"type": what, "object": item}).encode() + b"\n"
            self._events.append((item["kind"], line))
        self._more.set()
        self._more = asyncio.Event()
        done.set()

    # Answering

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                target = urlsplit((await take_request(reader)).split(b" ")[1].decode())
                kind = _PATHS.get(target.path)
                query = {name: values[0] for name, values in parse_qs(target.query).items()}
                if kind is None:
                    writer.write(answer(_NOT_FOUND, "404 Not Found"))
                elif "watch" in query:
                    await self._watched(kind, int(query["resourceVersion"]), writer)
                else:
                    writer.write(answer(self._list(kind, query)))
                await writer.drain()

    def _list(self, kind: str, query: dict[str, str]) -> bytes:
        begin, limit = int(query.get("continue", "0")), int(query.get("limit", "1000000"))
        items = list(self.objects[kind].values())
        end = begin + limit
        metadata = {"resourceVersion": str(len(self._events))}
        if end < len(items):
            metadata["continue"] = str(end)
        return json.dumps({"metadata": metadata, "items": items[begin:end]}).encode()

    async def _watched(self, kind: str, version: int, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM)
        while True:
            more = self._more
            lines = b"".join(line for its, line in self._events[version:] if its == kind)
            version = len(self._events)
            if lines:
                writer.write(chunk(lines))
                await writer.drain()
            await more.wait()


def service(name: str, *addresses: str, **spec: Any) -> Object:
    ports = [
        {"name": "http", "protocol": "TCP", "port": 80},
        {"name": "ask", "protocol": "UDP", "port": 53},
    ]
    said = {"clusterIP": addresses[0], "clusterIPs": list(addresses), "ports": ports, **spec}
    return {"kind": "Service", "metadata": {"name": name}, "spec": said}


def slices(name: str, *addresses: str, http: int = 8080, ask: int = 5353) -> list[Object]:
    """One of each IP version, also where it is empty."""
    return [
        {
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"{name}-{version}",
                "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": f"IPv{version}",
            "ports": [
                {"name": "http", "port": http},
                {"name": "ask", "protocol": "UDP", "port": ask},
            ],
            "endpoints": [
                {"addresses": [each]} for each in addresses if (":" in each) is (version == 6)
            ],
        }
        for version in (4, 6)
    ]
