"""What runs in a pod that asks: it tries each target and tells what came of it."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from pathlib import Path

import msgspec

from limpet.agent.client import ask as ask_agent
from limpet.agent.status.paths import PathAnswer
from limpet.base.errors import LimpetError
from limpet.base.process.connecting import cause_of
from limpet.cli.connectivity.answerer import answer
from limpet.cli.connectivity.tasks import (
    ANSWER_PORT,
    OWN_PORT,
    ConnectivityTarget,
    TargetKind,
    TargetOutcome,
    Task,
)
from limpet.linux.packets.echo import Echo

_SMALL_BYTES = 100
_WAIT_S = 1.0
"""Seconds for one answer; then it is asked again."""
_TCP_BYTES = 64 << 10
_AT_ONCE = 8


async def probe(task: Task, own: dict[int, str], agent_socket: Path) -> list[TargetOutcome]:
    """Outcome of each target, in order. `own`: the pod's addresses by IP version."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(target: ConnectivityTarget) -> TargetOutcome:
        async with room:
            return await _try(target, task.patience_s)

    to_itself = None
    if any(each.kind is TargetKind.HAIRPIN for each in task.targets):
        to_itself = asyncio.create_task(answer(OWN_PORT))
    tried = await asyncio.gather(*map(one, task.targets))
    if to_itself is not None:
        to_itself.cancel()
    # One after the other and in this thread: msgspec crashes where several read a type at first.
    return [
        _with_rung(outcome, target.address, own, agent_socket)
        if target.kind in (TargetKind.POD, TargetKind.NODE)
        else outcome
        for outcome, target in zip(tried, task.targets, strict=True)
    ]


async def _try(target: ConnectivityTarget, patience_s: float) -> TargetOutcome:
    deadline_s = time.monotonic() + patience_s
    rtt_ms = packet_bytes = tcp_ms = None
    error = ""
    try:
        if target.kind is TargetKind.DENIED:
            await _nobody_answers(target.address, target.port, deadline_s)
        elif not target.port:
            port = ANSWER_PORT if target.kind is TargetKind.POD else 0
            echo = Echo(target.address, port)
            try:
                rtt_ms = await _first_answer(echo, deadline_s)
                packet_bytes = await _whole_packets(echo, deadline_s)
            finally:
                echo.close()
        if target.kind is TargetKind.POD:
            tcp_ms = await _stream(target.address, ANSWER_PORT, deadline_s, _TCP_BYTES)
        elif target.kind in (TargetKind.SERVICE, TargetKind.HAIRPIN):
            tcp_ms = await _served(target.address, target.port, deadline_s)
        elif target.kind is TargetKind.OUTSIDE and target.port:
            rtt_ms = await _stream(target.address, target.port, deadline_s, 0)
    except _NotReached as failure:
        error = str(failure)
    except OSError as failure:
        error = failure.strerror or str(failure) or type(failure).__name__
    return TargetOutcome(error, "", rtt_ms, packet_bytes, tcp_ms)


def _with_rung(
    outcome: TargetOutcome, address: str, own: dict[int, str], agent_socket: Path
) -> TargetOutcome:
    rung, why = _rung(address, own, agent_socket)
    error = f"{outcome.error}: {why}" if outcome.error and why else outcome.error
    return msgspec.structs.replace(outcome, rung=rung, error=error)


class _NotReached(Exception):
    """In words."""


async def _first_answer(echo: Echo, deadline_s: float) -> float:
    """Round trip in milliseconds. Raises: _NotReached."""
    refused = ""
    while (left_s := deadline_s - time.monotonic()) > 0:
        began_s = time.monotonic()
        try:
            if await echo.ask(_SMALL_BYTES, min(_WAIT_S, left_s)) is not None:
                return round((time.monotonic() - began_s) * 1000, 3)
        except OSError as error:  # there is no route yet, or nobody listens yet
            refused = cause_of(error)
            await asyncio.sleep(min(_WAIT_S / 4, left_s))
    raise _NotReached("no answer" + (f" ({refused})" if refused else ""))


async def _whole_packets(echo: Echo, deadline_s: float) -> int:
    """Size of the largest packet that gets there and back, as the kernel finds it out.

    Raises: _NotReached when packets that should fit are lost.
    """
    size = echo.packet_bytes()
    while True:
        try:
            size = min(size, echo.packet_bytes())
            back = await echo.ask(size, _WAIT_S)
        except OSError as error:
            if error.errno not in (errno.EMSGSIZE, errno.ECONNREFUSED):
                raise
            back = None
        if back is not None:
            if back >= size:
                return size
            size = back  # the way back is narrower
        elif time.monotonic() > deadline_s:
            raise _NotReached(f"packets of {size} bytes are lost, small ones are not")


async def _nobody_answers(address: str, port: int, deadline_s: float) -> None:
    """Returns once a connection comes to nothing. Raises: _NotReached where it comes about, since
    what was made a moment ago may not be in force everywhere until then."""
    while True:
        try:
            await _stream(address, port, time.monotonic() + _WAIT_S, 0)
        except ConnectionRefusedError as error:
            raise _NotReached("nobody listens there, so it tells nothing of policies") from error
        except (OSError, _NotReached):
            return
        if time.monotonic() > deadline_s:
            raise _NotReached("it answers, and a policy says that it must not")
        await asyncio.sleep(_WAIT_S / 4)


async def _served(address: str, port: int, deadline_s: float) -> float:
    """As `_stream`; who serves a Service hears of it a moment later. Raises: _NotReached."""
    while True:
        try:
            return await _stream(address, port, deadline_s, _TCP_BYTES)
        except OSError as error:  # a name that is not known yet, too
            if time.monotonic() > deadline_s:
                raise _NotReached(cause_of(error)) from error
        await asyncio.sleep(_WAIT_S / 4)


async def _stream(address: str, port: int, deadline_s: float, size_bytes: int) -> float:
    """Milliseconds for a connection, and as much there and back. Raises: _NotReached, OSError."""
    began_s = time.monotonic()
    try:
        async with asyncio.timeout(max(deadline_s - began_s, _WAIT_S)):
            reader, writer = await asyncio.open_connection(address, port)
            try:
                if size_bytes:
                    sent = os.urandom(size_bytes)
                    writer.write(sent)
                    if await reader.readexactly(size_bytes) != sent:
                        raise _NotReached("TCP: other bytes came back than were sent")
            finally:
                writer.transport.abort()
    except TimeoutError as error:
        raise _NotReached("no answer by TCP") from error
    except asyncio.IncompleteReadError as error:
        raise _NotReached("the TCP connection ended half way") from error
    return round((time.monotonic() - began_s) * 1000, 3)


def _rung(address: str, own: dict[int, str], agent_socket: Path) -> tuple[str, str]:
    """How the node's agent says that packets go there, and why they do not; empty: not known."""
    origin = own.get(6 if ":" in address else 4)
    if origin is None:
        return "", "this pod has no address of that family"
    try:
        answer = ask_agent(
            agent_socket, "path", PathAnswer, origin=origin, target=address, probe=False
        )
    except LimpetError:
        return "", ""
    for path in answer.paths:
        return path.there.rung, path.there.reason or path.back.reason
    return "", ""
