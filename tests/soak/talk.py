"""Pods that talk to each other all the time: who has heard whom, and when."""

from __future__ import annotations

import itertools
import selectors
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from limpet.lab.world.pod import LabPod
from tests.beds.namespaces import Netns
from tests.waiting import wait_until

PORT = 7
_EVERY_S = 0.1


class Pair(NamedTuple):
    source: str
    target: str
    version: int


class Talk(threading.Thread):
    """Within the block, each pod says to each other one when it is; they hold still otherwise."""

    def __init__(self, pods: Sequence[LabPod]) -> None:
        super().__init__(name="talk", daemon=True)
        self.heard_s: dict[Pair, float] = {}
        """When the newest word was said that was heard (monotonic s)."""
        self.longest_s: dict[Pair, float] = {}
        """The longest time between two such words."""
        self.heard = 0
        self._undo = ExitStack()
        self._ended = threading.Event()
        self._selector = self._undo.enter_context(selectors.DefaultSelector())
        self._ways: list[tuple[Pair, socket.socket, IPv4Address | IPv6Address]] = []
        sockets = {
            (pod.name, version): self._socket(pod, version) for pod in pods for version in (4, 6)
        }
        for source, target in itertools.permutations(pods, 2):
            for address in target.addresses:
                pair = Pair(source.name, target.name, address.version)
                self._ways.append((pair, sockets[source.name, address.version], address.ip))

    def _socket(self, pod: LabPod, version: int) -> socket.socket:
        made = self._undo.enter_context(Netns(pod.netns).open_socket(version, socket.SOCK_DGRAM))
        made.bind(("0.0.0.0" if version == 4 else "::", PORT))
        made.setblocking(False)
        self._selector.register(made, selectors.EVENT_READ, (pod.name, version))
        return made

    def __enter__(self) -> Talk:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()
        self._undo.close()

    @property
    def pairs(self) -> list[Pair]:
        """That are to hear each other."""
        return [pair for pair, _, _ in self._ways]

    def until_all_are_heard(self) -> float:
        """Seconds until everybody has heard what each has said from now on.

        Raises: AssertionError with the pairs that have not.
        """
        began_s = time.monotonic()
        wait_until(lambda: not self._unheard(began_s), "every pair is back")
        return time.monotonic() - began_s

    def _unheard(self, since_s: float) -> list[Pair]:
        return [pair for pair in self.pairs if self.heard_s.get(pair, 0) < since_s]

    def run(self) -> None:
        due_s = time.monotonic()
        while not self._ended.is_set():
            now_s = time.monotonic()
            if now_s >= due_s:
                due_s = now_s + _EVERY_S
                self._say(now_s)
            for key, _ in self._selector.select(max(0.0, due_s - time.monotonic())):
                self._hear(key.fileobj, *key.data)

    def _say(self, now_s: float) -> None:
        for pair, source, address in self._ways:
            try:
                source.sendto(f"{pair.source} {now_s}".encode(), (str(address), PORT))
            except OSError:
                continue  # no way there just now

    def _hear(self, receiver: object, target: str, version: int) -> None:
        assert isinstance(receiver, socket.socket)
        while True:
            try:
                words = receiver.recv(256).decode().split()
            except BlockingIOError:
                return
            except OSError:
                continue  # what ICMP says of an earlier word
            pair, said_s = Pair(words[0], target, version), float(words[1])
            before_s = self.heard_s.get(pair, said_s)
            self.heard += 1
            self.heard_s[pair] = max(before_s, said_s)
            self.longest_s[pair] = max(self.longest_s.get(pair, 0), said_s - before_s)
