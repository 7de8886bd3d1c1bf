"""The temporary tables in the kernel, and its trace of the packets that they mark."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from limpet.base.bounds.words import TRACE_STEPS
from limpet.base.errors import KernelError
from limpet.cli.trace.verdict import Dropped, TraceStep
from limpet.datapath.node.forward import HandleNftables, list_chain
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.socket import NETLINK_NETFILTER, Notifications, RouteSocket

_TRACE_GROUP, _TRACE = 9, 10 << 8 | 17
"""NFNLGRP_NFTRACE; NFNL_SUBSYS_NFTABLES, NFT_MSG_TRACE.

Source: include/uapi/linux/netfilter/nfnetlink.h, nf_tables.h, the attributes too.
"""
_TABLE, _CHAIN, _HANDLE, _TYPE, _VERDICT, _ID = 1, 2, 3, 4, 5, 6
_LL_HEADER, _NETWORK_HEADER, _IIF, _OIF, _POLICY_CODE = 7, 8, 10, 12, 16
_FAMILIES = {1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}
_OF_POLICY = 1
_EACH_S = 0.05


_ETH_ARP, _ND_SOLICIT = b"\x08\x06", b"\x87"


@dataclass(frozen=True, slots=True)
class _Seen:
    """A packet, at the hook where it is."""

    link_in: str = ""
    link_out: str = ""
    asks: bool = False
    """For the MAC of a neighbour."""
    back: bool = False


class TraceWatch:
    """In the network namespace of the calling thread, which a node's is."""

    def __init__(self, ruleset: str) -> None:
        """The tables are there when this returns. Raises: LimpetError."""
        with ExitStack() as stack:
            self._nft = HandleNftables()
            stack.callback(self._nft.close)  # its socket owns the tables
            with RouteSocket() as route:
                self._names = {link.ifindex: link.ifname for link in route.links().values()}
            self._trace = Notifications(NETLINK_NETFILTER, (_TRACE_GROUP,))
            stack.callback(self._trace.close)
            self._nft.run(ruleset, what="a trace, by tables that belong to this process")
            self.close = stack.pop_all().close
        self.events: list[TraceStep] = []
        self._source = b""
        self._seen: dict[int, _Seen] = {}

    def listen(self, source: bytes, until: Callable[[], bool], within_s: float) -> None:
        """Gathers events until `until` says so or `within_s` are over. `source`: of the pod that
        asks, packed: it tells the answer from the question."""
        self._source = source
        end_s = time.monotonic() + within_s
        while time.monotonic() < end_s and not until() and not self._is_full:
            if select.select([self._trace], [], [], _EACH_S)[0]:
                self._gather()
        while not self._is_full and select.select([self._trace], [], [], _EACH_S)[0]:
            self._gather()
            if time.monotonic() > end_s + within_s:
                break

    @property
    def _is_full(self) -> bool:
        """Enough was seen: who sends, and who answers, may do so as fast as they like."""
        return len(self.events) >= TRACE_STEPS.most

    def _gather(self) -> None:
        for message in self._trace.drain():
            if message is not None and message.type == _TRACE:
                self.events.append(self._event(message))
                if self._is_full:
                    return

    def _event(self, message: wire.Message) -> TraceStep:
        attrs = wire.parse_attrs(message.body, 4)

        def number(name: int) -> int:
            return int.from_bytes(attrs.get(name, b""), "big")

        def text(name: int) -> str:
            return bytes(attrs.get(name, b"")).rstrip(b"\0").decode(errors="replace")

        kind, packet = number(_TYPE), number(_ID)
        code = wire.parse_attrs(memoryview(attrs.get(_VERDICT, b"")), 0).get(1, b"\0\0\0\1")
        if kind == _OF_POLICY:
            code = attrs.get(_POLICY_CODE, code)
        if attrs.keys() & {_LL_HEADER, _NETWORK_HEADER, _IIF, _OIF}:
            self._seen[packet] = self._look(attrs)
        seen = self._seen.get(packet, _Seen())
        return TraceStep(
            packet,
            _FAMILIES.get(message.body[0], ""),
            text(_TABLE),
            text(_CHAIN),
            kind,
            int.from_bytes(bytes(code), "big", signed=True),
            number(_HANDLE),
            seen.link_in,
            seen.link_out,
            arp=seen.asks,
            outward=not seen.back,
        )

    def _look(self, attrs: dict[int, bytes]) -> _Seen:
        """What the kernel tells of a packet with the first step of each hook only."""
        header, ethernet = bytes(attrs.get(_NETWORK_HEADER, b"")), bytes(attrs.get(_LL_HEADER, b""))
        version_4 = len(self._source) == 4
        return _Seen(
            self._names.get(int.from_bytes(attrs.get(_IIF, b""), "big"), ""),
            self._names.get(int.from_bytes(attrs.get(_OIF, b""), "big"), ""),
            ethernet[12:14] == _ETH_ARP or (not version_4 and header[40:41] == _ND_SOLICIT),
            self._source == (header[16:20] if version_4 else header[24:40]),
        )

    def words(self, drop: Dropped) -> str:
        """A rule as a person finds it in the listing, with its table and chain."""
        at = f"nftables table {drop.family} {drop.table}, chain {drop.chain}"
        if not drop.handle:
            return f"the policy of {at}"
        try:
            lines = list_chain(self._nft, drop.family, drop.table, drop.chain)
        except KernelError:
            lines = []
        for line in lines:
            rule, _, found = line.rpartition(" # handle ")
            if found == str(drop.handle):
                return f"rule `{' '.join(rule.split())}` of {at}"
        return f"rule {drop.handle} of {at}"
