"""The kernel's notifications: one socket for links, addresses and routes, one for nftables."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable

import structlog

from limpet.base.errors import KernelError
from limpet.base.timer import Timer
from limpet.linux.netlink.nft_caller import caller_in, own_number
from limpet.linux.netlink.socket import NETLINK_NETFILTER, NFTABLES_GROUPS, Notifications

_log = structlog.get_logger("round")

_GATHER_S = 0.02
"""How long notifications are gathered: they are heard together."""
_NFT_NEW_GENERATION = (10 << 8) | 15
"""NFNL_SUBSYS_NFTABLES, NFT_MSG_NEWGEN."""
_OUR_TABLES = b"limpet"
"""How their names begin; every message has that of its table."""


class Notified:
    """Notifications of the network namespace of the thread that makes it."""

    def __init__(self, on_some: Callable[[], None]) -> None:
        """`on_some`: some wait to be read, and some more may. Raises: KernelError."""
        self.route = Notifications(socket.NETLINK_ROUTE, ())
        self._nftables = Notifications(NETLINK_NETFILTER, NFTABLES_GROUPS)
        self._on_some = on_some
        self._gathering = Timer("notifications", self._gathered)
        self._listens = False
        self._is_touched = False
        """A table of ours is named in the transaction that is being told."""
        self._own_number: int | None = None
        """Number of the listening thread, as the kernel has it."""
        self._is_among_others = False
        """This process is in a PID namespace: its threads have other numbers than they know."""
        self._resting: list[Notifications] = []
        """Those that have some, while more are gathered."""

    def listen(self) -> None:
        """From now on, on the event loop of the calling thread, which alone changes our tables."""
        self._listens = True
        try:
            self._own_number = own_number()
        except KernelError as error:
            _log.warning("the kernel does not tell this thread's number", error=str(error))
        if self._own_number is not None:
            self._is_among_others = self._own_number != threading.get_native_id()
        for source in (self.route, self._nftables):
            self._wait_for(source)

    def close(self) -> None:
        self._gathering.stop()
        if self._listens:
            for source in (self.route, self._nftables):
                asyncio.get_running_loop().remove_reader(source.fileno())
        self.route.close()
        self._nftables.close()

    def _wait_for(self, source: Notifications) -> None:
        asyncio.get_running_loop().add_reader(source.fileno(), self._gather, source)

    def _gather(self, source: Notifications) -> None:
        """Its reader rests meanwhile."""
        asyncio.get_running_loop().remove_reader(source.fileno())
        self._resting.append(source)
        if not self._gathering.is_set:
            self._gathering.set_in(_GATHER_S)

    def _gathered(self) -> None:
        while self._resting:
            self._wait_for(self._resting.pop())
        self._on_some()

    def why_nftables(self) -> str:
        """Why tables of ours may be other than planned, by what was notified; empty: they are not.

        What others do in tables of theirs is nothing to us: some write them all the time, and to
        read ours again may take a second.
        """
        why = ""
        try:
            for message in self._nftables.drain():
                if message is None:
                    why = "nftables notifications were lost"
                elif message.type != _NFT_NEW_GENERATION:
                    self._is_touched = self._is_touched or _names_ours(message.body)
                else:  # behind all that the transaction has changed
                    caller = caller_in(message)
                    touched, self._is_touched = self._is_touched, False
                    if touched and caller is not None and not self._is_ours(caller):
                        why = why or "another program changed our tables of nftables"
        except KernelError as error:
            _log.warning("notifications cannot be read", error=str(error))
        return why

    def _is_ours(self, thread: int) -> bool:
        """A thread of this process: the kernel tells threads apart here. In a PID namespace only
        the one that listens is known; a number there may be another's here."""
        if self._is_among_others:
            return thread == self._own_number
        return os.path.isdir(f"/proc/self/task/{thread}")


def _names_ours(body: memoryview) -> bool:
    return _OUR_TABLES in bytes(body)
