"""Connections that were begun at the socket: nothing tracks them but the sockets themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from limpet.datapath.services.sockets.apply import visit_namespaces
from limpet.datapath.services.sockets.connected_apply import ConnectedSockets
from limpet.datapath.services.sockets.layout import (
    CONNECTED,
    FLOWS,
    PEERS,
    End,
    read_flow,
    read_peer,
)
from limpet.linux.bpf.library import BpfMap
from limpet.linux.socket_diag import ESTABLISHED, TCP, UDP, sockets

COUNTED = (CONNECTED, PEERS, FLOWS)
FlowEnd = tuple[int, bytes, int]
"""Number of the protocol, packed address, port."""


class SocketCounter:
    """Counts once, on any thread that is in the node's network namespace, and is closed then."""

    def __init__(self, maps: Mapping[str, BpfMap], paths: Iterable[str]) -> None:
        """`maps`: those of `COUNTED`, which are this one's from now on. `paths`: of the network
        namespaces of pods."""
        self._maps = maps
        self._paths = tuple(paths)
        self._found: list[tuple[int, int, End]] = []
        """Sockets: protocol, cookie, peer."""

    def close(self) -> None:
        for each in self._maps.values():
            each.close()

    def count(self, asked: Collection[FlowEnd]) -> Counter[FlowEnd]:
        """By who answers: connections of TCP that stand, and sockets of UDP, that have asked one of
        `asked`. Raises: KernelError."""
        self._look()
        visit_namespaces(self._paths, self._look)
        noted = ConnectedSockets(self._maps).read()
        connected = {cookie: read_peer(peer) for cookie, peer in noted.items()}
        counted: Counter[FlowEnd] = Counter()
        for protocol, cookie, peer in self._found:
            service, got = connected.get(cookie, (None, None))
            if service is not None and got == peer and (protocol, *service) in asked:
                counted[protocol, *peer] += 1
        alive = {cookie for protocol, cookie, _ in self._found if protocol == UDP}
        for key, value in self._maps[FLOWS].read().items():
            cookie, service, got = read_flow(key, value)
            if cookie in alive and (UDP, *service) in asked:
                counted[UDP, *got] += 1
        return counted

    def _look(self) -> None:
        """At one namespace."""
        for protocol, state in ((TCP, ESTABLISHED), (UDP, None)):
            self._found += ((protocol, x.cookie, x.peer) for x in sockets(protocol, state))
