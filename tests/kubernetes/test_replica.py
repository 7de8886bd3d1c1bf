"""A controller at an API server, which leads however long others' answers take."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from limpet.controller import replica
from limpet.controller.registry.records import AuthorityRecord
from limpet.controller.registry.tables import Tables
from limpet.controller.settings import ControllerSettings, StoreSettings
from limpet.controller.state.authority import create_cluster
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


@pytest.mark.parametrize("is_record", [False, True])
def test_one_that_follows_says_that_the_secrets_are_nonsense_and_goes_on_once_they_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_record: bool
) -> None:
    """It ended with a traceback, and was started again, for as long as they were nonsense."""
    monkeypatch.setattr(replica, "_AGAIN_S", 0.01)
    listen = ("127.0.0.1", free_port())
    damaged = AuthorityRecord(b"no key", "no certificate", ())
    secrets = msgspec.json.encode(damaged) if is_record else b"{}x"
    renewals = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal renewals
        while path := (await take_request(reader)).partition(b"\r\n")[0].split(b" ")[1].decode():
            if "/leases" in path:
                renewals += 1
                writer.write(answer(json.dumps(lease_of_another(renewals)).encode()))
            elif "/secrets/" in path:
                writer.write(answer(json.dumps(secret_with(secrets)).encode()))
            else:
                writer.write(not_found(path))
            await writer.drain()

    async def run() -> None:
        nonlocal secrets
        async with serving(serve, None) as at, asyncio.timeout(PATIENCE_S):
            place = StoreSettings(store="kubernetes", kubeconfig=kubeconfig(tmp_path, at))
            settings = ControllerSettings(
                place=place, metrics_listen=(listen,), listen=(("127.0.0.1", 0),)
            )
            with capture_logs() as logs:
                running = asyncio.create_task(replica.run_replica(settings))
                try:
                    await until(lambda: running.done() or said_in(logs, "not served"))
                    (said,) = said_in(logs, "not served")
                    assert said["error"].startswith("read the cluster's secrets: ")
                    assert "put a back-up of the Secret limpet-authority" in said["error"]

                    tables = Tables(0.0)
                    create_cluster(tables, ControllerSettings().network)
                    secrets = msgspec.json.encode(tables.authority)
                    await until(lambda: said_in(logs, "follows"))
                    assert await health(listen) == 200
                finally:
                    running.cancel()
                    await asyncio.wait((running,))

    asyncio.run(run())


def said_in(logs: list[Any], event: str) -> list[Any]:
    return [each for each in logs if each["event"] == event]


def lease_of_another(version: int) -> dict[str, Any]:
    """Renewed with each look: nobody else comes to lead."""
    metadata = {"name": "limpet-controller", "uid": "u", "resourceVersion": str(version)}
    spec = {
        "holderIdentity": "another",
        "leaseDurationSeconds": 15,
        "renewTime": f"2026-01-01T00:00:00.{version:06}Z",
    }
    return {"metadata": metadata, "spec": spec}


def secret_with(record: bytes) -> dict[str, Any]:
    data = {"name": b64encode(b"authority").decode(), "record": b64encode(record).decode()}
    metadata = {"name": "limpet-authority", "uid": "u", "resourceVersion": "1"}
    return {"metadata": metadata, "data": data}
