"""The part of the loop that lets each pod send from its own addresses only."""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Literal

import structlog

from limpet.base.errors import KernelError
from limpet.base.ownership import NFT_PORTS_TABLE
from limpet.datapath.loop import Loop
from limpet.datapath.node.pod.attachment import Attachment
from limpet.datapath.node.ports.apply import PortKernel
from limpet.datapath.node.ports.diff import Change, ChangeElements, diff_ports
from limpet.datapath.node.ports.plan import elements_of, plan_ports
from limpet.datapath.node.ports.ruleset import OWN, UNCHECKED
from limpet.datapath.node.ports.state import PortTable
from limpet.datapath.part import Part
from limpet.linux.owned import Owned

_log = structlog.get_logger("ports")

Mode = Literal["off", "auto", "on"]


class PortPart(Part[PortTable, Change]):
    """Runs on the event loop's thread."""

    name = "ports"
    nftables = True

    def __init__(
        self,
        loop: Loop,
        mode: Mode,
        pods: Iterable[Attachment],
        unrecorded: Callable[[], Collection[str]],
    ) -> None:
        """`pods`: live ones. `unrecorded`: host ends of others that nobody knows more of, since
        their record is lost or another plugin's: they are not checked. Raises: LimpetError.
        """
        self.why_not = ""
        """Why pods are not held to their addresses, where they should be; empty: they are."""
        self._loop = loop
        self._mode = mode
        self._pods = pods
        self._find_unrecorded = unrecorded
        self._unrecorded: frozenset[str] = frozenset()
        self._kernel = PortKernel()
        self._have: PortTable | None = None
        """As read, or as changed since; None: nobody knows."""
        self._entered: set[str] = set()
        """Host ends of pods that were entered, and may be gone."""
        self._coming: Attachment | None = None

    @staticmethod
    def owned(run_dir: Path) -> Owned:
        return Owned(nft_bridge_tables=(NFT_PORTS_TABLE,))

    def close(self) -> None:
        """What is in the kernel stays."""
        self._kernel.close()

    @property
    def failures(self) -> list[str]:
        """Failures of the last round."""
        return self._loop.account(self).failures

    def dropped_packets(self) -> int:
        return self._kernel.dropped_packets() if self._mode != "off" else 0

    def run(self, why: str) -> None:
        """A round; raises nothing."""
        self._loop.run(why, self)

    def cover(self, pod: Attachment) -> None:
        """What the pod may send from is in force when this returns, before its first frame.

        Raises: KernelError; then the pod must not get its interface.
        """
        if self._mode == "off" or pod.bridge is None or (self._mode == "auto" and self.why_not):
            return
        self._entered.add(pod.link.host_ifname)
        come, have = elements_of(pod), self._have
        if have is not None and have.frame and come.keys() <= {*OWN.values(), UNCHECKED}:
            # The way of nearly every pod: its few elements, and nothing is looked at.
            after = {**have.elements, **{name: have.held(name) | come[name] for name in come}}
            changed = PortTable(have.frame, after)
            if not self.apply([ChangeElements({}, come, changed)]):
                return
        self._coming = pod
        try:
            self.run(f"pod {pod.link.host_ifname} is new")
        finally:
            self._coming = None
        if self.failures and not (self._mode == "auto" and self.why_not):
            what = f"port security of {pod.link.host_ifname}"
            raise KernelError("set up", what, errno.EINVAL, self.failures[0])

    def pods_changed(self) -> None:
        """Some may be gone: what they might send from goes soon."""
        if self._have is None:
            return
        if self._entered - {pod.link.host_ifname for pod in self._pods}:
            self._loop.wake(self, "pods are gone")

    def problems(self, pod: Attachment) -> list[str]:
        """What is missing of what has to hold a pod to its addresses. Raises: KernelError.

        Nothing where a pod starts all the same: CRI-O takes down whatever does not pass CHECK.
        """
        if self._mode == "off" or pod.bridge is None:
            return []
        if self.why_not:
            return [] if self._mode == "auto" else [f"port security: {self.why_not}"]
        have = self._kernel.read()
        if have.frame != plan_ports(self._pods).frame:
            return [f"port security: table bridge {NFT_PORTS_TABLE} is gone, or not as planned"]
        return [
            f"port security: set {name} of table bridge {NFT_PORTS_TABLE} lacks {each}"
            for name, elements in elements_of(pod).items()
            for each in sorted(elements - have.held(name))
        ]

    # A round

    def plan(self) -> PortTable:
        if self._mode == "off":
            return PortTable()
        if self._have is None:
            self._unrecorded = frozenset(self._find_unrecorded())
        pods = [*self._pods, *([self._coming] if self._coming is not None else [])]
        self._entered = {pod.link.host_ifname for pod in pods}
        return plan_ports(pods, {UNCHECKED: self._unrecorded})

    def state(self, want: PortTable) -> PortTable:
        if self._have is None:
            self._have = self._kernel.read()
        return self._have

    def diff(self, want: PortTable, have: PortTable) -> list[Change]:
        return diff_ports(want, have)

    def apply(self, changes: Sequence[Change]) -> list[str]:
        for change in changes:
            self._have = None
            try:
                self._kernel.apply(change)
            except KernelError as error:
                self._say_why_not(self._kernel.why_not())
                return [f"port security: {self.why_not or error}"]
            self._say_why_not("")
            self._have = change.after if isinstance(change, ChangeElements) else change.table
        return []

    def _say_why_not(self, cause: str) -> None:
        why = f"this kernel has no nftables for bridges (CONFIG_NF_TABLES_BRIDGE): {cause}"
        if cause and not self.why_not:
            _log.error("pods can send from any address", why=why)
        self.why_not = why if cause else ""

    def resync(self) -> None:
        self._have = None

    def suspect_nftables(self) -> None:
        self._have = None
