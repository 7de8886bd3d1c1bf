"""What the loop asks of a part of the datapath."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from limpet.datapath.change import Drop
from limpet.linux.netlink.codec import Message
from limpet.linux.owned import Owned

State = TypeVar("State")
Change = TypeVar("Change")


class Part(ABC, Generic[State, Change]):
    """Something that the node's kernel should hold, and how to keep it so.

    In a round the loop asks for `plan`, `state` and `diff`, and has the changes applied. What a
    part did is never taken for what is: `state` is read, or is a cache that `hear` keeps true.

    A part is the thin process around modules of its room that are pure and do the work: its `plan`
    asks for the facts that they decide by (which links there are), its `diff` may read what only
    these changes need (the filter of peers, where somebody may have changed it). What others see is
    changed by `apply` alone, but for the maps and programs of Services that `diff` loads, or gives
    up. None is called but by the loop, since a part notes what it has seen.
    """

    name: ClassVar[str]
    """In logs and metrics."""
    groups: ClassVar[Collection[int]] = ()
    """rtnetlink groups whose notifications it is given."""
    nftables: ClassVar[bool] = False
    """It has something in nftables, which other programs may damage."""
    prompt: ClassVar[bool] = False
    """The first reason after a rest has a round at once, others are gathered behind it: for a part
    that is told by one thing at a time, and of which a round is cheap."""
    rests: ClassVar[int] = 0
    """After a round, those who wake the part wait so many times as long as it took: for a part that
    holds what tenants write, who could keep a processor busy else by changing it on and on."""

    @abstractmethod
    def plan(self) -> State:
        """What should be, from what is known now. Raises: LimpetError."""

    @abstractmethod
    def state(self, want: State) -> State:
        """What is, limited to what is ours or wanted. Raises: LimpetError."""

    @abstractmethod
    def diff(self, want: State, have: State) -> Sequence[Change]:
        """The ordered changes from `have` to `want`: first what adds reach, last what removes."""

    @abstractmethod
    def apply(self, changes: Sequence[Change]) -> list[str]:
        """Tries every change; the failures, in words. Raises: LimpetError."""

    @staticmethod
    @abstractmethod
    def owned(run_dir: Path) -> Owned:
        """What uninstall takes away, told by its marks alone. `run_dir`: of the agent."""

    def removes(self, change: Change) -> bool:
        """The change waits until all parts of the round have added what they add."""
        return isinstance(change, Drop)

    def hear(self, message: Message) -> None:
        """Takes a notification of one of `groups`."""

    def damage(self) -> str:
        """Asked when all notifications were heard: why a round is needed, if one is.

        Raises: LimpetError.
        """
        return ""

    def resync(self) -> None:
        """The next round takes nothing for granted: notifications were lost, or it is time."""

    def suspect_nftables(self) -> None:
        """Another program changed nftables: the next round looks there."""

    def broke_off(self, error: Exception) -> None:
        """A round ended before it was through: what the part remembers may not be so."""
        self.resync()
