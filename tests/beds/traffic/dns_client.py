"""A client of DNS that asks all the time, and counts what was never answered."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import dns.message

from tests.waiting import PATIENCE_S, wait_until

_SO_RCVBUFFORCE = 33


class Asking:
    """Somebody who asks all the time, each question once, and waits for each answer."""

    EVERY_S = 0.002
    MOST = 1000
    """Under way at one time: a queue that overflows says nothing of who reads it."""

    def __init__(self, opened: socket.socket, address: str, name: str) -> None:
        """`opened`: a UDP socket where the question begins; closed in the end."""
        self._socket = opened
        # Answers to all that has waited come at once.
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 8 << 20)
        self._socket.connect((address, 53))
        self._socket.settimeout(0.05)
        self._waiting: set[int] = set()
        self._stop = threading.Event()
        self.refused = 0
        self.answered = 0
        self._question = dns.message.make_query(name, "A", use_edns=False).to_wire()[2:]
        self._threads = [threading.Thread(target=work) for work in (self._ask, self._hear)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        for number in itertools.count():
            if self._stop.wait(self.EVERY_S):
                return
            if len(self._waiting) >= self.MOST:
                continue
            number &= 0xFFFF
            self._waiting.add(number)
            try:
                self._socket.send(number.to_bytes(2, "big") + self._question)
            except OSError:  # nobody listened when the last one came
                self.refused += 1

    def _hear(self) -> None:
        end_s = None
        while True:
            try:
                number = int.from_bytes(self._socket.recv(4096)[:2], "big")
            except TimeoutError:
                pass
            except OSError:
                self.refused += 1
            else:
                self._waiting.discard(number)
                self.answered += 1
            if self._stop.is_set():
                end_s = end_s or time.monotonic() + PATIENCE_S / 2
                if not self._waiting or time.monotonic() > end_s:
                    return

    def await_answers(self, more: int) -> None:
        """So many more than now."""
        wanted = self.answered + more
        wait_until(lambda: self.answered >= wanted, "no more answers")

    def end(self) -> int:
        """How many were never answered."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._socket.close()
        return len(self._waiting) + self.refused


@contextmanager
def asking_all_the_time(opened: socket.socket, address: str, name: str) -> Iterator[Asking]:
    """Once it is answered."""
    somebody = Asking(opened, address, name)
    try:
        somebody.await_answers(50)
        yield somebody
    finally:
        somebody.end()
