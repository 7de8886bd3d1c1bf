"""Commands in containers, against the WebSockets of another library."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import WSMsgType, web

from limpet.base.errors import LimpetError
from limpet.base.http.connection import LinkError
from limpet.kubernetes.access.access import plain_access
from limpet.kubernetes.client import Client
from limpet.kubernetes.errors import StatusError
from limpet.kubernetes.exec import ExecStream, run_in_pod
from limpet.kubernetes.kinds.objects import Metadata
from limpet.kubernetes.pods import Pod

POD = Pod(metadata=Metadata(name="limpet-agent-x", namespace="limpet-system"))
DONE = b"\3" + json.dumps({"metadata": {}, "status": "Success"}).encode()
FAILED = {
    "status": "Failure",
    "reason": "NonZeroExitCode",
    "message": "command terminated with non-zero exit code",
    "details": {"causes": [{"reason": "ExitCode", "message": "3"}]},
}
NOT_THERE = {"status": "Failure", "message": 'exec: "limpet": not found', "code": 500}
FORBIDDEN = {"kind": "Status", "status": "Failure", "message": "carla may not", "code": 403}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def run(handler: Handler, *, silence_s: float = 20.0) -> tuple[int, bytes, bytes]:
    """Exit code, stdout and stderr of a command at a server that does as `handler`."""

    async def work() -> tuple[int, bytes, bytes]:
        app = web.Application()
        app.router.add_get("/api/v1/namespaces/limpet-system/pods/limpet-agent-x/exec", handler)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        client = Client(plain_access(f"http://127.0.0.1:{port}"))
        said = {ExecStream.STDOUT: b"", ExecStream.STDERR: b""}

        def hear(stream: ExecStream, data: bytes) -> None:
            said[stream] += data

        words = ["limpet", "path", "--", "a b", "ü&container=x"]
        try:
            code = await run_in_pod(client, POD, "agent", words, hear, silence_s=silence_s)
            return code, said[ExecStream.STDOUT], said[ExecStream.STDERR]
        finally:
            client.close()
            await runner.cleanup()

    return asyncio.run(work())


def speaking(*messages: bytes, protocol: str = "v5.channel.k8s.io") -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=[protocol])
        await socket.prepare(request)
        for each in messages:
            await socket.send_bytes(each)
        return socket

    return handle


def test_what_a_command_writes_comes_by_its_streams_with_its_exit_code() -> None:
    asked = []

    async def handle(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=["v5.channel.k8s.io"], autoping=False)
        await socket.prepare(request)
        asked.append(request.query.getall("command"))
        assert "Accept" not in request.headers
        await socket.ping(b"still there?")
        pong = await socket.receive()
        assert pong.type is WSMsgType.PONG
        await socket.send_bytes(b"\1")
        await socket.send_bytes(b"\1" + bytes(40_000))
        await socket.send_bytes(b"\2" + pong.data)
        await socket.send_bytes(b"\3" + json.dumps(FAILED).encode())
        return socket

    assert run(handle) == (3, bytes(40_000), b"still there?")
    assert asked == [["limpet", "path", "--", "a b", "ü&container=x"]]


@pytest.mark.parametrize("protocol", ["v5.channel.k8s.io", "v4.channel.k8s.io"])
def test_api_servers_of_before_and_after_130_are_understood(protocol: str) -> None:
    assert run(speaking(b"\1ready", DONE, protocol=protocol)) == (0, b"ready", b"")


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (speaking(b"\1x", b"\3" + json.dumps(NOT_THERE).encode()), "not found"),
        (speaking(b"\1x"), "ended without a word"),
        (speaking(b"\3{"), "not do that as expected"),
        (speaking(b"\1" + bytes(2 << 20)), "larger than 1024 KiB"),
        (speaking(DONE, protocol="v1.else"), "speaks none of"),
    ],
    ids=["not there", "half way", "garbage", "endless", "another protocol"],
)
def test_a_command_that_does_not_come_to_its_end_is_said_in_words(
    handler: Handler, said: str
) -> None:
    with pytest.raises(LinkError, match=said) as found:
        run(handler)
    assert str(found.value).startswith("run limpet in pod limpet-system/limpet-agent-x: ")


def test_a_refusal_is_the_api_servers() -> None:
    async def refuse(_request: web.Request) -> web.StreamResponse:
        return web.json_response(FORBIDDEN, status=403)

    with pytest.raises(StatusError, match="carla may not"):
        run(refuse)


def test_who_takes_no_websocket_is_no_api_server() -> None:
    async def no_socket(_request: web.Request) -> web.StreamResponse:
        return web.json_response({})

    with pytest.raises(LinkError, match="HTTP status 200"):
        run(no_socket)


def test_a_server_that_is_silent_is_given_up() -> None:
    async def hang(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=["v5.channel.k8s.io"])
        await socket.prepare(request)
        await socket.receive()
        return socket

    with pytest.raises(LimpetError, match=r"silent for 0\.2 s"):
        run(hang, silence_s=0.2)
