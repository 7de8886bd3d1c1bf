"""Everything of a node that has joined a cluster, put together."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, assert_never

import structlog

from limpet.agent.nat_traversal import NatTraversal
from limpet.agent.node_state import NodeInCluster
from limpet.agent.settings import Settings
from limpet.base import faults
from limpet.base.addresses import UnderlayLink
from limpet.base.errors import ConfigError
from limpet.base.settings import SourceSettings
from limpet.cloud.link import ControllerLink
from limpet.cloud.pod_reports import PodReports
from limpet.cloud.second_road import PUBLISHED_THERE, SecondRoad
from limpet.cloud.session import Session
from limpet.cluster.exchange.exchange import Exchange
from limpet.cluster.identity import Identity, boot_id
from limpet.cluster.membership import Membership, News
from limpet.cluster.peer_socket import PeerSocket
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
    NodeAwaited,
    OwnEndChanged,
    PathsChanged,
    PeerIsNewer,
    PeerUnanswered,
    PodsChanged,
    ReachChanged,
    RelayEndsChanged,
    RelayingChanged,
    RelayNeeded,
    RelayTlsPortChanged,
    SegmentsChanged,
    ServingNodesChanged,
    TunnelOnlyChanged,
)
from limpet.datapath.loop import Loop
from limpet.datapath.node.part import NodePart
from limpet.datapath.overlay.vtep import VTEP_FILE
from limpet.datapath.peer_parts import PeerParts
from limpet.datapath.tunnel.setup import TunnelSetup
from limpet.linux.netlink.socket import RouteSocket
from limpet.paths.prober import Prober

if TYPE_CHECKING:  # in memory only where Services are on, and names are answered
    from limpet.agent.names.side import NamesSide
    from limpet.agent.services import ServiceSide
    from limpet.services.mode import Choice

_log = structlog.get_logger("cluster")

SERVICES_FILE = "services.jsonl"
"""As `services.kept` has it, which is in memory only where Services are on."""
_END_S = 2.0
"""Seconds that each part has to stop when the agent ends."""


class _Kubernetes(NamedTuple):
    """What a node of a Kubernetes cluster hears at its API server."""

    api_server: SecondRoad | None
    """None: the controller tells what there is."""
    choice: Choice | None
    """Whether this node serves Services; None: nothing tells it of them."""
    services: ServiceSide | None
    """None: they are off."""
    names: NamesSide | None
    """None: this node answers none."""
    begins_anew: asyncio.Event


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
    ) -> None:
        """Raises: LimpetError."""
        if segments := settings.pods.segments:
            raise ConfigError(
                f"segments = {[str(each) for each in segments]}: this node has joined a "
                "cluster, which grants its segments (take the key out of the agent's configuration)"
            )
        self._connected = False
        self._told: deque[Event | News] = deque()
        folder = identity.folder
        self.membership = Membership(
            identity, SnapshotFile(folder / "snapshot.log", own_uid=identity.uid), boot_id=boot_id()
        )
        for problem in self.membership.replica.problems:
            _log.error("of what this node knew, something is lost", problem=problem)
        self.courier = PeerSocket(
            identity,
            port=settings.peers.port,
            is_member=self.membership.is_member,
            is_removed=self.membership.tombstone_of,
        )
        self.peer_parts = PeerParts(
            loop,
            self.membership,
            settings.peers,
            TunnelSetup(settings.tunnel, settings.folders.run_dir, settings.pods.bridge),
            route=route,
            vtep_path=folder / VTEP_FILE,
            bridges=lambda: node_part.want.bridges,
            before_sysctl=before_sysctl,
        )
        self.probing = Prober(
            self.membership, self.courier, path_file=folder / "paths.json", tell=self.tell
        )
        self.probing.shut_out = lambda: self.peer_parts.peers.shut_out
        self.peer_parts.peers.paths = self.probing.paths
        self.exchange = Exchange(self.membership, self.courier)
        self.peer_parts.watch.inner = self.exchange.inner
        self.nat_traversal = NatTraversal(
            self.membership, self.courier, settings, self.peer_parts.tunnels, self.tell
        )
        self.pods = PodReports(ledgers, folder / "reports.json")
        self.session = Session(
            self.membership,
            ControllerLink(identity),
            pods=self.pods,
            segment_demand=partial(_wanted_versions, self.membership, ledgers, node_part),
            random=random.random,
            elsewhere=PUBLISHED_THERE if settings.source.source == "kubernetes" else (),
        )
        choice = _choice(settings, self.membership)
        services = _services(self, settings, choice, loop, node_part, ledgers)
        self._kubernetes = _Kubernetes(
            _api_server(settings.source, self.membership, self.session),
            choice,
            services,
            _names(settings, services, self.membership, self.probing),
            asyncio.Event(),
        )
        self.node = NodeInCluster(
            self.membership,
            settings,
            node_part,
            self.peer_parts.peers.view.segments.get(identity.uid, ()),
        )
        self.membership.subscribe(self.tell)

    @property
    def api_server(self) -> SecondRoad | None:
        """None: the controller tells what there is."""
        return self._kubernetes.api_server

    @property
    def services(self) -> ServiceSide | None:
        """None: they are off on this node."""
        return self._kubernetes.services

    @property
    def _names(self) -> NamesSide | None:
        return self._kubernetes.names

    @property
    def services_choice(self) -> Choice | None:
        """Whether this node serves Services, and why; None: nothing tells it of them."""
        return self._kubernetes.choice

    @property
    def begins_anew(self) -> asyncio.Event:
        """Set when the agent has to be another than it was begun as."""
        return self._kubernetes.begins_anew

    def look_at_choice(self) -> None:
        """What the cluster says, or what others have put into the kernel, may be another."""
        choice = self.services_choice
        if choice is not None and not self.begins_anew.is_set():
            with faults.noted("looking for kube-proxy"):
                if choice.look():
                    _log.info(
                        "who serves Services here changes: the agent begins anew",
                        was=choice.taken.why,
                        kube_proxy=choice.kube_proxy,
                    )
                    self.begins_anew.set()

    def begin(self) -> None:
        """The first round. Raises: LimpetError."""
        self.peer_parts.start()
        if self.services is not None:
            self.services.begin()
        if self._names is not None:
            self._names.begin()

    async def connect(self) -> None:
        """Raises: LimpetError when the node's port is taken."""
        self.courier.start()
        self._connected = True
        self.probing.own.ipv6_last = not self.peer_parts.tunnels.wireguard.kernel.has_kernels
        self._set_links(self.peer_parts.own.links)
        self._tell_tunnelled()
        self.exchange.start()
        self.nat_traversal.start()
        self.probing.start()
        self.session.start()
        if self.api_server is not None:
            self.api_server.start()
        for each in (self.services, self._names):
            if each is not None:
                each.start()
        if self.services is None:
            self.membership.announce_gone(())  # nobody here looks after what was said of pods

    async def close(self) -> None:
        async with contextlib.AsyncExitStack() as parts:  # from the last to the first
            parts.callback(self.membership.close)
            parts.callback(self.peer_parts.close)
            for name, each in (("services", self.services), ("names", self._names)):
                if each is not None:
                    parts.callback(each.close)
                    parts.push_async_callback(_end, each.stop, name)
            if self._connected:
                parts.callback(self.courier.stop)
            if self.api_server is not None:
                parts.push_async_callback(_end, self.api_server.stop, "api server")
            for part in (self.exchange, self.probing, self.nat_traversal, self.session):
                parts.push_async_callback(_end, part.stop, type(part).__name__.lower())

    def tell(self, event: Event | News) -> None:
        """Everybody has heard an event before the next is passed on: also when a hearer tells it.

        Nothing that a hearer does ends who tells it.
        """
        self._told.append(event)
        if len(self._told) > 1:  # the call below, further up, passes it on
            return
        while self._told:
            with faults.noted(type(self._told[0]).__name__):
                self._pass_on(self._told[0])
            self._told.popleft()

    def _pass_on(self, event: Event | News) -> None:
        """Who hears what, in which order."""
        peer_parts, probing, nat_traversal = self.peer_parts, self.probing, self.nat_traversal
        match event:
            case News():  # Exchange, Prober, Session and what makes relays hear it themselves
                self.node.hear(event)
                peer_parts.hear(event)
                nat_traversal.role.hear()
                self._look_at_services()
                if event.network:
                    self.look_at_choice()
            case PodsChanged():
                self.pods.changed()
                self.session.wake()
                if self.services is not None:
                    self.services.pods_changed()
            # The datapath
            case LinksChanged(links):
                self.node.set_links(links)
                if self._connected:
                    self._set_links(links)
                    self.session.network_changed()
                    for road in (self.api_server, self.services, self._names):
                        if road is not None:
                            road.network_changed()
            case SegmentsChanged(segments):
                self.node.set_segments(segments)
                self._look_at_services()
            case BridgeMade():
                peer_parts.look_at_filter()
            case DamageSuspected():  # the parts of the loop look by themselves
                nat_traversal.look()
            case ActivePeersChanged(uids):
                probing.set_active(uids)
            case PeerUnanswered(uid, endpoint):
                nat_traversal.handshake_reset.ask(uid, endpoint)
            case ServingNodesChanged(names):
                if self.services is not None:
                    self.services.watched.put(names)
            # Paths
            case PathsChanged():
                peer_parts.peers.set_paths(probing.paths)
                self._tell_tunnelled()
                self._look_at_services()
            case ReachChanged():
                self._look_at_services()
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

    def _look_at_services(self) -> None:
        for each in (self.services, self._names):  # names are told what Services have found
            if each is not None:
                each.look_around()

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


