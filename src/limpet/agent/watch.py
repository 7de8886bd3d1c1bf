"""What wakes a round: kernel notifications and a timer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct

import structlog

from limpet.base import faults
from limpet.base.errors import KernelError, LimpetError
from limpet.base.ownership import ROUTE_TABLE, RULE_PRIORITY
from limpet.cni.repair import Repair
from limpet.datapath.node.attachments import Attachments
from limpet.datapath.node.reconciler import NodeReconciler
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.socket import NFTABLES_GROUPS, ROUTE_GROUPS, Notifications

_log = structlog.get_logger("watch")

_NETLINK_NETFILTER = 12
_NFT_NEW_GENERATION = (10 << 8) | 15
"""NFNL_SUBSYS_NFTABLES, NFT_MSG_NEWGEN."""
_NFTA_GEN_PROC_PID = 2
_GATHER_S = 0.1
"""How long notifications are gathered: one round serves all of them."""


class Watch:
    """Runs on the event loop."""

    def __init__(
        self, rounds: NodeReconciler, attachments: Attachments, repair: Repair, resync_s: float
    ) -> None:
        """In the network namespace of the calling thread."""
        self._rounds = rounds
        self._attachments = attachments
        self._repair = repair
        self._resync_s = resync_s
        self._route = Notifications(socket.NETLINK_ROUTE, ROUTE_GROUPS)
        self._nftables = Notifications(_NETLINK_NETFILTER, NFTABLES_GROUPS)
        self._timer: asyncio.Task[None] | None = None
        self._gathering: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._listen()
        self._timer = asyncio.get_running_loop().create_task(self._resync())

    async def stop(self) -> None:
        self._deafen()
        if self._gathering is not None:
            self._gathering.cancel()
        if self._timer is not None:
            self._timer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._timer
        self._route.close()
        self._nftables.close()

    def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        for source in (self._route, self._nftables):
            loop.add_reader(source.fileno(), self._gather)

    def _deafen(self) -> None:
        loop = asyncio.get_running_loop()
        for source in (self._route, self._nftables):
            loop.remove_reader(source.fileno())

    def _gather(self) -> None:
        """The first notification starts the wait; what follows is read with it."""
        self._deafen()
        self._gathering = asyncio.get_running_loop().call_later(_GATHER_S, self._look)

    def _look(self) -> None:
        try:
            others = self._why_nftables()
            why = self._why_route()
            if others:
                self._rounds.nftables_changed(others)
            elif why:
                self._rounds.run(why)
        except KernelError as error:
            _log.warning("notifications cannot be read", error=str(error))
        finally:
            self._listen()

    def _why_route(self) -> str:
        why = ""
        names = {attachment.host_ifname for attachment in self._attachments}
        for message in self._route.drain():
            if message is None:
                why = why or "notifications were lost"
            elif not why:
                why = self._why(message, names)
        return why

    def _why(self, message: wire.Message, names: set[str]) -> str:
        """Nearly all notifications are echoes of our own work: they are told by their header."""
        match message.type:
            case wire.RTM_DELLINK:
                # Of family bridge: the link has left its bridge.
                ifname = wire.parse_link(message).ifname
                if ifname in names or ifname in self._rounds.want.bridges:
                    return f"link {ifname} is gone"
            case wire.RTM_NEWLINK:
                if wire.link_is_down(message):
                    ifname = wire.parse_link(message).ifname
                    if ifname in names or ifname in self._rounds.want.bridges:
                        return f"link {ifname} is down"
            case wire.RTM_DELADDR:
                if wire.address_ifindex(message) in self._rounds.bridge_ifindexes():
                    return "an address of a bridge is gone"
            case wire.RTM_DELROUTE:
                large = wire.is_of_large_table(message)
                if large and wire.parse_route(message).table == ROUTE_TABLE:
                    return "a route is gone"
            case wire.RTM_DELRULE:
                if wire.parse_rule(message).priority == RULE_PRIORITY:
                    return "a rule is gone"
        return ""

    def _why_nftables(self) -> str:
        why = ""
        for message in self._nftables.drain():
            if message is None:
                why = "nftables notifications were lost"
            elif message.type == _NFT_NEW_GENERATION:
                pid = wire.parse_attrs(message.body, 4).get(_NFTA_GEN_PROC_PID, b"")
                if len(pid) == 4 and struct.unpack(">I", pid)[0] != os.getpid():
                    why = why or "another program changed nftables"
        return why

    async def _resync(self) -> None:
        """Everything anew now and then, whatever was notified; first soon after the start."""
        while True:
            try:
                await self._repair()
            except LimpetError as error:
                _log.warning("leaks cannot be looked for", error=str(error))
            except Exception as error:  # noqa: BLE001 - the next time may be better
                faults.note("looking for leaks", error)
            await asyncio.sleep(self._resync_s)
            with faults.noted("looking at everything"):
                self._rounds.look_at_everything("timer")
