"""Keeps the programs beside the table of Services; what they cannot do the table does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import structlog

from limpet.base.errors import LimpetError
from limpet.datapath.services.plan import SocketWishes
from limpet.datapath.services.sockets.apply import SocketKernel
from limpet.datapath.services.sockets.count import COUNTED, SocketCounter
from limpet.datapath.services.sockets.diff import (
    AttachPrograms,
    EndSockets,
    PutSocketElements,
    SocketChange,
    diff_sockets,
)
from limpet.datapath.services.sockets.layout import NAMESPACES
from limpet.datapath.services.state import Elements, StaleFlows

_log = structlog.get_logger("services")


class SocketSide:
    """A helper of the part, on its thread; raises nothing.

    The programs are attached as long as all that was planned is in their maps, and not a moment
    longer: there is no state in which they send somewhere else than the table would.
    """

    def __init__(self, kernel: SocketKernel) -> None:
        self.kernel = kernel
        self._is_known = False
        """What is in the maps is as it was read or put last."""
        self._is_checked = False
        self._damage = ""
        self._is_behind = True
        """Sockets may be connected to who has left while programs were away, when nobody ended
        them."""
        self.why_not = "not tried yet"
        """Why nftables serves alone; empty: it does not."""

    @property
    def wishes(self) -> SocketWishes:
        return SocketWishes(ends_flows=self.kernel.ends_flows)

    @property
    def pin_paths(self) -> Sequence[Path]:
        """Files that are there as long as nobody else takes them away."""
        return self.kernel.pin_paths if self.kernel.is_open else ()

    def close(self) -> None:
        """Programs stay in force."""
        self.kernel.close()

    def suspect(self, *, maps: bool) -> None:
        """Looks again in the next round: whether all is attached; with `maps` what they hold."""
        self._is_checked = False
        self._is_known = self._is_known and not maps

    def look(self) -> bool:
        """Whether pods came or went."""
        elements = self.kernel.namespaces.elements()
        return self.kernel.is_open and elements != self.kernel.elements[NAMESPACES]

    def is_damaged(self) -> bool:
        """Somebody has detached a program, or emptied or changed a map. Some hundred calls of the
        kernel at most, so elements of a large map have their turn."""
        if self.why_not or not self.kernel.is_open:
            return False
        try:
            return bool(self.kernel.damage()) or self.kernel.is_changed()
        except LimpetError:
            return True

    def counter(self) -> SocketCounter | None:
        """None: nobody is served at the socket."""
        if not self.kernel.is_open:
            return None
        return SocketCounter(self.kernel.maps(COUNTED), self.kernel.namespaces.paths)

    # A round

    def want(self, sockets: Elements) -> Elements:
        return {**sockets, NAMESPACES: self.kernel.namespaces.elements()}

    def diff(
        self,
        want: Elements,
        touched: Mapping[str, Collection[bytes]] | None,
        stale: StaleFlows,
        any_stale: Callable[[], StaleFlows],
    ) -> list[SocketChange]:
        """Looks, if that is due. Nothing where the programs cannot be loaded. `any_stale`: asked
        where any flow may be, whatever has left since."""
        try:
            if not self.kernel.is_open:
                self.kernel.open()
                self._is_known = False
            if not self._is_known:
                self.kernel.read(want)
                self.kernel.sweep()
            if not (self._is_checked and self._is_known):
                self._damage = self.kernel.damage()
                self._is_checked = True
        except LimpetError as error:
            self._give_up(error)
            return []
        if self._is_behind:
            stale = any_stale()
        if touched is not None and self._is_known:
            names = {NAMESPACES: {*want[NAMESPACES], *self.kernel.elements[NAMESPACES]}}
            touched = {**touched, **names}
        return diff_sockets(
            want,
            self.kernel.elements,
            touched=touched if self._is_known else None,
            damage=self._damage,
            stale=stale,
        )

    def apply(self, changes: Sequence[SocketChange]) -> list[str]:
        """The failures, in words."""
        try:
            for change in changes:
                match change:
                    case PutSocketElements(elements):
                        self.kernel.change(elements.delete, elements.add)
                    case AttachPrograms():
                        self.kernel.attach()
                        self._damage = ""
                    case EndSockets(flows):
                        self.kernel.end_sockets(flows)
        except LimpetError as error:
            self._give_up(error)
            return [str(error)]
        if self.kernel.is_open:
            self._is_known, self._is_behind = True, False
            if self.why_not:
                self.why_not = ""
                _log.info("Services are served at the socket, by eBPF")
        return []

    def _give_up(self, error: LimpetError) -> None:
        """For now: the next round tries again."""
        if str(error) != self.why_not:
            self.why_not = str(error)
            _log.warning("Services are served by nftables alone", why=self.why_not)
        self._is_known = self._is_checked = False
        self._is_behind = True
        self.kernel.detach()
        self.kernel.close()
