"""Sockets of a process that has ended, held by somebody who lives longer."""

from __future__ import annotations

import asyncio
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from limpet.base.process import listeners
from limpet.dns.handover.held import SOCKET, Left, SocketHolder
from tests.beds.descriptors import room_for_descriptors
from tests.unit.cluster.test_membership import on_a_loop
from tests.waiting import until, wait_until


async def until_held(left: Left) -> list[int]:
    """By another connection than that of whoever has left them."""
    found: list[int] = []

    def are_there() -> bool:
        found[:] = Left(left._path.parent).take()
        return bool(found)

    await asyncio.to_thread(wait_until, are_there, "they are held")
    return found


def a_socket() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(("127.0.0.1", 0))
    return made


def adopt(fds: list[int]) -> list[socket.socket]:
    return [socket.socket(fileno=fd) for fd in fds]


@on_a_loop
async def test_what_is_asked_while_nobody_is_there_waits_for_the_next_one(tmp_path: Path) -> None:
    holder, left = SocketHolder(tmp_path), Left(tmp_path)
    holder.start()
    made = a_socket()
    address = made.getsockname()
    left.keep([made])
    for fd in await until_held(left):
        os.close(fd)
    left.close()
    made.close()

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(b"question", address)
        (taken,) = adopt(await asyncio.to_thread(Left(tmp_path).take))
        with taken:
            assert taken.getsockname() == address
            assert taken.recv(100) == b"question"
    holder.close()


@on_a_loop
async def test_they_are_held_for_a_while_and_then_the_port_is_free(tmp_path: Path) -> None:
    holder, left = SocketHolder(tmp_path, hold_s=0.0), Left(tmp_path)
    holder.start()
    made = a_socket()
    address = made.getsockname()
    left.keep([made])
    for fd in await until_held(left):
        os.close(fd)
    made.close()
    left.close()

    def is_free() -> bool:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            try:
                other.bind(address)
            except OSError:
                return False
            return True

    await asyncio.to_thread(wait_until, is_free, "they are let go")
    holder.close()


@on_a_loop
async def test_the_next_one_s_are_held_in_place_of_those_before(tmp_path: Path) -> None:
    holder, first, second = SocketHolder(tmp_path, hold_s=0.0), Left(tmp_path), Left(tmp_path)
    holder.start()
    with a_socket() as before, a_socket() as after:
        first.keep([before])
        for fd in await until_held(first):
            os.close(fd)
        second.keep([after])
        wanted = after.getsockname()

        def is_the_second_s() -> bool:
            found = adopt(Left(tmp_path).take())
            ends = [each.getsockname() for each in found]
            for each in found:
                each.close()
            return ends == [wanted]

        await asyncio.to_thread(wait_until, is_the_second_s)
        # The end of the first one is nothing to them.
        first.close()
        assert await asyncio.to_thread(is_the_second_s)
        second.close()
    holder.close()


@on_a_loop
async def test_another_agent_holds_them_after_the_next_look_and_none_is_no_trouble(
    tmp_path: Path,
) -> None:
    left = Left(tmp_path)
    with a_socket() as made:
        left.keep([made])
        assert left.take() == []
        for _ in range(2):
            holder = SocketHolder(tmp_path)
            holder.start()
            left.keep([made])
            left.keep([made])
            for fd in await until_held(left):
                os.close(fd)
            holder.close()
        left.close()


def test_who_holds_them_still_is_not_asked_again_and_nobody_waits_for_it(tmp_path: Path) -> None:
    left = Left(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent, a_socket() as made:
        agent.bind(str(tmp_path / SOCKET))
        agent.listen()
        left.keep([made])
        held, _ = agent.accept()
        with held:
            held.sendall(b"here\n")
            # Whoever waited for more words would take their absence for an end, and connect again.
            left.keep([made])
        agent.setblocking(False)
        with pytest.raises(BlockingIOError):
            agent.accept()
        left.close()


@on_a_loop
async def test_nonsense_is_held_by_nobody(tmp_path: Path) -> None:
    holder = SocketHolder(tmp_path)
    holder.start()
    with a_socket() as made, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.connect(str(tmp_path / "dns-held.sock"))
        socket.send_fds(other, [b"nonsense"], [made.fileno()])
        other.settimeout(30)
        said = b""
        while chunk := await asyncio.to_thread(other.recv, 64):
            said += chunk
        assert said == b"here\n"
        assert await asyncio.to_thread(Left(tmp_path).take) == []
    holder.close()


@on_a_loop
async def test_what_a_later_process_leaves_is_refused_in_words(tmp_path: Path) -> None:
    holder, left = SocketHolder(tmp_path), Left(tmp_path)
    holder.start()
    with a_socket() as made, capture_logs() as logs:
        left.keep([made])
        for fd in await until_held(left):
            os.close(fd)
        for _ in range(2):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as later:
                later.connect(str(tmp_path / SOCKET))
                socket.send_fds(later, [b"keep 2\n"], [made.fileno()])
                later.settimeout(30)
                said = b""
                while chunk := await asyncio.to_thread(later.recv, 200):
                    said += chunk
                assert said.startswith(b"here\nrefused: it is of version 2, this Limpet knows 1")
        assert [each["log_level"] for each in logs] == ["warning"], "it is told once"
        for fd in await until_held(left):  # what is held goes on being held
            os.close(fd)
    left.close()
    holder.close()


@pytest.mark.parametrize(("words", "count"), [(b"here 2\n", 0), (b"here 1\n", 1), (b"here\n", 1)])
def test_sockets_that_a_later_agent_holds_are_not_taken(
    tmp_path: Path, words: bytes, count: int
) -> None:
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent,
        a_socket() as made,
        ThreadPoolExecutor(1) as pool,
        capture_logs() as logs,
    ):
        agent.bind(str(tmp_path / SOCKET))
        agent.listen()
        taken = pool.submit(Left(tmp_path).take)
        asking, _ = agent.accept()
        with asking:
            socket.send_fds(asking, [words], [made.fileno()])
            found = taken.result()
        assert len(found) == count
        for fd in found:
            os.close(fd)
    assert len(logs) == 1 - count


@on_a_loop
async def test_where_no_descriptor_is_left_the_agent_rests_before_it_accepts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits keeps the socket readable: the loop did nothing else, at the cost of a core."""
    monkeypatch.setattr(listeners, "_REST_S", 3600.0)
    holder = SocketHolder(tmp_path)
    holder.start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client, capture_logs() as logs:
        client.setblocking(False)
        with room_for_descriptors(0):
            client.connect(str(tmp_path / SOCKET))
            await until(lambda: logs)
        for _ in range(50):  # there are some by now, and it rests all the same
            await asyncio.sleep(0)
        with pytest.raises(BlockingIOError):
            client.recv(64)
    holder.close()
