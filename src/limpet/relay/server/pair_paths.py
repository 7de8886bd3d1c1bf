"""What carries the packets of a relay's pairs: the kernel, and sockets of the agent where it can't.

The kernel hands on what stays within one IP version. What goes from one version to the other, what
comes from or goes into a TLS connection, and all of a version that the node does not forward, or
whose forwarding others' firewall drops, passes through this process.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable

import structlog

from limpet.base.bounds.members import RELAY_THROUGHPUTS
from limpet.base.errors import LimpetError
from limpet.base.rate_limit import TokenBuckets
from limpet.base.settings import RelaySettings
from limpet.relay.server.forwarding import RelayKernel, blocked_versions, forwarded_versions
from limpet.relay.server.pairs import ForwardingEntry, PairEnd, UdpFlow, entries_of, sockets_of
from limpet.relay.server.streams import StreamEnd
from limpet.relay.server.throughput import Throughput
from limpet.relay.stream.packet_socket import PacketSocket, Sink

_log = structlog.get_logger("relay")

_BURST_S = 0.25
_LEAST_BURST_BYTES = 65536.0

Pair = tuple[PairEnd, PairEnd]


class RelayPaths:
    """Runs on the event loop's thread, in the node's network namespace."""

    def __init__(
        self,
        settings: RelaySettings,
        counters: Counter[str],
        pairs: Callable[[], Iterable[Pair]],
        *,
        resync_s: float,
    ) -> None:
        """`pairs`: all that there are. Raises: KernelError, LimpetError without libnftables."""
        rate = settings.bytes_per_s
        self.trouble = ""
        """What is wrong with the kernel's table now; empty: nothing."""
        self._kernel = RelayKernel(settings.ports, bytes_per_s=rate)
        self._counters = counters
        self._pairs = pairs
        self._blocked: dict[int, str] = {}
        self._forwarded: frozenset[int] = frozenset()
        self._resync_s = resync_s
        self._looked_s = time.monotonic()
        self._sockets: dict[int, PacketSocket] = {}
        self._streams: dict[int, StreamEnd] = {}
        """Both by port."""
        self._rates = throughput_rates(rate) if rate else None
        self.throughput = Throughput()
        """Throughput of all pairs, in both directions."""

    def kept(self) -> list[PairEnd]:
        """What the kernel still hands on for an earlier agent. Raises: KernelError."""
        return self._kernel.read()

    def begin(self, tunnel_port: int) -> None:
        """Just the pairs that there are. Raises: KernelError, LimpetError."""
        self._read_firewall()
        self._forwarded = forwarded_versions() - self._blocked.keys()
        entries = []
        for one, other in self._pairs():
            self._settle_sockets(one, other)
            entries += [e for e in entries_of(one, other, self._forwarded).values() if e]
        self._kernel.put(tunnel_port, entries)

    def close(self, *, keep_table: bool) -> None:
        """`keep_table`: the kernel goes on forwarding."""
        for opened in self._sockets.values():
            opened.close()
        self._sockets.clear()
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.onward = self._lose
            stream.on_gone()
        try:
            if not keep_table:
                self._kernel.remove()
        except LimpetError as error:
            _log.warning("the relay's table stays", error=str(error))
        finally:
            self._kernel.close()

    # Pairs

    def settle(self, one: PairEnd, other: PairEnd) -> None:
        """Programs the kernel and the sockets for both ports of the pair."""
        self._settle_sockets(one, other)
        try:
            self._kernel.apply(entries_of(one, other, self._forwarded))
        except LimpetError:
            self.look()

    def name(self, port: int) -> None:
        """What is answered to a check of this port, which is of a pair, leaves from it."""
        try:
            self._kernel.name(port)
        except LimpetError:
            self.look()

    def drop(self, ports: list[int]) -> None:
        """Removes everything that belongs to these ports."""
        for port in ports:
            self._keep_socket(port, None)
            stream = self._streams.pop(port, None)
            if stream is not None:
                stream.onward = self._lose
                stream.on_gone()
        try:
            self._kernel.apply(dict.fromkeys(ports), freed=ports)
        except LimpetError:
            self.look()

    def attach(self, stream: StreamEnd) -> None:
        """In place of an earlier one; `settle` has to follow."""
        former = self._streams.get(stream.port)
        if former is not None:
            former.onward = self._lose
        self._streams[stream.port] = stream

    def detach(self, stream: StreamEnd) -> bool:
        """Whether the stream was the current one of its port; then `settle` has to follow."""
        stream.onward = self._lose
        return self._streams.get(stream.port) is stream and bool(self._streams.pop(stream.port))

    # The kernel

    def check(self) -> None:
        """Follows the node's settings and checks that the table exists, now and then all of it."""
        try:
            self._follow_forwarding()
            forwarded = self._kernel.counters().get("forwarded")  # the cheapest way to see it
            if forwarded is not None:
                self.throughput.take(forwarded.size_bytes, time.monotonic())
        except LimpetError:
            self.look()
        if self.trouble or time.monotonic() - self._looked_s > self._resync_s:
            self.look()

    def look(self) -> None:
        """Repairs the table, and follows what others' firewall drops."""
        self._looked_s = time.monotonic()
        try:
            self._read_firewall()
            if self._kernel.repair():
                _log.warning("the relay's nftables table was not as it should be: put anew")
            self._follow_forwarding()
            self.trouble = ""
        except LimpetError as error:
            if not self.trouble:
                _log.error("relaying does not work as it should", error=str(error))
            self.trouble = str(error)

    def _read_firewall(self) -> None:
        """Raises: KernelError, LimpetError."""
        blocked = blocked_versions()
        for version, chain in blocked.items():
            if chain != self._blocked.get(version):
                _log.info("packets go through the agent", ip_version=version, because_of=chain)
        self._blocked = blocked

    def _follow_forwarding(self) -> None:
        """Raises: KernelError."""
        forwarded = forwarded_versions() - self._blocked.keys()
        if forwarded == self._forwarded:
            return
        self._forwarded = forwarded
        changes: dict[int, ForwardingEntry | None] = {}
        for one, other in self._pairs():
            self._settle_sockets(one, other)
            changes |= entries_of(one, other, forwarded)
        self._kernel.apply(changes)

    def packets(self) -> dict[str, int]:
        """Packets by the kernel's counters; empty while they cannot be read."""
        try:
            return {name: each.packets for name, each in self._kernel.counters().items()}
        except LimpetError:
            return {}

    # Sockets

    def _settle_sockets(self, one: PairEnd, other: PairEnd) -> None:
        for port, place in sockets_of(one, other, self._forwarded).items():
            self._keep_socket(port, place)
        for end, its_other in ((one, other), (other, one)):
            sink = self._limited(end.uid, self._sink(its_other))
            for source in (self._sockets.get(end.port), self._streams.get(end.port)):
                if source is not None:
                    source.onward = sink

    def _keep_socket(self, port: int, place: UdpFlow | None) -> None:
        opened = self._sockets.get(port)
        if opened is not None and (opened.remote, opened.local[0]) != place:
            opened.close()
            del self._sockets[port]
            opened = None
        if opened is None and place is not None:
            try:
                local = (place.local, port)
                self._sockets[port] = PacketSocket(local, place.remote, self._counters)
            except LimpetError as error:
                self._counters["no_socket"] += 1
                _log.warning("a pair does not get all of its packets", error=str(error))

    def _sink(self, end: PairEnd) -> Sink:
        """Where the agent sends packets for the end's node."""
        stream, opened = self._streams.get(end.port), self._sockets.get(end.port)
        if end.by_stream and stream is not None:
            return stream.on_packet
        return opened.send if opened is not None else self._lose

    def _lose(self, _packet: bytes) -> None:
        self._counters["lost"] += 1

    def _limited(self, uid: str, sink: Sink) -> Sink:
        rates = self._rates

        def limited(packet: bytes) -> None:
            if rates is None or rates.take(uid, time.monotonic(), len(packet)):
                self.throughput.handed_on(len(packet))
                sink(packet)
            else:
                self._counters["over_rate"] += 1

        return limited


def throughput_rates(bytes_per_s: int) -> TokenBuckets:
    """How much a relay hands on for each node, in bytes."""
    burst = max(_LEAST_BURST_BYTES, bytes_per_s * _BURST_S)
    return TokenBuckets(bytes_per_s, burst, most=RELAY_THROUGHPUTS.most)


def remove_leftovers(ports: tuple[int, int]) -> None:
    """Removes the table of a time when the node was a relay."""
    try:
        kernel = RelayKernel(ports)
        try:
            kernel.remove()
        finally:
            kernel.close()
    except LimpetError as error:
        _log.warning("what was left of relaying stays", error=str(error))
