"""The network between nodes on this node: rounds of their own over snapshot, paths and links."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import structlog

from limpet.base import faults
from limpet.base.addresses import Endpoint, Prefix, UnderlayLink
from limpet.base.errors import KernelError, LimpetError
from limpet.base.ownership import DYING_GROUP, POD_GROUP, TUNNEL_GROUP, VXLAN_GROUPS
from limpet.base.settings import PeerSettings
from limpet.cluster.membership import Membership, News
from limpet.cluster.topology.paths import OwnSide, PeerPath
from limpet.cluster.topology.view import View, view_of
from limpet.datapath.overlay.apply import OVERLAY_NOTIFICATIONS, OverlayKernel
from limpet.datapath.overlay.diff import (
    DropDevice,
    DropDeviceAddress,
    LoosenLink,
    OverlayChange,
    PutDevice,
    PutDeviceAddress,
    PutPeerRoute,
    diff_overlay,
)
from limpet.datapath.overlay.filter_apply import PeerFilter
from limpet.datapath.overlay.plan import plan_overlay, replan_overlay
from limpet.datapath.overlay.state import OverlayPlan, Touched
from limpet.datapath.overlay.vtep import keep_vtep_macs, read_vtep_macs
from limpet.datapath.round_totals import RoundTotals
from limpet.datapath.tunnel.reconciler import TunnelRound
from limpet.datapath.tunnel.setup import TunnelSetup
from limpet.datapath.tunnel.tunnels import Tunnels
from limpet.datapath.tunnel.watch import TunnelWatch
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.socket import Notifications, RouteSocket
from limpet.linux.underlay import read_underlay

_log = structlog.get_logger("site")

_GATHER_S = 0.02
"""How long changes are gathered: one round serves all of them."""
_RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)
_DEVICE_CHANGES = (PutDevice, DropDevice, LoosenLink, PutDeviceAddress, DropDeviceAddress)
_DEFAULT_MTU_BYTES = 1500


class PeerReconciler:
    """Runs on the event loop. A change is met within some twenty milliseconds."""

    def __init__(
        self,
        membership: Membership,
        settings: PeerSettings,
        tunnels: TunnelSetup,
        *,
        route: RouteSocket,
        vtep_path: Path,
        bridges: Callable[[], Collection[str]],
        before_sysctl: Callable[[str], None],
    ) -> None:
        """`bridges`: of our pods. `before_sysctl`: a setting of the node is about to change.

        In the network namespace of the calling thread. Raises: LimpetError.
        """
        self._membership = membership
        self._settings = settings
        self._route = route
        self._vtep_path = vtep_path
        self._before_sysctl = before_sysctl
        self._kernel = OverlayKernel(route)
        self._filter = PeerFilter(bridges)
        self._notifications = Notifications(socket.NETLINK_ROUTE, OVERLAY_NOTIFICATIONS)
        self.tunnels = Tunnels(route, membership.identity, tunnels, wake=self.wake)
        self.watch = TunnelWatch(route, self.tunnels)
        self._mapped: tuple[Endpoint, ...] = ()
        self._relay_tls_port = 0
        self._anew = True
        """The kernel has to be read anew: what was notified does not tell all."""
        self._whole = True
        """Every key has to be looked at, not only those that a change touches."""
        self._plan_anew = True
        """There is no plan, or none to be relied on, that could be gone on from."""
        self._wake: asyncio.TimerHandle | None = None
        self._gathering: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._whys: list[str] = []
        self._retries = 0
        self._vteps: dict[int, str] = {}
        self._versions: set[int] = set()
        """IP versions that the underlay has had since the start."""
        self.links: tuple[UnderlayLink, ...] = ()
        self.paths: Mapping[str, PeerPath] = {}
        self._tunnel_only: frozenset[str] = frozenset()
        self.shut_out: frozenset[str] = frozenset()
        """Peers of whom the kernel may let in nothing in clear."""
        self.view = view_of(membership.snapshot, membership.uid, {}, OwnSide())
        self.plan = OverlayPlan()
        self.failures: list[str] = []
        self.totals = RoundTotals()
        self.took_ms = 0.0
        """The last round."""
        self.on_links: list[Callable[[tuple[UnderlayLink, ...]], None]] = []
        self.on_segments: list[Callable[[tuple[Prefix, ...]], None]] = []
        """Called before a round that brings other segments of this node, or another network."""

    # What wakes it

    def start(self) -> None:
        """The first round. Raises: LimpetError when it cannot be known what the kernel has."""
        own = self._membership.presence
        existing = read_vtep_macs(self._route)
        self._versions |= existing.keys()
        recorded = own.vtep_macs if own is not None else {}
        self._vteps = keep_vtep_macs(
            self._vtep_path, self._membership.uid, recorded=recorded, existing=existing
        )
        self.tunnels.begin(self._membership.network)
        self._read_links()
        self._membership.subscribe(self._heard_news)
        asyncio.get_running_loop().add_reader(self._notifications.fileno(), self._notified)
        self.run("start")
        self.watch.start()

    def close(self) -> None:
        for timer in (self._wake, self._gathering, self._retry):
            if timer is not None:
                timer.cancel()
        with contextlib.suppress(RuntimeError):  # no loop runs any more
            asyncio.get_running_loop().remove_reader(self._notifications.fileno())
        self._notifications.close()
        self._filter.close()
        self.watch.stop()
        self.tunnels.close()

    def set_endpoints(self, mapped: tuple[Endpoint, ...]) -> None:
        """Where the tunnel is seen from outside; told beside those of the configuration."""
        self._mapped = mapped
        self.announce()

    def set_relay_tls_port(self, port: int) -> None:
        """Where the node relays in TLS connections; 0: nowhere."""
        self._relay_tls_port = port
        self.announce()

    def set_paths(self, paths: Mapping[str, PeerPath], why: str = "a path changed") -> None:
        """`paths` by the peer's uid; another mapping than the last one if anything is different."""
        self.paths = paths
        self.wake(why)

    def set_tunnel_only(self, uids: frozenset[str]) -> None:
        """Peers that send through tunnels only; of others more is let in with the next round."""
        self._tunnel_only = uids
        self.wake("peers turned to tunnels, or from them")

    def wake(self, why: str) -> None:
        """A round soon."""
        self._whys.append(why)
        if self._wake is None:
            self._wake = asyncio.get_running_loop().call_later(_GATHER_S, self._woken)

    def look_at_everything(self, why: str) -> None:
        """A round now that takes nothing for granted: the timer's, or after others' changes."""
        self._anew = self._whole = True
        self._filter.in_place = False
        self.tunnels.look_at_everything()
        try:
            self._read_links()
            self.announce()
        except LimpetError as error:
            _log.warning("what leads to other nodes was not read", error=str(error))
        self.run(why)

    def look_at_filter(self, why: str) -> None:
        """The filter is compared with the plan soon."""
        self._filter.in_place = False
        self.wake(why)

    def forged_packets(self) -> int:
        """Dropped since the filter was put whole the last time."""
        return self._filter.forged_packets()

    def _woken(self) -> None:
        self._wake = None
        if self._whys:  # or a round has served them meanwhile
            self.run(", ".join(dict.fromkeys(self._whys)))

    def _heard_news(self, news: News) -> None:
        self.wake(f"{len(news.uids) or 'network'} changed, {news.source.value}")

    def _notified(self) -> None:
        """The reader rests while notifications are gathered."""
        asyncio.get_running_loop().remove_reader(self._notifications.fileno())
        self._gathering = asyncio.get_running_loop().call_later(_GATHER_S, self._gathered)

    def _gathered(self) -> None:
        asyncio.get_running_loop().add_reader(self._notifications.fileno(), self._notified)
        try:
            if self._drain():
                self.run("the kernel has something else than planned")
        except KernelError as error:
            _log.warning("notifications cannot be read", error=str(error))
            self._anew = self._whole = True
            self.wake("notifications could not be read")

    def _drain(self) -> bool:
        """Takes up notifications; True: by them something is not as planned. Raises: KernelError.

        Also when something that had failed may succeed now; not at every notification then.
        """
        links_changed = unclear = tunnel_damaged = False
        for message in self._notifications.drain():
            if message is not None and _is_of_a_pod(message):
                continue  # nearly all are
            unclear |= self._kernel.hear(message)
            tunnel_damaged |= self.tunnels.hear(message)
            links_changed |= message is None or self._is_about_underlay(message)
        self._anew |= unclear
        damaged = unclear or self._is_damaged(self._kernel.take_heard())
        self._whole |= damaged
        if links_changed:
            self._read_links()
        return damaged or tunnel_damaged or (links_changed and bool(self.failures))

    def _is_damaged(self, touched: Touched) -> bool:
        want, have = self.plan.state, self._kernel.have
        return (
            any(want.routes.get(key) != have.routes.get(key) for key in touched.routes)
            or any(
                want.neighbours.get(key) != have.neighbours.get(key) for key in touched.neighbours
            )
            or any(want.fdb.get(key) != have.fdb.get(key) for key in touched.fdb)
        )

    def _is_about_underlay(self, message: wire.Message) -> bool:
        if message.type in (wire.RTM_NEWADDR, wire.RTM_DELADDR):
            return True
        if message.type not in (wire.RTM_NEWLINK, wire.RTM_DELLINK):
            return False
        if message.body[0] == wire.AF_BRIDGE:
            return False
        return wire.link_group(message) not in (*VXLAN_GROUPS.values(), TUNNEL_GROUP)

    def _read_links(self) -> None:
        network = self._membership.network
        links = read_underlay(
            self._route,
            patterns=self._settings.links,
            not_in=network.pod_cidrs if network is not None else (),
        )
        if links == self.links:
            return
        self._filter.links_changed(self.links, links)
        self.links = links
        _log.info(
            "links to other nodes",
            links=" ".join(
                f"{link.ifname}({','.join(str(a) for a in link.addresses)})" for link in links
            ),
        )
        self.announce()
        for listener in self.on_links:
            with faults.noted("links"):
                listener(links)
        if self.totals.rounds:
            self.wake("links changed")

    def announce(self) -> None:
        """What the node says of itself, if it is not what it said last."""
        if not self.links:
            return  # cut off: whoever hears us again hears the addresses of then
        self._membership.announce(
            addresses=tuple(address.ip for link in self.links for address in link.addresses)[:16],
            port=self._settings.port,
            vtep_macs=self._own_side().vtep_macs,
            link_mtu_bytes=self.mtu_bytes,
            endpoints=tuple(dict.fromkeys((*self._settings.endpoints, *self._mapped)))[:16],
            tunnel_port=self.tunnels.key.port if self.tunnels.device else 0,
            relay_tls_port=self._relay_tls_port,
        )

    @property
    def mtu_bytes(self) -> int:
        """Of the smallest link to other nodes: what every pod can count on."""
        return min((link.mtu_bytes for link in self.links), default=_DEFAULT_MTU_BYTES)

    def _own_side(self) -> OwnSide:
        # A device stays when its underlay flaps.
        self._versions |= {address.version for link in self.links for address in link.addresses}
        return OwnSide(
            vtep_macs={v: mac for v, mac in self._vteps.items() if v in self._versions},
            link_mtu_bytes=max((link.mtu_bytes for link in self.links), default=_DEFAULT_MTU_BYTES),
            links=frozenset(link.ifname for link in self.links),
            link_prefixes=tuple(
                address.network for link in self.links for address in link.addresses
            ),
            tunnel=self.tunnels.wireguard.device,
            ipsec=self.tunnels.ipsec_device,
            nat_timeout_s=self._settings.nat_timeout_s,
        )

    # A round

    def run(self, why: str) -> None:
        """Observe, plan, diff, apply. Raises nothing; a failure is met again soon."""
        self._whys.clear()
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        started_s = time.monotonic()
        changes = 0
        try:
            changes, self.failures = self._round()
        except LimpetError as error:
            self._anew = self._whole = True
            self._filter.in_place = False
            self.failures = [str(error)]
        except Exception as error:  # noqa: BLE001 - the next round may be better
            faults.note("round for peers", error)
            self._anew = self._whole = self._plan_anew = True
            self.failures = [f"internal error: {error!r} (see the agent's log)"]
        self.took_ms = (time.monotonic() - started_s) * 1e3
        self.totals.add(changes=changes, failures=len(self.failures), took_ms=self.took_ms)
        self._report(why, changes)

    def _report(self, why: str, changes: int) -> None:
        fields = {
            "loop": "peers",
            "peers": len(self.plan.parts),
            "changes": changes,
            "failed": len(self.failures),
            "why": why,
            "took_ms": f"{self.took_ms:.1f}",
        }
        if self.failures:
            _log.warning("round", **fields, error=self.failures[0])
            delay_s = _RETRY_S[min(self._retries, len(_RETRY_S) - 1)]
            self._retries += 1
            self._retry = asyncio.get_running_loop().call_later(
                delay_s, self.wake, "some changes had failed"
            )
            return
        self._retries = 0
        if changes:
            _log.info("round", **fields)
        else:
            _log.debug("round", **fields)

    def _round(self) -> tuple[int, list[str]]:
        """Number of changes, and failures. Raises: KernelError."""
        self._drain()
        before, plan_before = self.view, self.plan
        membership = self._membership
        self.tunnels.follow(membership.network)
        view = view_of(
            membership.snapshot,
            membership.uid,
            self.paths,
            self._own_side(),
            before=before,
            tunnel_only=self._tunnel_only,
        )
        if view.tunnel_only is not self.shut_out:
            self.shut_out |= view.tunnel_only
        mine = view.segments.get(membership.uid, ()) if view.grant is not None else ()
        if (
            mine != before.segments.get(membership.uid, ())
            or view.network != before.network
            or not self.totals.rounds
        ):
            for listener in self.on_segments:
                listener(mine)
        touched: Touched | None
        if self._plan_anew:
            plan, touched = plan_overlay(view), None
        else:
            plan, touched = replan_overlay(plan_before, before, view)
        self.view, self.plan, self._plan_anew = view, plan, False
        tunnel = self._tunnel_round(view, plan)
        if touched is None:
            self._filter.in_place = False
        if self._whole or self._anew:
            touched = None
        have = self._kernel.observe(plan.state) if self._anew else self._kernel.have
        changes = diff_overlay(plan.state, have, touched)
        down = self.tunnels.down
        changes = [each for each in changes if not _is_by(each, down)]
        failures = [
            str(each) for each in self._kernel.apply(changes, before_sysctl=self._before_sysctl)
        ]
        self._anew = self._whole = bool(failures)
        # Of a device the kernel tells more than was asked for; it is read anew the next time.
        self._anew |= any(isinstance(change, _DEVICE_CHANGES) for change in changes)
        try:
            self._filter.put(view, plan_before, plan)
            self.shut_out = view.tunnel_only
        except KernelError as error:
            failures.append(str(error))
        return len(changes) + tunnel.changes, [*tunnel.failures, *failures]

    def _tunnel_round(self, view: View, plan: OverlayPlan) -> TunnelRound:
        """First: routes lead to its device."""
        done = self.tunnels.round(view, plan.parts)
        if done.made:
            self._anew = self._whole = True
        if (self.tunnels.wireguard.device, self.tunnels.ipsec_device) != (
            view.own.tunnel,
            view.own.ipsec,
        ):
            self.announce()
            self.wake("other tunnels can be had now")
        return done


def _is_by(change: OverlayChange, devices: Collection[str]) -> bool:
    return isinstance(change, PutPeerRoute) and change.route.device in devices


def _is_of_a_pod(message: wire.Message) -> bool:
    return message.type in (wire.RTM_NEWLINK, wire.RTM_DELLINK) and wire.link_group(message) in (
        POD_GROUP,
        DYING_GROUP,
    )
