"""Frames on a cable that takes its time, between real sockets."""

from __future__ import annotations

import select
import socket
import time

from limpet.lab.world.delay import DelayedWay

DELAY_S = 0.02


def run_until_empty(way: DelayedWay) -> None:
    while way.due_s is not None:
        select.select([], [], [], max(way.due_s - time.monotonic(), 0))
        way.send_due()


def received(end: socket.socket) -> list[bytes]:
    found = []
    while select.select([end], [], [], 0)[0]:
        found.append(end.recv(100))
    return found


def test_frames_come_in_their_order_and_none_too_early() -> None:
    near, source = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    target, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with near, source, target, far:
        way = DelayedWay(source, target, DELAY_S, 0.0)
        began_s = time.monotonic()
        for number in range(5):
            near.send(b"%d" % number)
        way.take()
        way.send_due()
        if time.monotonic() < began_s + DELAY_S:
            assert received(far) == []
        run_until_empty(way)

        assert time.monotonic() >= began_s + DELAY_S
        assert received(far) == [b"0", b"1", b"2", b"3", b"4"]
        assert way.due_s is None


def test_of_a_lossy_cable_that_share_is_lost_and_the_rest_is_whole() -> None:
    near, source = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    target, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with near, source, target, far:
        way = DelayedWay(source, target, 0.0, 0.25)
        found = []
        for number in range(2000):
            near.send(b"%d" % number)
            way.take()
            run_until_empty(way)
            found += received(far)

    numbers = [int(each) for each in found]
    assert numbers == sorted(set(numbers))
    # Beyond these once in more than 10^20 runs.
    assert 1300 <= len(numbers) <= 1700
