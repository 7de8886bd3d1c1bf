"""The part of the loop for the network between nodes: devices, routes and entries for peers, and
the filter of what they may send."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import IntEnum
from pathlib import Path

import structlog

from limpet.base.errors import KernelError, LimpetError
from limpet.base.ownership import NFT_OVERLAY_TABLE, VXLAN_GROUPS
from limpet.cluster.membership import Membership
from limpet.cluster.topology.view import VxlanDevice
from limpet.datapath.change import Drop, LinkAddress, Put
from limpet.datapath.overlay.apply import OVERLAY_NOTIFICATIONS, OverlayKernel
from limpet.datapath.overlay.diff import LoosenLink, OverlayChange, PutDevice, diff_overlay
from limpet.datapath.overlay.filter.apply import PeerFilter, PutFilter
from limpet.datapath.overlay.plan import plan_overlay, replan_overlay
from limpet.datapath.overlay.state import Key, OverlayPlan, OverlayState, PeerRoute
from limpet.datapath.overlay.vtep import keep_vtep_macs
from limpet.datapath.own_node import is_of_a_pod
from limpet.datapath.part import Part
from limpet.datapath.peers import Peers
from limpet.linux.netlink import codec as wire
from limpet.linux.owned import LinkMark, Owned

_log = structlog.get_logger("overlay")


class _Look(IntEnum):
    """How much of the kernel the next diff has to see."""

    TOUCHED = 0
    """What the change of the plan may have changed."""
    EVERY_KEY = 1
    """All of what was read and notified."""
    KERNEL = 2
    """Dump the kernel next round: a notification was lost or ambiguous."""


class OverlayPart(Part[OverlayState, OverlayChange | PutFilter]):
    """Runs on the event loop. A change is met within some twenty milliseconds."""

    name = "overlay"
    groups = OVERLAY_NOTIFICATIONS
    nftables = True

    def __init__(
        self,
        peers: Peers,
        kernel: OverlayKernel,
        filter_: PeerFilter,
        *,
        before_sysctl: Callable[[str], None],
    ) -> None:
        """`before_sysctl`: a setting of the node is about to change."""
        self.planned = OverlayPlan()
        self._peers = peers
        self._kernel = kernel
        self._filter = filter_
        self._before_sysctl = before_sysctl
        self._before = OverlayPlan()
        """The plan that the kernel's filter was made from."""
        self._touched: frozenset[Key] | None = None
        """All that may differ; None: anything may."""
        self._look = _Look.KERNEL
        self._is_unclear = False
        """By what was heard since the last look the kernel has something else than known."""
        self._is_planned = False
        """There is a plan that the next can be made of."""
        self._failed = False
        """Something of the last round failed."""
        self._told_claims: dict[str, str] = {}
        """Claims that the log has, by the uid of who claims."""

    @staticmethod
    def owned(run_dir: Path) -> Owned:
        return Owned(
            links=tuple(LinkMark(kind="vxlan", group=group) for group in VXLAN_GROUPS.values()),
            nft_tables=(NFT_OVERLAY_TABLE,),
            nft_netdev_tables=(NFT_OVERLAY_TABLE,),
            sysctls={"rp_filter": ("2",)},
        )

    def begin(self, membership: Membership, vtep_path: Path) -> None:
        """The devices have their MACs for life. Raises: LimpetError."""
        recorded = membership.presence.vtep_macs if membership.presence is not None else {}
        existing = self._kernel.vtep_macs()
        own = self._peers.own
        own.versions |= existing.keys()
        own.vteps = keep_vtep_macs(vtep_path, membership.uid, recorded=recorded, existing=existing)

    def close(self) -> None:
        """What is in the kernel stays."""
        self._filter.close()

    def forged_packets(self) -> int:
        """Dropped since the filter was put whole the last time."""
        return self._filter.forged_packets()

    # A round

    def plan(self) -> OverlayState:
        view, before = self._peers.next_view(), self._peers.view
        self._filter.set_links(self._peers.own.filtered_links)
        touched: frozenset[Key] | None
        if self._is_planned:
            planned, touched = replan_overlay(self.planned, before, view)
        else:
            planned, touched = plan_overlay(view), None
        if touched is None:
            self._filter.in_place = False
        self._before, self.planned, self._is_planned = self.planned, planned, True
        self._touched = touched
        self._peers.settle(view, planned.parts)
        self._tell_claims()
        return planned.state

    def _tell_claims(self) -> None:
        """Once of each peer and claim, also where the claim comes and goes."""
        for uid, what in self.planned.claims.items():
            if self._told_claims.get(uid) != what:
                self._told_claims[uid] = what
                _log.error(
                    "a peer claims what is not its own",
                    peer=self._peers.view.snapshot.nodes[uid].grant.name,
                    uid=uid,
                    claim=what,
                    what_to_do="look at that machine: limpet doctor says more",
                    by_others=uid,
                )

    def state(self, want: OverlayState) -> OverlayState:
        if self._peers.take_made():
            # What led to the device went with the one before, and so did the filter at it.
            self._look, self._filter.in_place = _Look.KERNEL, False
        if self._look is not _Look.TOUCHED:
            self._touched = None
        return self._kernel.observe(want) if self._look is _Look.KERNEL else self._kernel.have

    def diff(self, want: OverlayState, have: OverlayState) -> list[OverlayChange | PutFilter]:
        down = self._peers.down
        needed = diff_overlay(want, have, self._touched)
        changes: list[OverlayChange | PutFilter] = [
            change
            for change in needed
            if not (isinstance(change, Put) and _is_route_by(change.what, down))
        ]
        # What waits for a device that is down is still to be done, whatever the next plan touches.
        self._look = _Look.TOUCHED if len(changes) == len(needed) else _Look.EVERY_KEY
        # Of a device the kernel tells more than was asked for; it is read anew the next time.
        if any(_is_of_a_device(change) for change in changes):
            self._look = _Look.KERNEL
        self._failed = False
        put = self._filter.diff(self._peers.view, self._before, self.planned)
        if any(isinstance(change, PutDevice) for change in changes):
            put = PutFilter(self._peers.view, self.planned)  # once the device is there
        if put is None:
            self._peers.shut_out = self._peers.view.tunnel_only
        else:
            changes.append(put)
        return changes

    def apply(self, changes: Sequence[OverlayChange | PutFilter]) -> list[str]:
        ours = [change for change in changes if not isinstance(change, PutFilter)]
        failures = [
            str(each) for each in self._kernel.apply(ours, before_sysctl=self._before_sysctl)
        ]
        if failures:
            self._look, self._failed = _Look.KERNEL, True
        for change in changes:
            if isinstance(change, PutFilter):
                try:
                    self._filter.put(change)
                    self._peers.shut_out = change.view.tunnel_only
                except KernelError as error:
                    failures.append(str(error))
        self._filter.forget_flows()
        return failures

    def broke_off(self, error: Exception) -> None:
        self.resync()
        self._is_planned &= isinstance(error, LimpetError)

    # What wakes it

    def resync(self) -> None:
        self._look = _Look.KERNEL
        self._filter.in_place = False
        self._peers.own.is_stale = True

    def suspect_nftables(self) -> None:
        self._filter.in_place = False

    def hear(self, message: wire.Message) -> None:
        if not is_of_a_pod(message):
            self._is_unclear |= self._kernel.hear(message)
            self._peers.own.hear(message)

    def damage(self) -> str:
        want, have = self.planned.state.entries, self._kernel.have.entries
        heard = self._kernel.take_heard()
        damaged = self._is_unclear or any(want.get(key) != have.get(key) for key in heard)
        if damaged:
            self._look = _Look.KERNEL if self._is_unclear else max(self._look, _Look.EVERY_KEY)
        self._is_unclear = False
        links_heard = self._peers.own.is_stale
        links_changed = self._peers.own.read_links()
        if damaged:
            return "the kernel has something else than planned"
        # What had failed may succeed now, after a link has come or gone.
        return "links changed" if links_changed or (links_heard and self._failed) else ""


def _is_route_by(what: object, devices: Collection[str]) -> bool:
    return isinstance(what, PeerRoute) and what.device in devices


def _is_of_a_device(change: OverlayChange | PutFilter) -> bool:
    match change:
        case PutDevice() | LoosenLink():
            return True
        case Put(what) | Drop(what):
            return isinstance(what, LinkAddress | VxlanDevice)
    return False
