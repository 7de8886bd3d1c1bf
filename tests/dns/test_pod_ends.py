"""A pod that ends before the next one begins: the node's agent holds its sockets meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from limpet.dns.handover.held import Left, SocketHolder
from tests.beds.traffic.dns_client import asking_all_the_time
from tests.dns.test_process import ADDRESS, ITEMS, WEB, Place, ask, make_place, values
from tests.waiting import PATIENCE_S, wait_until

__all__ = ["make_place"]


@contextmanager
def held_by_an_agent(run_dir: Path, hold_s: float = 60.0) -> Iterator[None]:
    """What an agent does for it, on a loop in a thread."""
    run_dir.mkdir(parents=True, exist_ok=True)
    loop = asyncio.new_event_loop()

    async def begin() -> SocketHolder:
        holder = SocketHolder(run_dir, hold_s)
        holder.start()
        return holder

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    holder = asyncio.run_coroutine_threadsafe(begin(), loop).result(PATIENCE_S)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(holder.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def are_held(run_dir: Path) -> bool:
    fds = Left(run_dir).take()
    for fd in fds:
        os.close(fd)
    return bool(fds)


@pytest.fixture
def place(make_place: Callable[..., Place]) -> Place:
    made = make_place()
    made.keep(*ITEMS)
    return made


def end_pod(place: Place, number: signal.Signals) -> None:
    """All of its processes, as a kubelet and its runtime do."""
    answering, keeper = place.pid(), place.started[-1]
    assert answering is not None
    if number == signal.SIGKILL:
        keeper.kill()
        os.kill(answering, number)
    else:
        keeper.send_signal(number)
    keeper.wait(PATIENCE_S)
    wait_until(lambda: place.pid() is None, "it has ended")


@pytest.mark.parametrize(
    ("number", "lost"), [(signal.SIGTERM, 0), (signal.SIGKILL, 1)], ids=["deleted", "killed"]
)
def test_a_pod_that_ends_before_the_next_one_begins_loses_nothing_but_what_is_in_its_hand(
    place: Place, number: signal.Signals, lost: int
) -> None:
    with held_by_an_agent(place.run_dir):
        place.start(LIMPET_POD="first")
        wait_until(lambda: are_held(place.run_dir), "they are held")
        opened = place.node.open_socket(4, socket.SOCK_DGRAM)
        with asking_all_the_time(opened, ADDRESS, WEB) as somebody:
            end_pod(place, number)
            asked_by_tcp = place.node.open_socket(4, socket.SOCK_STREAM)
            with asked_by_tcp:
                asked_by_tcp.settimeout(PATIENCE_S)
                asked_by_tcp.connect((ADDRESS, 53))  # it waits, and is not refused
            place.start(LIMPET_POD="second")
            somebody.await_answers(200)
            assert somebody.end() <= lost


def test_where_no_other_pod_begins_askers_are_refused_after_a_while(place: Place) -> None:
    with held_by_an_agent(place.run_dir, hold_s=0.0):
        place.start(LIMPET_POD="first")
        end_pod(place, signal.SIGTERM)

        def is_refused() -> bool:
            with place.node.open_socket(4, socket.SOCK_STREAM) as client:
                client.settimeout(PATIENCE_S)
                try:
                    client.connect((ADDRESS, 53))
                except ConnectionError:
                    return True
            return False

        wait_until(is_refused, "nobody holds them")


def test_an_agent_that_begins_later_holds_them_too_and_none_is_needed(place: Place) -> None:
    place.start(LIMPET_POD="first")
    assert values(ask(place.node, WEB)) == ["10.96.0.10"]
    with held_by_an_agent(place.run_dir):
        wait_until(lambda: are_held(place.run_dir), "it has looked again")
        place.start(LIMPET_POD="second")
        place.started[0].terminate()
        place.started[0].wait(PATIENCE_S)
        assert values(ask(place.node, WEB)) == ["10.96.0.10"]
