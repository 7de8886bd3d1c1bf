"""What keeps programs busy while they are killed."""

from __future__ import annotations

import random
import threading
from abc import abstractmethod


class Load(threading.Thread):
    """Does one piece of work after the other, but for the times when it rests."""

    def __init__(self, name: str, rest_s: float, chance: random.Random) -> None:
        """`rest_s`: between two pieces, on average. It rests at first."""
        super().__init__(name=name, daemon=True)
        self.acknowledged = 0
        """Requests that were answered."""
        self.chance = chance
        self._rest_s = rest_s
        self._works = threading.Event()
        self._idle = threading.Event()
        self._ended = threading.Event()
        self._error: BaseException | None = None

    @abstractmethod
    def work(self) -> None:
        """One piece; returns when all of it was acknowledged. Raises: what no kill excuses."""

    def begin(self) -> None:
        self._idle.clear()
        self._works.set()

    def rest(self) -> None:
        """Returns when nothing is under way. Raises: what went wrong."""
        self._works.clear()
        self._idle.wait()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        self._ended.set()
        self._works.set()
        self.join()

    def run(self) -> None:
        try:
            while True:
                if not self._works.is_set():
                    self._idle.set()
                    self._works.wait()
                if self._ended.wait(self.chance.expovariate(1 / self._rest_s)):
                    return
                self.work()
        except BaseException as error:  # noqa: BLE001 - who waits for it is told
            self._error = error
        finally:
            self._idle.set()
