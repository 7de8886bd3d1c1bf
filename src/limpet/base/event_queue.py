"""Events, passed on one at a time in the order in which they were told. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from limpet.base.faults import noted

T = TypeVar("T")


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
