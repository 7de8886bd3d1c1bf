"""Sockets that programs have connected, and that go on after these were taken away."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from limpet.datapath.services.sockets.apply import visit_namespaces
from limpet.datapath.services.sockets.connected_apply import (
    CONNECTED_MAPS,
    ConnectedSockets,
    end_connected_udp,
)
from limpet.datapath.services.sockets.pins_apply import map_folder
from limpet.datapath.services.state import StaleFlows
from limpet.linux.bpf.library import Bpf
from limpet.linux.socket_diag import UDP, sockets


class LeftSockets:
    """Those of UDP have their endpoint for good, which no rule turns: so they are ended when it
    leaves, also where nftables serves alone since. As long as what is noted of them is pinned."""

    def __init__(self, pins: Path, pods: Callable[[], Iterable[str]]) -> None:
        """`pods`: paths of their network namespaces. Changes nothing."""
        self._pins = {name: pins / map_folder(name) / name for name in CONNECTED_MAPS}
        self._pods = pods

    def end(self, flows: StaleFlows) -> None:
        """Those that are connected to who serves no more. Raises: LimpetError."""
        if not flows.udp:
            return
        with self._noted() as connected:
            stale = connected.stale(flows.udp) if connected is not None else {}
        if stale:
            self._visit(lambda: end_connected_udp(stale))

    def are_there(self) -> bool:
        """One of those that are noted is open still. Raises: LimpetError."""
        with self._noted() as connected:
            noted = set(connected.read() if connected is not None else ())
        alive = set[int]()
        if noted:
            self._visit(lambda: alive.update(each.cookie for each in sockets(UDP)))
        return not noted.isdisjoint(alive)

    @contextmanager
    def _noted(self) -> Iterator[ConnectedSockets | None]:
        """None: nothing is pinned."""
        if not all(path.exists() for path in self._pins.values()):
            yield None
            return
        bpf = Bpf()
        with ExitStack() as stack:
            maps = {}
            for name, path in self._pins.items():
                if (found := bpf.pinned_map(path)) is None:
                    yield None
                    return
                stack.callback(found.close)
                maps[name] = found
            yield ConnectedSockets(maps)

    def _visit(self, work: Callable[[], None]) -> None:
        work()
        visit_namespaces(self._pods(), work)
