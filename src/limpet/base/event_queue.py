"""Events, passed on one at a time in the order in which they were told. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from limpet.base.faults import noted

T = TypeVar("T")
Heard = TypeVar("Heard", contravariant=True)


class Hearer(Protocol[Heard]):
    def hear(self, event: Heard, /) -> None: ...


class EventQueue(Generic[T]):
    """Everybody has heard an event before the next is passed on: also when a hearer tells it.

    Nothing that a hearer does ends who tells it.
    """

    def __init__(self, pass_on: Callable[[T], None]) -> None:
        self._pass_on = pass_on
        self._waiting: deque[T] = deque()
        self._is_passing_on = False

    def tell(self, event: T) -> None:
        self._waiting.append(event)
        if self._is_passing_on:
            return  # the call below, further up, comes to it
        self._is_passing_on = True
        try:
            while self._waiting:
                event = self._waiting.popleft()
                with noted(type(event).__name__):
                    self._pass_on(event)
        finally:
            self._is_passing_on = False


def tell_each(event: T, *hearers: Hearer[T] | None) -> None:
    """In this order, and also after one that has failed; None is somebody who is not there."""
    for hearer in hearers:
        if hearer is not None:
            with noted(type(event).__name__):
                hearer.hear(event)
