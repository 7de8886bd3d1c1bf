"""Everything of a node that has joined a cluster, put together."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import assert_never

import structlog

from limpet.agent.answers.picture.looking import Looking
from limpet.agent.answers.picture.reporting import make_report
from limpet.agent.happenings.changed_at import ChangedAt
from limpet.agent.happenings.of_cluster import ClusterHappenings, Watched
from limpet.agent.happenings.of_node import NodeHappenings
from limpet.agent.kubernetes_side import KubernetesSide
from limpet.agent.nat_traversal import NatTraversal
from limpet.agent.node_state import NodeInCluster
from limpet.agent.settings import Settings
from limpet.base.addresses import UnderlayLink
from limpet.base.errors import ConfigError
from limpet.base.event_queue import EventQueue, tell_each
from limpet.cloud.link import ControllerLink
from limpet.cloud.path_reports import PathReports
from limpet.cloud.pod_reports import PodReports
from limpet.cloud.publisher import Reports
from limpet.cloud.second_road.state import PUBLISHED_THERE, UNTOLD_THERE
from limpet.cloud.session import Session
from limpet.cluster.datagrams.peer_socket import PeerSocket
from limpet.cluster.exchange.exchange import Exchange
from limpet.cluster.identity import Identity, boot_id
from limpet.cluster.membership import Membership, News
from limpet.cluster.replica import Change
from limpet.cluster.segments import wanted_versions
from limpet.cluster.snapshot.file import SnapshotFile
from limpet.cni.ledgers import Ledgers
from limpet.cni.usage import segment_usage
from limpet.datapath.event import (
    ActivePeersChanged,
    AnswerSeen,
    BridgeMade,
    DamageSuspected,
    EndpointsChanged,
    Event,
    LinksChanged,
    NetworksChanged,
    NodeAwaited,
    OwnEndChanged,
    PathsChanged,
    PeerIsNewer,
    PeersPlanned,
    PeerUnanswered,
    PlaceChanged,
    PodsChanged,
    ReachChanged,
    RelayEndsChanged,
    RelayingChanged,
    RelayNeeded,
    RelayTlsPortChanged,
    SegmentsChanged,
    ServingNodesChanged,
    TunnelOnlyChanged,
    TunnelsChanged,
)
from limpet.datapath.loop import Loop
from limpet.datapath.node.part import NodePart
from limpet.datapath.overlay.filter.apply import PeerFilter
from limpet.datapath.overlay.vtep import VTEP_FILE
from limpet.datapath.together.peer_parts import PeerParts
from limpet.datapath.tunnel.setup import TunnelSetup
from limpet.linux.netlink.socket import RouteSocket
from limpet.paths.prober import Prober
from limpet.paths.watched_peers import WatchedPeers

_log = structlog.get_logger("cluster")

_END_S = 2.0
"""Seconds that each part has to stop when the agent ends."""


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
        loop: Loop,
        node_part: NodePart,
        ledgers: Ledgers,
        route: RouteSocket,
        before_sysctl: Callable[[str], None],
        happenings: NodeHappenings,
    ) -> None:
        """Raises: LimpetError."""
        if segments := settings.pods.segments:
            raise ConfigError(
                f"segments = {[str(each) for each in segments]}: this node has joined a "
                "cluster, which grants its segments (take the key out of the agent's configuration)"
            )
        self._events: EventQueue[Event | News | Change] = EventQueue(self._pass_on)
        folder = identity.folder
        self.membership = Membership(
            identity,
            SnapshotFile(folder / "snapshot.log", own_uid=identity.uid, is_joined=True),
            boot_id=boot_id(),
        )
        for problem in self.membership.replica.problems:
            _log.error("of what this node knew, something is lost", problem=problem)
        self.courier = PeerSocket(
            identity,
            port=settings.peers.port,
            is_member=self.membership.is_member,
            is_removed=self.membership.removal_of,
        )
        self.peer_parts = PeerParts(
            loop,
            self.membership,
            settings.peers,
            TunnelSetup(settings.tunnel, settings.folders.run_dir, settings.pods.bridge),
            route=route,
            vtep_path=folder / VTEP_FILE,
            peer_filter=PeerFilter(
                lambda: node_part.want.bridges,
                settings.peers.port,
                tenants=settings.source.source == "kubernetes",
            ),
            before_sysctl=before_sysctl,
        )
        self.probing = Prober(
            self.membership,
            self.courier,
            path_file=folder / "paths.json",
            shut_out=lambda: self.peer_parts.peers.shut_out,
            tell=self.tell,
        )
        self.watched = WatchedPeers(self.membership, self.probing)
        self.exchange = Exchange(self.membership, self.courier, self.peer_parts.watch.inner)
        self.nat_traversal = NatTraversal(
            self.membership, self.courier, settings, self.peer_parts.tunnels, self.tell
        )
        changed_at = ChangedAt()
        looking = Looking(
            self.peer_parts,
            self.probing,
            self.nat_traversal,
            since_at_s=changed_at.get,
            ledgers=ledgers,
        )
        self.session = Session(
            self.membership,
            ControllerLink(identity),
            reports=Reports(
                PodReports(ledgers, folder / "reports.json"),
                PathReports(partial(make_report, looking)),
            ),
            segment_demand=partial(_wanted_versions, self.membership, ledgers, node_part),
            random=random.random,
            elsewhere=PUBLISHED_THERE if settings.source.source == "kubernetes" else (),
            untold=UNTOLD_THERE if settings.source.source == "kubernetes" else (),
        )
        self.kubernetes = KubernetesSide(
            settings,
            self.membership,
            self.session,
            self.probing,
            loop=loop,
            node_part=node_part,
            ledgers=ledgers,
            random=random.random,
        )
        self.node = NodeInCluster(
            self.membership,
            settings,
            node_part,
            self.peer_parts.peers.view.segments.get(identity.uid, ()),
        )
        self.happenings = ClusterHappenings(
            happenings,
            Watched(
                self.membership,
                self.session,
                self.kubernetes,
                self.probing,
                self.peer_parts,
                self.nat_traversal.relays,
            ),
            changed_at,
        )
        self.membership.subscribe(self.tell)

    def begin(self) -> None:
        """The first round. Raises: LimpetError."""
        self.membership.replica.subscribe(self.tell)
        self.peer_parts.start(self.probing.paths)
        self.kubernetes.begin()

    async def connect(self) -> None:
        """Raises: LimpetError when the node's port is taken."""
        self.courier.start()
        self._look_who_tunnels()
        self._set_links(self.peer_parts.own.links)
        self._tell_tunnelled()
        self.exchange.start()
        self.nat_traversal.start()
        self.probing.start()
        self.session.start()
        self.kubernetes.start()
        self.happenings.start()

    def _look_who_tunnels(self) -> None:
        """The device may be a userspace tunnel's of before. Raises: KernelError."""
        self.probing.own.ipv6_last = self.peer_parts.tunnels.wireguard.kernel.is_userspace

    async def close(self) -> None:
        self.happenings.stop()
        self.watched.stop()
        async with contextlib.AsyncExitStack() as parts:  # from the last to the first
            parts.callback(self.membership.close)
            parts.callback(self.peer_parts.close)
            parts.callback(self.kubernetes.close)
            if self.courier.listens:
                parts.callback(self.courier.stop)
            for name, stop in self.kubernetes.stops():
                parts.push_async_callback(_end, stop, name)
            for part in (self.exchange, self.probing, self.nat_traversal, self.session):
                parts.push_async_callback(_end, part.stop, type(part).__name__.lower())

    def tell(self, event: Event | News | Change) -> None:
        """Whoever has to know hears it, after what was told before."""
        self._events.tell(event)

    def _pass_on(self, event: Event | News | Change) -> None:
        """Who hears what, in which order; what goes into the timeline does so first."""
        self.happenings.hear(event)
        peer_parts, probing, nat_traversal = self.peer_parts, self.probing, self.nat_traversal
        match event:
            # The cluster's documents
            case News():
                relays, role = nat_traversal.relays, nat_traversal.role
                tell_each(
                    event,
                    relays.streams,
                    self.session,
                    self.kubernetes.api_server,
                    self.node,
                    peer_parts,
                    role,
                    self.watched,
                    self.kubernetes,
                    role.service,
                    relays,
                    probing,
                    role.server,
                )
            case Change():  # after policies, which a node has without a cluster, too: agent/main.py
                tell_each(event, self.kubernetes.services, self.exchange)
                self.kubernetes.taken_back.look()
            # This node's pods
            case PodsChanged():
                self.session.pods_changed()
                self.kubernetes.pods_changed()
            # The datapath
            case LinksChanged(links):
                self.node.set_links(links)
                if self.courier.listens:
                    self._set_links(links)
                    self.session.network_changed()
                    self.kubernetes.network_changed()
            case NetworksChanged(networks):
                self.node.set_networks(networks)
            case SegmentsChanged(segments):
                self.node.set_segments(segments)
                self.kubernetes.look_around()
            case BridgeMade():
                peer_parts.look_at_filter()
            case DamageSuspected():  # the parts of the loop look by themselves
                nat_traversal.look()
            case ActivePeersChanged(uids):
                probing.set_active(uids)
            case PeerUnanswered(uid, endpoint):
                nat_traversal.handshake_reset.ask(uid, endpoint)
            case ServingNodesChanged(names):
                self.watched.serve(names)
            case PlaceChanged():
                self.kubernetes.look_around()
            case PeersPlanned(by_paths):
                self._tell_tunnelled()  # a peer may have got its segment after its path
                self.session.paths_changed(soon=by_paths)
            case TunnelsChanged():
                nat_traversal.tunnels_changed()
                self._look_who_tunnels()
            # Paths
            case PathsChanged():
                peer_parts.peers.set_paths(probing.paths)
                self._tell_tunnelled()
                self.kubernetes.look_around()
                self.session.paths_changed()
            case ReachChanged():
                self.watched.look()
                self.kubernetes.look_around()
                self.session.paths_changed()
            case TunnelOnlyChanged(uids):
                peer_parts.peers.set_tunnel_only(uids)
            case PeerIsNewer(uid):
                self.exchange.compare_with(uid)
            case RelayNeeded(uid, wanted):
                nat_traversal.relays.need(uid, wanted)
            case AnswerSeen(uid, asked, seen):
                nat_traversal.relays.answer_seen(uid, asked, seen)
            # Relays
            case EndpointsChanged(endpoints):
                peer_parts.own.set_endpoints(endpoints)
            case RelayEndsChanged() | OwnEndChanged():
                probing.set_relay_ends(event.uid, nat_traversal.ends.put(event))
            case RelayingChanged():
                nat_traversal.role.follow()
            case RelayTlsPortChanged(port):
                peer_parts.own.set_relay_tls_port(port)
            case NodeAwaited():
                nat_traversal.role.await_node(event)
            case _:
                assert_never(event)

    def _set_links(self, links: tuple[UnderlayLink, ...]) -> None:
        for part in (self.courier, self.exchange, self.nat_traversal.relays, self.probing):
            part.set_links(links)

    def _tell_tunnelled(self) -> None:
        """The exchange learns which peers are behind a tunnel: it tells them through it."""
        segments = self.peer_parts.peers.view.segments
        self.exchange.set_tunnelled(
            {
                uid: segments[uid][0][0]
                for uid, path in self.probing.paths.items()
                if path.rung.encrypted and segments.get(uid)
            }
        )


def _wanted_versions(
    membership: Membership, ledgers: Ledgers, node_part: NodePart
) -> tuple[int, ...]:
    """IP versions of which the node needs another segment."""
    if membership.grant is None or membership.network is None:
        return ()
    usage = segment_usage(ledgers, node_part.node.segments)
    return wanted_versions(membership.grant, membership.network, usage)


async def _end(stop: Callable[[], Awaitable[None]], part: str) -> None:
    """An agent that is told to end does so, whatever one of its parts waits for."""
    try:
        async with asyncio.timeout(_END_S):
            await stop()
    except TimeoutError:
        _log.error("a part of the agent did not end in time, and is left as it is", part=part)
