"""Commands that the lab runs, in a namespace if one is named."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from limpet.base.errors import LimpetError
from limpet.lab.launch import launcher

_AT_ONCE = 16
"""Commands that run side by side: they mostly wait, for the kernel or for an answer."""

T = TypeVar("T")
R = TypeVar("R")


class LabError(LimpetError):
    """Something of the lab did not work."""


def run_command(*command: str, netns: str | None = None, stdin: str | None = None) -> str:
    """stdout of a command, in a namespace if one is named. Raises: LabError with its stderr."""
    inside = ["nsenter", f"--net=/run/netns/{netns}"] if netns else []
    try:
        done = launcher().run([*inside, *command], input=stdin)
    except FileNotFoundError as error:
        raise LabError(f"run {command[0]}: there is no such program (install it)") from error
    if done.returncode:
        raise LabError(f"run {' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def side_by_side(do: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """`do` of each item, all at once, answers in the items' order.

    Raises: what the first one that failed raised, when all have ended.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [each.result() for each in [pool.submit(do, item) for item in items]]
