"""Who leads renews its Lease by one request, and leads on when answers are lost or come late."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from limpet.controller.leader.elector import Elector
from limpet.kubernetes.access.access import Access, parse_server
from limpet.kubernetes.client import Client
from tests.beds.rogue import answer, serving
from tests.waiting import until


class Server:
    """Has one Lease, which it writes by compare-and-swap as an API server does. What goes wrong
    goes wrong with its second write, the first renewal."""

    def __init__(self, fault: str = "") -> None:
        """`fault`: "lost": it is done, and the connection breaks before the answer; "late": the
        connection breaks, and it is done after the next read; "deleted", "taken": the Lease was,
        just before."""
        self.lease: dict[str, Any] | None = None
        self.verbs: list[str] = []
        self._fault = fault
        self._writes = 0
        self._late: list[dict[str, Any]] = []
        self._versions = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            lengths = [
                int(line.split(b":")[1])
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length:")
            ]
            body = await reader.readexactly(sum(lengths))
            verb = head.split(b" ")[0].decode()
            self.verbs.append(verb)
            self._writes += verb != "GET"
            fault = self._fault if verb != "GET" and self._writes == 2 else ""
            if fault == "late":
                self._late.append(json.loads(body))
                break
            if fault == "deleted":
                self.lease = None
            elif fault == "taken":
                self._take("other")
            said = self._read() if verb == "GET" else self._write(verb, json.loads(body))
            if fault == "lost":
                break
            writer.write(said)
            await writer.drain()
            while verb == "GET" and self._late:
                self._write("PUT", self._late.pop())
        writer.close()

    @property
    def holder(self) -> str:
        return str(self.lease["spec"].get("holderIdentity", "")) if self.lease is not None else ""

    @property
    def transitions(self) -> int:
        return int(self.lease["spec"].get("leaseTransitions", 0)) if self.lease is not None else 0

    def _take(self, holder: str) -> None:
        """As somebody does by hand."""
        assert self.lease is not None
        self._keep({**self.lease, "spec": {**self.lease["spec"], "holderIdentity": holder}})

    def _read(self) -> bytes:
        if self.lease is None:
            return _refused("404 Not Found", "NotFound")
        return answer(json.dumps(self.lease).encode())

    def _write(self, verb: str, lease: dict[str, Any]) -> bytes:
        if verb == "POST" and self.lease is not None:
            return _refused("409 Conflict", "AlreadyExists")
        if verb == "PUT":
            if self.lease is None:
                return _refused("404 Not Found", "NotFound")
            found = self.lease["metadata"]["resourceVersion"]
            if lease["metadata"]["resourceVersion"] != found:
                return _refused("409 Conflict", "Conflict")
        self._keep(lease)
        return self._read()

    def _keep(self, lease: dict[str, Any]) -> None:
        self._versions += 1
        marks = {"uid": "u", "resourceVersion": str(self._versions)}
        self.lease = {**lease, "metadata": {**lease["metadata"], **marks}}


def _refused(status: str, reason: str) -> bytes:
    code = int(status.split(" ")[0])
    said = {"kind": "Status", "code": code, "reason": reason, "message": reason}
    return answer(json.dumps({**said, "details": {"name": "limpet-controller"}}).encode(), status)


def elect(server: Server, done: Callable[[Elector], bool]) -> None:
    """Until `done`, and the elector has stopped."""

    async def run() -> None:
        async with serving(server.serve, None) as at:
            client = Client(Access(parse_server(f"http://{at}"), "test"))
            elector = Elector(client, "limpet-system", "me", retry_s=0.01)
            elector.start()
            try:
                await elector.turned(leads=True)
                await until(lambda: done(elector))
            finally:
                await elector.stop()
                client.close()
                await asyncio.sleep(0)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("fault", "verbs"),
    [
        ("", ["PUT", "PUT", "PUT", "PUT"]),
        # It is read, and done again.
        ("lost", ["PUT", "GET", "PUT", "PUT"]),
        # Between a read and a wish, which is refused for it.
        ("late", ["PUT", "GET", "PUT", "GET", "PUT", "PUT"]),
        ("deleted", ["PUT", "GET", "POST", "PUT"]),
    ],
)
def test_who_leads_renews_by_one_request_and_leads_on_after(fault: str, verbs: list[str]) -> None:
    server = Server(fault)

    def renewed(elector: Elector) -> bool:
        # A deleted Lease is nobody's from the moment in which it is read until it is made again.
        assert elector.leads or fault == "deleted"
        return elector.leads and len(server.verbs) >= 2 + len(verbs)

    elect(server, renewed)
    assert server.verbs[:2] == ["GET", "POST"]
    assert server.verbs[2:][: len(verbs)] == verbs
    assert server.transitions == 0
    assert server.holder == ""  # it was given back at the end


def test_who_finds_its_lease_with_another_follows_and_only_reads() -> None:
    server = Server("taken")

    def has_followed(elector: Elector) -> bool:
        return elector.leader == "other" and not elector.leads and len(server.verbs) >= 6

    elect(server, has_followed)
    assert server.verbs[:3] == ["GET", "POST", "PUT"]
    assert set(server.verbs[3:]) == {"GET"}
    assert server.holder == "other"


def test_a_leader_that_stops_after_a_lost_answer_gives_its_lease_back_nevertheless() -> None:
    server = Server("lost")
    elect(server, lambda _: len(server.verbs) >= 3)
    assert server.holder == ""
