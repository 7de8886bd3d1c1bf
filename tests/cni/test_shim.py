"""The built shim against an agent's socket: what it sends, prints, waits for and gives up on."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from limpet.base.errors import CniCode, CniError
from limpet.cni.frames import (
    MAX_ANSWER_BYTES,
    MAX_STDIN_BYTES,
    REQUEST_HEADER_BYTES,
    CniCall,
    decode_request,
    encode_answer,
    request_length,
)
from limpet.cni.protocol.request import parse_request, reply_version
from limpet.cni.protocol.result import encode_error, encode_result
from limpet.cni.protocol.values import CniResult, Verb
from limpet.cni.shim_binary import shim_path
from tests.effort import examples
from tests.waiting import PATIENCE_S

CONF = b'{"cniVersion":"0.4.0","name":"net","type":"limpet"}'
VERSIONS = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]

Serve = Callable[[CniCall, asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True)
class Finished:
    exit_code: int
    stdout: bytes
    stderr: bytes

    @property
    def error(self) -> dict[str, Any]:
        assert self.exit_code == 1
        body: dict[str, Any] = json.loads(self.stdout)
        assert body.keys() >= {"cniVersion", "code", "msg"}
        return body


@dataclass
class Stage:
    """A folder for one test, with the settings file that the shim reads."""

    folder: Path
    conf: dict[str, object] = field(default_factory=dict)

    @property
    def socket(self) -> Path:
        return self.folder / "agent.sock"

    @property
    def conf_file(self) -> Path:
        return self.folder / "shim.conf"

    def environ(self, verb: str = "ADD", **variables: str) -> dict[str, str]:
        lines = {"socket": self.socket, "limit_s": 60} | self.conf
        written = self.folder / "shim.conf.new"  # another shim may read the old one just now
        written.write_text("".join(f"{key} = {value}\n" for key, value in lines.items()))
        written.rename(self.conf_file)
        given = {"LIMPET_SHIM_CONF": str(self.conf_file), "CNI_COMMAND": verb} | variables
        return {key: value for key, value in given.items() if value != "-"}

    async def start(
        self, environ: dict[str, str], *, stdin: int = asyncio.subprocess.PIPE
    ) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            shim_path(),
            stdin=stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environ,
        )

    async def run(self, verb: str = "ADD", stdin: bytes = CONF, **variables: str) -> Finished:
        return await finish(await self.start(self.environ(verb, **variables)), stdin)

    @asynccontextmanager
    async def agent(self, serve: Serve) -> AsyncIterator[None]:
        """An agent that handles each request by `serve`, away again after the block."""

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                header = await reader.readexactly(REQUEST_HEADER_BYTES)
                call = decode_request(await reader.readexactly(request_length(header)))
                assert isinstance(call, CniCall)
                await serve(call, writer)
                await writer.drain()
            finally:
                writer.close()

        server = await asyncio.start_unix_server(connected, self.socket, limit=1 << 22)
        try:
            yield
        finally:
            server.close()  # and no `wait_closed`: since 3.12 that waits for `never` too
        self.socket.unlink(missing_ok=True)


async def finish(process: asyncio.subprocess.Process, stdin: bytes | None) -> Finished:
    stdout, stderr = await process.communicate(stdin)
    assert process.returncode is not None
    return Finished(process.returncode, stdout, stderr)


async def pausing(process: asyncio.subprocess.Process) -> None:
    """Returns when the shim sleeps between two attempts: it waits in poll() for no descriptor."""
    while True:
        call = Path(f"/proc/{process.pid}/syscall").read_text().split()
        if call[1:3] == ["0x0", "0x0"]:
            return
        await asyncio.sleep(0)


def answering(body: bytes, exit_code: int = 0) -> Serve:
    async def serve(_call: CniCall, writer: asyncio.StreamWriter) -> None:
        writer.write(encode_answer(exit_code, body))

    return serve


async def never(_call: CniCall, _writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


@pytest.fixture
def stage() -> Iterator[Stage]:
    # Not tmp_path, whose length may exceed that of a socket's path.
    folder = Path(tempfile.mkdtemp(prefix="limpet-shim-"))
    yield Stage(folder)
    shutil.rmtree(folder)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


# VERSION, and being called wrongly.


@pytest.mark.parametrize("version", VERSIONS)
def test_version_is_answered_without_an_agent_in_the_version_asked(
    stage: Stage, version: str
) -> None:
    async def test() -> None:
        # Settings that cannot be read make no difference.
        found = await stage.run(
            "VERSION", b'{"cniVersion" : "%s"}' % version.encode(), LIMPET_WAIT_S="x"
        )

        assert found.exit_code == 0
        assert json.loads(found.stdout) == {"cniVersion": version, "supportedVersions": VERSIONS}

    run(test())


@pytest.mark.parametrize("stdin", [b"", b"\0" * (2 << 20), b'{"cniVersion":5}', b'"cniVersion":"'])
def test_version_is_answered_whatever_is_on_stdin(stage: Stage, stdin: bytes) -> None:
    async def test() -> None:
        found = await stage.run("VERSION", stdin)

        assert found.exit_code == 0
        assert json.loads(found.stdout)["cniVersion"] == "1.0.0"

    run(test())


def test_version_does_not_wait_for_the_end_of_stdin(stage: Stage) -> None:
    async def test() -> None:
        process = await stage.start(stage.environ("VERSION"))
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b'{"cniVersion":"0.3.1"}')

        assert json.loads(await process.stdout.read())["cniVersion"] == "0.3.1"
        assert await process.wait() == 0

    run(test())


@pytest.mark.parametrize("verb", ["-", "", "add", "ADDX", 'x"\\\n\x7fé', "y" * 9000])
def test_an_unknown_command_gets_error_4(stage: Stage, verb: str) -> None:
    async def test() -> None:
        error = (await stage.run(verb)).error

        assert error["code"] == CniCode.INVALID_ENVIRONMENT
        assert error["msg"].startswith("CNI_COMMAND")
        assert error["cniVersion"] == "0.4.0"

    run(test())


def test_run_by_a_person_it_says_what_it_is(stage: Stage) -> None:
    async def test() -> None:
        ours, terminal = pty.openpty()
        found = await finish(await stage.start(stage.environ("-"), stdin=terminal), None)
        os.close(ours)
        os.close(terminal)

        assert found.exit_code == 0
        assert found.stdout == b""
        assert found.stderr.count(b"\n") == 1
        assert b"CNI plugin" in found.stderr

    run(test())


# What goes to the agent and what comes back.


@pytest.mark.parametrize(("exit_code", "passed_on"), [(0, 0), (1, 1), (255, 255), (256, 255)])
def test_the_agents_answer_is_printed_as_it_is(
    stage: Stage, exit_code: int, passed_on: int
) -> None:
    async def test() -> None:
        body = b'{"any":"\0\xff bytes"}'
        async with stage.agent(answering(body, exit_code)):
            found = await stage.run()

        assert found == Finished(passed_on, body, b"")

    run(test())


def test_the_request_arrives_as_the_runtime_made_it(stage: Stage) -> None:
    async def test() -> None:
        calls: list[CniCall] = []

        async def serve(call: CniCall, writer: asyncio.StreamWriter) -> None:
            calls.append(call)
            writer.write(encode_answer(0, b""))

        variables = {"CNI_NETNS": "", "CNI_ARGS": "K=\udcff;=", "CNI_OTHER": "é"}
        stdin = bytes(range(256)) * 5
        async with stage.agent(serve):
            await stage.run("DEL", stdin, PATH="/bin", XCNI_A="b", **variables)

        assert calls == [CniCall(variables | {"CNI_COMMAND": "DEL"}, stdin)]

    run(test())


def test_stdin_and_answer_of_the_largest_size_pass_whole(stage: Stage) -> None:
    async def test() -> None:
        async def serve(call: CniCall, writer: asyncio.StreamWriter) -> None:
            writer.write(encode_answer(0, call.stdin[::-1]))

        stdin = os.urandom(MAX_STDIN_BYTES)
        assert MAX_ANSWER_BYTES == MAX_STDIN_BYTES
        async with stage.agent(serve):
            found = await stage.run("ADD", stdin)

        assert found.exit_code == 0
        assert found.stdout == stdin[::-1]

    run(test())


def test_many_at_once_get_each_their_own_answer(stage: Stage) -> None:
    async def test() -> None:
        async def serve(call: CniCall, writer: asyncio.StreamWriter) -> None:
            writer.write(encode_answer(0, call.environ["CNI_CONTAINERID"].encode()))

        async with stage.agent(serve):
            found = await asyncio.gather(
                *(stage.run(CNI_CONTAINERID=f"c{number}") for number in range(40))
            )

        assert [f.stdout.decode() for f in found] == [f"c{number}" for number in range(40)]

    run(test())


def test_it_takes_less_than_two_megabytes(stage: Stage) -> None:
    async def test() -> None:
        asked, resident = asyncio.Event(), 0

        async def serve(_call: CniCall, writer: asyncio.StreamWriter) -> None:
            nonlocal resident
            status = Path(f"/proc/{process.pid}/status").read_text()
            resident = int(status.partition("VmHWM:")[2].split()[0])
            writer.write(encode_answer(0, b"{}"))
            asked.set()

        async with stage.agent(serve):
            process = await stage.start(stage.environ())
            await finish(process, CONF)

        assert asked.is_set()
        assert 0 < resident < 2000

    run(test())


def test_with_closed_standard_streams_nothing_but_the_request_goes_to_the_agent(
    stage: Stage,
) -> None:
    async def test() -> None:
        received: list[bytes] = []
        done = asyncio.Event()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            header = await reader.readexactly(REQUEST_HEADER_BYTES)
            received.append(await reader.readexactly(request_length(header)))
            writer.write(encode_answer(0, b"not for the agent"))
            received.append(await reader.read())
            writer.close()
            done.set()

        async with await asyncio.start_unix_server(connected, stage.socket):
            pid = os.posix_spawn(
                shim_path(),
                ["limpet"],
                stage.environ(),
                file_actions=[(os.POSIX_SPAWN_CLOSE, fd) for fd in range(3)],
            )
            await done.wait()
            _, status = os.waitpid(pid, 0)

        assert os.waitstatus_to_exitcode(status) == 0
        assert received == [b"C\0CNI_COMMAND=ADD\0\0", b""]

    run(test())


# While the agent is away.


def test_without_an_agent_it_gives_up_with_error_11_that_says_what_to_do(stage: Stage) -> None:
    async def test() -> None:
        error = (await stage.run(LIMPET_WAIT_S="0.05")).error

        assert error["code"] == CniCode.TRY_AGAIN_LATER
        assert error["cniVersion"] == "0.4.0"
        assert str(stage.socket) in error["msg"]
        assert "systemctl status limpet-agent" in error["details"]

    run(test())


def test_it_tries_for_ten_seconds_unless_it_is_told_otherwise(stage: Stage) -> None:
    async def test() -> None:
        error = (await stage.run()).error

        tried = re.search(r"\(tried for ([0-9.]+) s\)$", error["msg"])
        assert tried is not None
        assert 10.0 <= float(tried[1]) < 10.0 + PATIENCE_S

    run(test())


@pytest.mark.parametrize(("wait_s", "least_s"), [("1.5", 1.5), ("86400", 15)])
def test_status_waits_as_others_do_for_as_long_as_a_kubelet_is_content(
    stage: Stage, wait_s: str, least_s: float
) -> None:
    """A node is not to be NotReady for an agent that is restarted, nor its runtime to seem dead."""

    async def test() -> None:
        error = (await stage.run("STATUS", LIMPET_WAIT_S=wait_s)).error

        assert error["code"] == CniCode.NOT_AVAILABLE
        tried_s = error["msg"].rpartition("(tried for ")[2].removesuffix(" s)")
        assert float(tried_s) >= least_s

    run(test())


def test_an_agent_that_starts_late_is_waited_for(stage: Stage) -> None:
    async def test() -> None:
        process = await stage.start(stage.environ())
        finished = asyncio.create_task(finish(process, CONF))
        await pausing(process)

        async with stage.agent(answering(b"late")):
            assert await finished == Finished(0, b"late", b"")

    run(test())


def test_a_socket_that_nobody_listens_on_counts_as_away(stage: Stage) -> None:
    async def test() -> None:
        with socket.socket(socket.AF_UNIX) as left_behind:
            left_behind.bind(str(stage.socket))
        error = (await stage.run(LIMPET_WAIT_S="0.05")).error

        assert error["code"] == CniCode.TRY_AGAIN_LATER
        assert "refused" in error["msg"]

    run(test())


@pytest.mark.parametrize("part", [b"", encode_answer(0, b"half of it")[:15], b"LM"])
def test_an_agent_killed_over_a_request_gets_it_again_when_it_is_back(
    stage: Stage, part: bytes
) -> None:
    async def test() -> None:
        calls: list[CniCall] = []
        killed = asyncio.Event()

        async def die(call: CniCall, writer: asyncio.StreamWriter) -> None:
            calls.append(call)
            stage.socket.unlink()
            writer.write(part)
            killed.set()

        async def serve(call: CniCall, writer: asyncio.StreamWriter) -> None:
            calls.append(call)
            writer.write(encode_answer(0, b"whole"))

        process = await stage.start(stage.environ())
        finished = asyncio.create_task(finish(process, CONF))
        async with stage.agent(die):
            await killed.wait()
        await pausing(process)
        async with stage.agent(serve):
            assert await finished == Finished(0, b"whole", b"")

        environ = {"CNI_COMMAND": "ADD"}
        assert calls == [CniCall(environ, CONF, 0), CniCall(environ, CONF, 1)]

    run(test())


def test_an_agent_that_always_hangs_up_is_given_up_on(stage: Stage) -> None:
    async def test() -> None:
        attempts = []

        async def hang_up(call: CniCall, _writer: asyncio.StreamWriter) -> None:
            attempts.append(call.attempt)

        async with stage.agent(hang_up):
            error = (await stage.run(LIMPET_WAIT_S="1.0")).error

        assert error["code"] == CniCode.TRY_AGAIN_LATER
        assert attempts == list(range(len(attempts)))
        assert 2 <= len(attempts) <= 101  # it pauses in between

    run(test())


# The limit of the whole run.


@pytest.mark.parametrize(("verb", "code"), [("ADD", 11), ("DEL", 11), ("STATUS", 50)])
def test_an_agent_that_never_answers_is_not_waited_for_for_ever(
    stage: Stage, verb: str, code: int
) -> None:
    async def test() -> None:
        stage.conf["limit_s"] = 2
        async with stage.agent(never):
            error = (await stage.run(verb)).error

        assert error["code"] == code
        assert "did not answer" in error["msg"]

    run(test())


def test_an_agent_whose_backlog_is_full_is_not_waited_for_for_ever(stage: Stage) -> None:
    async def test() -> None:
        with socket.socket(socket.AF_UNIX) as stuck, socket.socket(socket.AF_UNIX) as first:
            stuck.bind(str(stage.socket))
            stuck.listen(0)
            first.connect(str(stage.socket))
            error = (await stage.run(LIMPET_WAIT_S="0.2")).error

        assert error["code"] == CniCode.TRY_AGAIN_LATER

    run(test())


def test_a_stdin_that_never_ends_is_not_waited_for_for_ever(stage: Stage) -> None:
    async def test() -> None:
        stage.conf["limit_s"] = 0.2
        process = await stage.start(stage.environ())
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(CONF)

        error = json.loads(await process.stdout.read())
        assert await process.wait() == 1
        assert error["code"] == CniCode.IO_FAILURE
        assert "stdin" in error["msg"]

    run(test())


def test_a_stdout_that_nobody_reads_is_not_waited_for_for_ever(stage: Stage) -> None:
    async def test() -> None:
        stage.conf["limit_s"] = 0.3
        unread, stdout = os.pipe()
        async with stage.agent(answering(b"x" * MAX_ANSWER_BYTES)):
            process = await asyncio.create_subprocess_exec(
                shim_path(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stdout,
                env=stage.environ(),
            )
            assert await process.wait() == 1
        os.close(unread)
        os.close(stdout)

    run(test())


# Input and settings that cannot be used.


def test_a_stdin_over_one_mebibyte_gets_error_6(stage: Stage) -> None:
    async def test() -> None:
        error = (await stage.run("ADD", CONF + b" " * MAX_STDIN_BYTES)).error

        assert error["code"] == CniCode.DECODE_FAILURE
        assert error["cniVersion"] == "0.4.0"
        assert "1 MiB" in error["msg"]

    run(test())


def test_an_environment_over_the_limit_gets_error_4(stage: Stage) -> None:
    async def test() -> None:
        long = "x" * 100_000
        error = (await stage.run(CNI_ARGS=long, CNI_PATH=long, CNI_MORE=long)).error

        assert error["code"] == CniCode.INVALID_ENVIRONMENT
        assert "CNI_" in error["msg"]

    run(test())


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", encode_answer(0, b"")[:8] + b"\xff" * 4]
)
def test_a_stranger_on_the_socket_gets_error_5(stage: Stage, answer: bytes) -> None:
    async def test() -> None:
        async def serve(_call: CniCall, writer: asyncio.StreamWriter) -> None:
            writer.write(answer)

        async with stage.agent(serve):
            error = (await stage.run()).error

        assert error["code"] == CniCode.IO_FAILURE
        assert str(stage.socket) in error["msg"]

    run(test())


def test_a_socket_that_can_never_be_is_not_waited_for(stage: Stage) -> None:
    async def test() -> None:
        error = (await stage.run(LIMPET_SOCKET=f"{stage.conf_file}/agent.sock")).error

        assert error["code"] == CniCode.IO_FAILURE
        assert "Not a directory" in error["msg"]

    run(test())


def test_the_environment_wins_over_the_settings_file(stage: Stage) -> None:
    async def test() -> None:
        where = stage.socket
        stage.conf |= {"# socket": "x", "socket": "/nowhere", "wait_s": 86400, "from_1.9": "y"}
        async with stage.agent(answering(b"here")):
            found = await stage.run(LIMPET_SOCKET=str(where))
        assert found.stdout == b"here"

        error = (await stage.run(LIMPET_WAIT_S="0")).error
        assert "/nowhere" in error["msg"]

    run(test())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("wait_s", "soon"),
        ("wait_s", ""),
        ("wait_s", "-1"),
        ("limit_s", "1.5s"),
        ("limit_s", "99999999999999999999"),
        ("socket", "agent.sock"),
        ("socket", "/" + "x" * 107),
    ],
)
def test_a_setting_that_cannot_be_used_is_named_with_its_source(
    stage: Stage, key: str, value: str
) -> None:
    async def test() -> None:
        variable = {"wait_s": "LIMPET_WAIT_S", "socket": "LIMPET_SOCKET"}.get(key)
        if variable and value:
            error = (await stage.run("ADD", CONF, **{variable: value})).error
            assert error["code"] == CniCode.INVALID_ENVIRONMENT
            assert variable in error["msg"]

        stage.conf[key] = value
        error = (await stage.run()).error
        assert error["code"] == CniCode.INVALID_NETWORK_CONFIG
        assert f"{stage.conf_file} line " in error["msg"]
        assert key in error["msg"]

    run(test())


@pytest.mark.parametrize("make", [None, Path.mkdir, os.mkfifo, lambda p: p.write_text("#" * 5000)])
def test_a_settings_file_that_cannot_be_read_is_named(
    stage: Stage, make: Callable[[Path], object] | None
) -> None:
    async def test() -> None:
        path = stage.folder / "other.conf"
        if make is not None:
            make(path)
        found = await stage.run(LIMPET_SHIM_CONF=str(path), LIMPET_WAIT_S="0", LIMPET_SOCKET="/x")

        assert found.error["code"] in (5, 7, 11)  # an empty FIFO is an empty file
        assert str(path) in found.error["msg"] or make is os.mkfifo

    run(test())


# Whatever comes in.


async def as_the_agent_does(call: CniCall, writer: asyncio.StreamWriter) -> None:
    try:
        request = parse_request(call.environ, call.stdin)
    except CniError as error:
        writer.write(encode_answer(1, encode_error(error, reply_version(call.stdin))))
        return
    body = b""
    if request.verb is Verb.ADD:
        body = encode_result(CniResult(), request.conf.cni_version)
    writer.write(encode_answer(0, body))


names = st.sampled_from(
    ["CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "LIMPET_WAIT_S"]
) | st.binary(max_size=12).map(lambda b: "CNI_" + os.fsdecode(b.translate(None, b"\0=")))
bytes_of_a_variable = st.binary(max_size=30).map(lambda b: os.fsdecode(b.translate(None, b"\0")))
good = {
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": "a",
    "CNI_NETNS": "/run/netns/a",
    "CNI_IFNAME": "eth0",
}


@settings(
    max_examples=examples(200),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    changes=st.dictionaries(names, bytes_of_a_variable | st.sampled_from(["DEL", "VERSION"])),
    stdin=st.binary() | st.sampled_from([CONF, b'{"cniVersion":"\xff"}']),
)
def test_any_environment_and_any_stdin_give_json_and_an_exit_code(
    stage: Stage, changes: dict[str, str], stdin: bytes
) -> None:
    async def test() -> None:
        variables = {key: value for key, value in (good | changes).items() if key != "CNI_COMMAND"}
        async with stage.agent(as_the_agent_does):
            environ = stage.environ(changes.get("CNI_COMMAND", "ADD"), **variables)
            found = await finish(await stage.start(environ), stdin)

        assert found.stderr == b""
        if found.exit_code == 0 and not found.stdout:
            assert changes["CNI_COMMAND"] == "DEL"
        else:
            body = json.loads(found.stdout)
            assert body["cniVersion"]
            assert found.exit_code == (1 if "code" in body else 0)

    run(test())
