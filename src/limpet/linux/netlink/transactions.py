"""Transactions of nftables, and tables that belong to the socket that they come by."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Collection, Iterable

from limpet.base.errors import KernelError
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink import set_codec
from limpet.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from limpet.linux.netlink.table_codec import (
    TableId,
    delete_table,
    dump_tables,
    new_table,
    parse_table,
)

_SO_SNDBUFFORCE = 32
_MOST_BYTES = 64 << 20
"""Largest transaction, which is one datagram."""


class NftablesSocket(NetlinkSocket):
    """For the network namespace of the thread that makes it."""

    def __init__(self, kept: int | None = None) -> None:
        """`kept`: descriptor of one that an earlier process had, of which a copy is taken: what
        belonged to that one belongs to this one. Raises: KernelError."""
        before = None if kept is None else _adopted(kept)
        super().__init__(NETLINK_NETFILTER, opened=before)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _MOST_BYTES)
        except PermissionError:  # in a user namespace: as much as the system allows
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_BYTES)
        if before is None:
            self._socket.bind((0, 0))
        self.quiet()
        self.number: int = self._socket.getsockname()[0]
        """By which the kernel tells it from other sockets."""

    def fileno(self) -> int:
        return self._socket.fileno()

    def stand_in_for(self, descriptor: int) -> None:
        """This socket has that number too from now on, in place of what had it."""
        os.dup2(self._socket.fileno(), descriptor, inheritable=False)

    def quiet(self) -> None:
        """What was not read of earlier answers is forgotten: another one who writes to this socket
        takes it for an answer to itself."""
        while True:
            try:
                self._socket.recv(1)
            except OSError as error:
                if error.errno != errno.ENOBUFS:  # some were lost: nobody waits for them
                    return

    def commit(self, requests: list[wire.Request]) -> None:
        """Raises: KernelError, and nothing was changed."""
        self.quiet()
        whole = set_codec.batch(requests)
        first = self._sequence + 1
        self._sequence += len(whole)
        last = first + len(requests)  # the end itself is not answered
        frames = [
            wire.frame(each, first + i, ack=first + i == last) for i, each in enumerate(whole)
        ]
        self._send(whole[0], b"".join(frames))
        failure: KernelError | None = None
        while True:
            for message in wire.parse_messages(self._receive(whole[0])):
                index = message.sequence - first
                if message.type != wire.NLMSG_ERROR or not 0 <= index <= len(requests):
                    continue
                number, text = wire.parse_error(message)
                if number and failure is None:
                    failure = KernelError("change", whole[index].what, number, text)
                if index == len(requests) or (index == 0 and number):
                    if failure is not None:
                        raise failure
                    return


def _adopted(kept: int) -> socket.socket | None:
    """None: that is no netlink socket of nftables that has a number."""
    found = socket.socket(fileno=os.dup(kept))
    if (
        found.family == socket.AF_NETLINK
        and found.proto == NETLINK_NETFILTER
        and found.getsockname()[0]
    ):
        found.setblocking(False)
        return found
    found.close()
    return None


class OwnTables:
    """Tables that belong to one socket: nobody else can change or delete them.

    `flags` are of `table_codec`: OWNED, with PERSISTENT if they stay when the socket goes; 0: they
    are nobody's.
    """

    def __init__(self, netlink: NftablesSocket) -> None:
        """All that changes the tables has to come by this socket."""
        self._netlink = netlink
        self._ours: frozenset[TableId] = frozenset()
        self._there: frozenset[TableId] = frozenset()

    def can(self, flags: int, trial: TableId) -> bool:
        """Whether the kernel can make tables with them. `trial`: of no other use; in one
        transaction, so that nothing comes of it. Raises: KernelError."""
        try:
            self._netlink.commit([new_table(trial, flags), delete_table(trial)])
        except KernelError as error:
            # Kernels before 6.9 do not know the second flag; before 5.12 none of them. Who may not
            # change nftables at all hears of it when it has to.
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM):
                return False
            raise
        return True

    def look(self) -> None:
        """Raises: KernelError."""
        told = [parse_table(each) for each in self._netlink.dump_found(dump_tables())]
        self._there = frozenset(each.table for each in told)
        self._ours = frozenset(each.table for each in told if each.owner == self._netlink.number)

    def has(self, tables: Collection[TableId]) -> bool:
        """Whether one of them was there at the last look."""
        return not self._there.isdisjoint(tables)

    def hold(self, tables: Collection[TableId], flags: int) -> bool:
        """Whether all of them were as they shall be at the last look."""
        return (self._ours if flags else self._there).issuperset(tables)

    def take(self, tables: Collection[TableId], flags: int) -> bool:
        """These are there, and belong to the socket; False: one is there that never can, as that of
        an agent that knew nothing of it. Raises: KernelError (EPERM: one is another's)."""
        try:
            if not self.hold(tables, flags):
                self._netlink.commit([new_table(each, flags) for each in tables])
        except KernelError as error:
            if error.errno == errno.EOPNOTSUPP:
                return False
            raise
        return True

    def empty(self, tables: Iterable[TableId], kept: Collection[TableId], flags: int = 0) -> None:
        """These go, whatever they have, and those of them that are kept are there anew: in one
        transaction. Raises: KernelError."""
        requests = []
        for each in tables:
            requests += [new_table(each), delete_table(each)]
            if each in kept:
                requests.append(new_table(each, flags))
        self._netlink.commit(requests)
