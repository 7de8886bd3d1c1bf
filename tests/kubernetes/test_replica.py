"""A controller at an API server, which leads however long others' answers take."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from limpet.controller import replica
from limpet.controller.settings import ControllerSettings, StoreSettings
from limpet.controller.store.kubernetes import watches
from tests.beds.rogue import answer, serving, take_request
from tests.controller.machines import free_port
from tests.waiting import PATIENCE_S, until, until_answered

CONNECTIONS = 4
"""Of one client: as many lists at once keep whoever asks by it waiting."""


class Server:
    """Has a Lease, and answers no list."""

    def __init__(self, *, fails: bool = False) -> None:
        """`fails`: each list is refused instead."""
        self._fails = fails
        self.lists = 0
        self.renewals = 0
        self.list_given_up = asyncio.Event()
        self._lease: dict[str, Any] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, _, body = (await take_request(reader)).partition(b"\r\n\r\n")
            verb, path, _ = head.decode().split(" ", 2)
            if "/leases" in path:
                writer.write(self._lease_for(verb, body))
            elif "?" not in path:
                writer.write(not_found(path))
            elif self._fails:
                writer.write(answer(b"{}", "500 Internal Server Error"))
            else:
                self.lists += 1
                await reader.read()
                self.list_given_up.set()
                return
            await writer.drain()

    @property
    def holder(self) -> str | None:
        """None: nobody has led."""
        found: str | None = self._lease.get("spec", {}).get("holderIdentity")
        return found

    def _lease_for(self, verb: str, body: bytes) -> bytes:
        if verb == "GET" and not self._lease:
            return not_found("limpet-controller")
        if verb != "GET":
            self.renewals += 1
            self._lease = json.loads(body)
            marks = {"uid": "u", "resourceVersion": str(self.renewals)}
            self._lease["metadata"] = {**self._lease["metadata"], **marks}
        return answer(json.dumps(self._lease).encode())


def not_found(path: str) -> bytes:
    said = {"kind": "Status", "code": 404, "reason": "NotFound", "message": "not found"}
    details = {"name": path.rpartition("/")[2]}
    return answer(json.dumps({**said, "details": details}).encode(), "404 Not Found")


async def health(listen: tuple[str, int]) -> int:
    """Status of what a monitor is answered; 0: nobody is there."""
    try:
        reader, writer = await asyncio.open_connection(*listen)
    except OSError:
        return 0
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    status = (await reader.read()).split(b" ", 2)[1]
    writer.close()
    return int(status)


def kubeconfig(folder: Path, at: str) -> Path:
    path = folder / "config"
    named = {"cluster": "c", "user": "u"}
    content = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://{at}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": named}],
        "current-context": "x",
    }
    path.write_text(json.dumps(content))
    return path


def test_the_lease_is_renewed_while_more_lists_wait_than_a_client_has_connections(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        server = Server()
        async with serving(server.serve, None) as at, asyncio.timeout(PATIENCE_S):
            place = StoreSettings(store="kubernetes", kubeconfig=kubeconfig(tmp_path, at))
            running = asyncio.create_task(replica.run_replica(ControllerSettings(place=place)))
            try:
                await until(lambda: server.lists >= CONNECTIONS)
                before = server.renewals
                await until(lambda: server.renewals > before or server.list_given_up.is_set())
                assert not server.list_given_up.is_set()
            finally:
                running.cancel()
                await asyncio.wait((running,))

    asyncio.run(run())


def test_a_probe_is_answered_while_who_leads_reads_what_there_is(tmp_path: Path) -> None:
    listen = ("127.0.0.1", free_port())

    async def run() -> None:
        server = Server()
        async with serving(server.serve, None) as at, asyncio.timeout(PATIENCE_S):
            place = StoreSettings(store="kubernetes", kubeconfig=kubeconfig(tmp_path, at))
            settings = ControllerSettings(place=place, metrics_listen=(listen,))
            running = asyncio.create_task(replica.run_replica(settings))
            try:
                await until(lambda: server.lists >= CONNECTIONS)
                assert await until_answered(lambda: health(listen)) == 503
            finally:
                running.cancel()
                await asyncio.wait((running,))

    asyncio.run(run())


def test_who_leads_and_cannot_begin_lets_another_lead_and_goes_on_answering_probes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be its machine's own trouble: a port that is taken."""
    monkeypatch.setattr(replica, "_AGAIN_S", 0.01)
    monkeypatch.setattr(watches, "_MARK_S", 0.01)
    listen = ("127.0.0.1", free_port())

    async def run() -> None:
        server = Server(fails=True)
        async with serving(server.serve, None) as at, asyncio.timeout(PATIENCE_S):
            place = StoreSettings(store="kubernetes", kubeconfig=kubeconfig(tmp_path, at))
            settings = ControllerSettings(place=place, metrics_listen=(listen,))
            running = asyncio.create_task(replica.run_replica(settings))
            try:
                await until(lambda: bool(server.holder))
                await until(lambda: server.holder == "")
                assert await until_answered(lambda: health(listen)) == 503
            finally:
                running.cancel()
                await asyncio.wait((running,))

    asyncio.run(run())


def test_a_probe_is_answered_while_the_api_server_is_away(tmp_path: Path) -> None:
    """One that were ended would forget what it knows of when it led."""
    listen = ("127.0.0.1", free_port())

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take_request(reader)  # and goes without an answer

    async def run() -> None:
        async with serving(serve, None) as at:
            place = StoreSettings(store="kubernetes", kubeconfig=kubeconfig(tmp_path, at))
            settings = ControllerSettings(place=place, metrics_listen=(listen,))
            running = asyncio.create_task(replica.run_replica(settings))
            try:
                assert await until_answered(lambda: health(listen)) == 503
            finally:
                running.cancel()
                await asyncio.wait((running,))

    asyncio.run(run())
