"""Everything of a node that has joined a cluster, put together."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

import structlog

from limpet.agent.nat_traversal import NatTraversal
from limpet.agent.routed_prefixes import RoutedPrefixes
from limpet.agent.settings import Settings
from limpet.base.addresses import Prefix, UnderlayLink
from limpet.base.errors import ConfigError
from limpet.base.node_state import NodeState
from limpet.base.ownership import VXLAN_IFNAME_PREFIX
from limpet.cloud.link import ControllerLink
from limpet.cloud.pod_reports import PodReports
from limpet.cloud.session import Session
from limpet.cluster.exchange.exchange import Exchange
from limpet.cluster.identity import Identity, boot_id
from limpet.cluster.membership import Membership, News
from limpet.cluster.peer_socket import PeerSocket
from limpet.cluster.segment_demand import wanted_versions
from limpet.cluster.snapshot.file import SnapshotFile
from limpet.cni.ledgers import Ledgers
from limpet.cni.usage import segment_usage
from limpet.datapath.node.reconciler import NodeReconciler
from limpet.datapath.overlay.reconciler import PeerReconciler
from limpet.datapath.tunnel.setup import TunnelSetup
from limpet.linux.netlink.socket import RouteSocket
from limpet.paths.prober import Prober

_log = structlog.get_logger("cluster")

_END_S = 2.0
"""For each part, when the agent ends."""


class ClusterSide:
    """Runs on the event loop.

    The network between nodes stands when `begin` returns, from what is on the disk; `connect`
    lets others be heard.
    """

    def __init__(
        self,
        identity: Identity,
        settings: Settings,
        *,
        rounds: NodeReconciler,
        books: Ledgers,
        route: RouteSocket,
        before_sysctl: Callable[[str], None],
    ) -> None:
        """Raises: LimpetError."""
        if segments := settings.pods.segments:
            raise ConfigError(
                f"segments = {[str(each) for each in segments]}: this node has joined a "
                "cluster, which grants its segments (take the key out of the agent's configuration)"
            )
        self._settings = settings
        self._rounds = rounds
        self._books = books
        self._connected = False
        folder = identity.folder
        self.membership = Membership(
            identity, SnapshotFile(folder / "snapshot.log", own_uid=identity.uid), boot_id=boot_id()
        )
        for problem in self.membership.problems:
            _log.error("of what this node knew, something is lost", problem=problem)
        self.courier = PeerSocket(
            identity,
            port=settings.peers.port,
            is_member=self.membership.is_member,
            is_removed=self.membership.tombstone_of,
        )
        self.site = PeerReconciler(
            self.membership,
            settings.peers,
            TunnelSetup(settings.tunnel, settings.folders.run_dir, settings.pods.bridge),
            route=route,
            vtep_path=folder / "vtep.json",
            bridges=lambda: self._rounds.want.bridges,
            before_sysctl=before_sysctl,
        )
        self.probing = Prober(
            self.membership,
            self.courier,
            path_file=folder / "paths.json",
            on_change=lambda _uids: self._paths_changed(),
            on_newer=lambda uid: self.exchange.compare_with(uid),
            on_relay_need=lambda uid, wanted: self.across.relays.need(uid, wanted),
        )
        self.exchange = Exchange(self.membership, self.courier)
        self.site.watch.inner = self.exchange.inner
        self.across = NatTraversal(
            self.membership,
            self.courier,
            settings,
            site=self.site,
            probing=self.probing,
            exchange=self.exchange,
        )
        self.pods = PodReports(books, folder / "reports.json")
        self.link = ControllerLink(identity)
        self.session = Session(
            self.membership,
            self.link,
            pods=self.pods,
            appetite=self._appetite,
            random=random.random,
        )
        self.behind = RoutedPrefixes(self.membership, self._behind_changed)
        self.site.paths = self.probing.paths
        self.probing.on_tunnel_only = self.site.set_tunnel_only
        self.probing.shut_out = lambda: self.site.shut_out
        self.site.on_links.append(self._links_changed)
        self.site.on_segments.append(self._stand)
        self.membership.subscribe(self._heard)
        rounds.look_beside = self._look_at_everything
        rounds.look_at_filter = self._look_at_filters
        self._segments = self.site.view.segments.get(identity.uid, ())
        """As planned last."""
        rounds.follow(self._state())

    def begin(self) -> None:
        """The first round. Raises: LimpetError."""
        self.site.start()

    async def connect(self) -> None:
        """Raises: LimpetError when the node's port is taken."""
        self.courier.start()
        self._connected = True
        self.courier.set_links(self.site.links)
        self.exchange.set_links(self.site.links)
        self.probing.set_links(self.site.links)
        self.across.set_links(self.site.links)
        self.across.paths_changed()
        self.exchange.start()
        self.across.start()
        self.probing.start()
        self.session.start()

    async def close(self) -> None:
        async with contextlib.AsyncExitStack() as parts:  # from the last to the first
            parts.callback(self.membership.close)
            parts.callback(self.site.close)
            if self._connected:
                parts.callback(self.courier.stop)
            for part in (self.exchange, self.probing, self.across, self.session):
                parts.push_async_callback(_end, part.stop, type(part).__name__.lower())

    # What follows from what

    def _paths_changed(self) -> None:
        self.site.set_paths(self.probing.paths)
        self.across.paths_changed()

    def _look_at_everything(self, why: str) -> None:
        self.site.look_at_everything(why)
        self.across.look()

    def _look_at_filters(self, why: str) -> None:
        self.site.look_at_filter(why)
        self.across.look()

    def _state(self) -> NodeState:
        membership, network = self.membership, self.membership.network
        cidrs = network.pod_cidrs if network is not None else ()
        vxlan = (f"{VXLAN_IFNAME_PREFIX}{version}" for version in (4, 6))
        return NodeState(
            segments=() if membership.removed else self._segments,
            cluster_cidrs=tuple(dict.fromkeys((*self._settings.pods.cluster_cidrs, *cidrs))),
            behind=self.behind.networks,
            in_cluster=True,
            underlay_mtu_bytes=self.site.mtu_bytes if self.site.links else None,
            overlay_links=frozenset((*vxlan, self._settings.tunnel.ifname)),
        )

    def _behind_changed(self) -> None:
        self._rounds.follow(self._state(), "the networks behind nodes changed")

    def _stand(self, segments: tuple[Prefix, ...]) -> None:
        """Pods get addresses of these segments from now on."""
        if segments != self._segments:
            self._segments = segments
            _log.info("segments of this node", segments=" ".join(map(str, segments)) or "none")
        self._rounds.follow(self._state(), "the node's segments changed")

    def _links_changed(self, links: tuple[UnderlayLink, ...]) -> None:
        self.behind.set_links(links)
        self._rounds.follow(self._state(), "the MTU of the links to other nodes changed")
        if not self._connected:
            return
        self.courier.set_links(links)
        self.exchange.set_links(links)
        self.across.set_links(links)
        self.probing.set_links(links)
        self.session.network_changed()

    def _heard(self, news: News) -> None:
        if self.membership.uid in news.uids and self.membership.removed:
            _log.error(
                "this node was removed from the cluster: it reaches no other node any more",
                what_to_do="`limpet join --anew` with a new token, if it should be there",
            )

    # Segments

    def _appetite(self) -> tuple[int, ...]:
        grant, network = self.membership.grant, self.membership.network
        if grant is None or network is None:
            return ()
        usage = segment_usage(self._books, self._rounds.state.segments)
        return wanted_versions(grant, network, usage)

    def pods_changed(self) -> None:
        """An address was given or came free."""
        self.pods.changed()
        self.session.wake()


async def _end(stop: Callable[[], Awaitable[None]], part: str) -> None:
    """An agent that is told to end does so, whatever one of its parts waits for."""
    try:
        async with asyncio.timeout(_END_S):
            await stop()
    except TimeoutError:
        _log.error("a part of the agent did not end in time, and is left as it is", part=part)