def _api_server(
    settings: SourceSettings, membership: Membership, session: Session
) -> SecondRoad | None:
    if settings.source != "kubernetes":
        return None
    # Only here: a node that hears its controller needs no client of an API server in memory.
    from limpet.cloud.api_server import ApiServerSource, find_api_server

    return ApiServerSource(
        membership,
        partial(find_api_server, settings),
        random=random.random,
        hear_controllers=session.hear_controllers,
        say_hello=session.network_changed,
    )


def _choice(settings: Settings, membership: Membership) -> Choice | None:
    if settings.source.source != "kubernetes":
        return None
    # Only here: other nodes have nothing to choose.
    from limpet.datapath.services.kube_proxy import find_kube_proxy
    from limpet.services.mode import Choice

    def of_cluster() -> str:
        network = membership.network
        return "off" if network is None else network.services.value

    return Choice(settings.services.mode, of_cluster, find_kube_proxy)


def _services(
    cluster: ClusterSide,
    settings: Settings,
    choice: Choice | None,
    loop: Loop,
    node_part: NodePart,
    ledgers: Ledgers,
) -> ServiceSide | None:
    is_on = choice is not None and choice.taken.on
    if not is_on and not (settings.folders.cluster_dir / SERVICES_FILE).exists():
        return None
    # Only here: other nodes need neither a client of an API server in memory nor all Services.
    from limpet.agent.services import ServiceSide, give_back
    from limpet.agent.serving.sockets import AtSocket

    if not is_on:
        give_back(settings.folders, keep=settings.dns.dns == "on")
        return None
    return ServiceSide(
        settings,
        loop=loop,
        membership=cluster.membership,
        node=lambda: node_part.node,
        probing=cluster.probing,
        attached=ledgers.attached,
        random=random.random,
        sockets=AtSocket(settings.services, settings.folders.run_dir, node_part.pod_namespaces),
    )


def _names(
    settings: Settings, services: ServiceSide | None, membership: Membership, probing: Prober
) -> NamesSide | None:
    if settings.dns.dns != "on" or settings.source.source != "kubernetes":
        return None
    # Only here: the process that answers names is for few nodes to have.
    from limpet.agent.names.here import here_of
    from limpet.agent.names.side import NamesSide, source_of_names

    run_dir = settings.folders.run_dir
    if services is not None:
        return NamesSide(run_dir, lambda: services.part.here)
    source = source_of_names(settings.folders, settings.source, random.random)
    return NamesSide(run_dir, lambda: here_of(membership, probing), source)


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
