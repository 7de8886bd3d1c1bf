"""What a node of a Kubernetes cluster has beside its cluster's side: an API server that it hears,
Services that it serves, names that it helps to answer. Nodes elsewhere have none of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import structlog

from limpet.agent.serving.taken_back import TakenBack
from limpet.agent.settings import Settings
from limpet.base import faults
from limpet.base.errors import LimpetError
from limpet.base.settings import SourceSettings
from limpet.cloud.second_road.state import SecondRoad
from limpet.cloud.session import Session
from limpet.cluster.membership import Membership, News
from limpet.cni.ledgers import Ledgers
from limpet.datapath.loop import Loop
from limpet.datapath.node.part import NodePart
from limpet.paths.prober import Prober
from limpet.services.mode import ServicesDecision

if TYPE_CHECKING:  # in memory only where Services are on, and names are answered
    from limpet.agent.names.side import NamesSide
    from limpet.agent.services import ServiceSide

_log = structlog.get_logger("cluster")

SERVICES_FILE = "services.jsonl"
"""As `services.kept` has it, which is in memory only where Services are on."""


class KubernetesSide:
    """Runs on the event loop."""

    def __init__(
        self,
        settings: Settings,
        membership: Membership,
        session: Session,
        probing: Prober,
        *,
        loop: Loop,
        node_part: NodePart,
        ledgers: Ledgers,
        random: Callable[[], float],
    ) -> None:
        """Raises: LimpetError."""
        self.choice = _choice(settings, membership)
        """Whether this node serves Services, and why; None: nothing tells it of them."""
        self._node_part = node_part
        self._half_closed = ""
        """Why connections that are half closed are cut early; empty: they are not."""
        self.restart_wanted = asyncio.Event()
        """Set when the agent has to be another than it was begun as."""
        self.services: ServiceSide | None = None
        """None: they are off on this node."""
        if _is_to_serve(self.choice, settings):
            # Only here: other nodes need neither a client of an API server in memory nor Services.
            from limpet.agent.services import ServiceSide
            from limpet.agent.serving.sockets import AtSocket

            self.services = ServiceSide(
                settings,
                loop=loop,
                membership=membership,
                node=lambda: node_part.node,
                probing=probing,
                attached=ledgers.attached,
                random=random,
                sockets=AtSocket(
                    settings.services, settings.folders.run_dir, node_part.pod_namespaces
                ),
            )
        self.taken_back = TakenBack(
            membership, of_gone=self.services is None, of_labels=settings.policies.mode == "on"
        )
        self.api_server = _api_server(settings.source, membership, session, random)
        """None: the controller tells what there is."""
        self._names = _names(settings, self.services, membership, probing, random)

    def begin(self) -> None:
        for each in self._serving():
            each.begin()
        self._look_at_half_closed()

    def start(self) -> None:
        if self.api_server is not None:
            self.api_server.start()
        for each in self._serving():
            each.start()
        self.taken_back.look()

    def stops(self) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
        """What is to be awaited when the agent ends, by name."""
        for each in self._serving():
            yield type(each).__name__, each.stop
        if self.api_server is not None:
            yield "api server", self.api_server.stop

    def close(self) -> None:
        for each in self._serving():
            each.close()

    # What happens

    def network_changed(self) -> None:
        if self.api_server is not None:
            self.api_server.network_changed()
        for each in self._serving():
            each.network_changed()

    def pods_changed(self) -> None:
        if self.services is not None:
            self.services.pods_changed()

    def hear(self, news: News) -> None:
        self.look_around()
        if news.network:
            self.look_at_choice()

    def look_around(self) -> None:
        """Nodes, paths or this node's segments are others than before."""
        for each in self._serving():
            each.look_around()

    def look_at_choice(self) -> None:
        """What the cluster says, or what others have put into the kernel, may be another."""
        self._look_at_half_closed()
        if self.choice is None or self.restart_wanted.is_set():
            return
        with faults.noted("looking for kube-proxy"):
            if self.choice.look():
                _log.info(
                    "who serves Services here changes: the agent begins anew",
                    was=self.choice.taken.why,
                    kube_proxy=self.choice.kube_proxy,
                )
                self.restart_wanted.set()

    def _look_at_half_closed(self) -> None:
        """The setting is there once something tracks connections: after a boot Services' table."""
        if self.services is not None:
            trouble = _keep_half_closed(self._node_part)
            if trouble and trouble != self._half_closed:
                _log.warning("half-closed connections to Services are cut early", error=trouble)
            self._half_closed = trouble

    def _serving(self) -> Iterator[ServiceSide | NamesSide]:
        """In this order: names are told what Services have found."""
        if self.services is not None:
            yield self.services
        if self._names is not None:
            yield self._names


def _api_server(
    settings: SourceSettings, membership: Membership, session: Session, random: Callable[[], float]
) -> SecondRoad | None:
    if settings.source != "kubernetes":
        return None
    # Only here: a node that hears its controller needs no client of an API server in memory.
    from limpet.cloud.second_road.api_server import ApiServerSource, find_api_server

    return ApiServerSource(
        membership,
        partial(find_api_server, settings),
        random=random,
        hear_controllers=session.hear_controllers,
        say_hello=session.network_changed,
    )


def _choice(settings: Settings, membership: Membership) -> ServicesDecision | None:
    if settings.source.source != "kubernetes":
        return None
    # Only here: other nodes have nothing to choose.
    from limpet.datapath.services.kube_proxy import find_kube_proxy

    def of_cluster() -> str:
        network = membership.network
        return "off" if network is None else network.services.value

    return ServicesDecision(settings.services.mode, of_cluster, find_kube_proxy)


def _keep_half_closed(node_part: NodePart) -> str:
    """Why it cannot be; empty: it is."""
    # Loaded where Services are served alone.
    from limpet.datapath.services.kube_proxy import HALF_CLOSED, HALF_CLOSED_S

    try:
        node_part.raise_sysctl(HALF_CLOSED, HALF_CLOSED_S)
    except LimpetError as error:
        return str(error)
    return ""


def _is_to_serve(choice: ServicesDecision | None, settings: Settings) -> bool:
    """If not, and it has served them before, what it did of them is taken away."""
    if choice is not None and choice.taken.on:
        return True
    if (settings.folders.cluster_dir / SERVICES_FILE).exists():
        # Only now: it is once after they were on.
        from limpet.agent.services import give_back

        give_back(settings.folders, keep=settings.dns.dns == "on")
    return False


def _names(
    settings: Settings,
    services: ServiceSide | None,
    membership: Membership,
    probing: Prober,
    random: Callable[[], float],
) -> NamesSide | None:
    if settings.dns.dns != "on" or settings.source.source != "kubernetes":
        return None
    # Only here: the process that answers names is for few nodes to have.
    from limpet.agent.names.here import here_of
    from limpet.agent.names.side import NamesSide, source_of_names

    run_dir = settings.folders.run_dir
    if services is not None:
        return NamesSide(run_dir, lambda: services.part.here)
    source = source_of_names(settings.folders, settings.source, random)
    return NamesSide(run_dir, lambda: here_of(membership, probing), source)
