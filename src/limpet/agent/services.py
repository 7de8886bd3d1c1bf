"""Services on this node: what is heard of them, kept and put into the kernel, wired together.

In memory only where Services are on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from ipaddress import ip_address

import structlog

from limpet.agent.names.here import here_of
from limpet.agent.serving.gone_pods import GonePods
from limpet.agent.serving.health import ServiceHealth
from limpet.agent.serving.sockets import AtSocket
from limpet.agent.serving.surroundings import ServiceSurroundings
from limpet.agent.settings import Settings
from limpet.base.disk import remove_durably
from limpet.base.errors import StorageError
from limpet.base.node_state import NodeState
from limpet.base.settings import Folders
from limpet.cloud.second_road.api_server import find_api_server
from limpet.cloud.workloads.change_journal import ChangeJournal
from limpet.cloud.workloads.service_source import ServiceSource, load_catalog
from limpet.cluster.membership import Membership
from limpet.cluster.replica import Change
from limpet.datapath.event import PlaceChanged
from limpet.datapath.loop import Loop
from limpet.datapath.services.apply import ServicesKernel, count_connections
from limpet.datapath.services.elements import NUMBERS, frontends
from limpet.datapath.services.kube_proxy import find_kube_proxy
from limpet.datapath.services.part import ServicesContext, ServicesPart
from limpet.datapath.services.sockets.attached_apply import detach_programs
from limpet.datapath.services.sockets.count import FlowEnd, SocketCounter
from limpet.datapath.services.sockets.pins_apply import pins_of, remove_pins
from limpet.paths.prober import Prober
from limpet.services.kept import JOURNAL_FILE, KEPT_FILE
from limpet.services.own_endpoints import OwnEndpoints
from limpet.services.rotation import Here
from limpet.services.values import Service, ServiceName

_log = structlog.get_logger("services")


class ServiceSide:
    """Runs on the event loop. From `begin` on what is on the disk is served."""

    def __init__(
        self,
        settings: Settings,
        *,
        loop: Loop,
        membership: Membership,
        node: Callable[[], NodeState],
        probing: Prober,
        attached: Callable[[], Iterable[str]],
        random: Callable[[], float],
        sockets: AtSocket,
    ) -> None:
        """`node`: this node as it is now. `attached`: addresses of its pods.

        Raises: LimpetError.
        """
        path = settings.folders.cluster_dir / KEPT_FILE
        self.catalog = load_catalog(path)
        journal = ChangeJournal(settings.folders.run_dir / JOURNAL_FILE)
        journal.replay(self.catalog)
        self._loop = loop
        self._membership = membership
        self._probing = probing
        self._is_even = not settings.services.near_first
        self._surroundings = ServiceSurroundings(
            membership,
            node,
            probing,
            node_ports=settings.services.node_port_addresses,
            names_at=settings.dns.listen,
        )
        self._own_endpoints = OwnEndpoints(self.catalog)
        self._gone = GonePods(
            membership,
            endpoints=lambda: self._own_endpoints.of(self._name()),
            attached=attached,
            changed=lambda: loop.tell(PlaceChanged()),
        )
        asked = ServicesContext(
            self._surroundings.now, self._here, sockets.forgotten, self._part_taken
        )
        self.part = ServicesPart(loop, self.catalog, asked, sockets.side)
        self.health = ServiceHealth(self.catalog, lambda: self.part.here)
        self.sockets = sockets
        self.source = ServiceSource(
            self.catalog,
            path,
            partial(find_api_server, settings.source),
            tell=self._heard,
            random=random,
            journal=journal,
        )

    def begin(self) -> None:
        self._gone.begin()
        self.part.look()
        self._loop.add(self.part)
        self._loop.run("start", self.part)
        self.sockets.begin()
        if found := find_kube_proxy():
            _log.warning(
                "kube-proxy has rules here, too: what this node does is the first of both",
                found=found,
                what_to_do='end kube-proxy on this node, or set services = "off"',
            )

    def start(self) -> None:
        self.source.start()
        self._gone.look_soon()
        self.health.changed(each.key for each in self.catalog)
        self.sockets.start(self._pins_taken)

    async def stop(self) -> None:
        self.sockets.stop()
        await self.source.stop()
        await self.health.stop()

    def network_changed(self) -> None:
        self.source.network_changed()
        self.look_around()

    def close(self) -> None:
        """What is in the kernel stays."""
        self._gone.close()
        self.part.close()

    @property
    def failures(self) -> list[str]:
        """Failures of the last round, and Services that are lost, in words."""
        failures = list(self._loop.account(self.part).failures)
        if self.catalog.damage and self.catalog.is_part_served:
            failures.append(
                f"know all Services: {self.catalog.damage} (what could be read of {KEPT_FILE} is "
                "served until the API server has told all)"
            )
        return failures

    async def connections(self, service: Service) -> Mapping[tuple[str, str, int], int]:
        """By protocol, address and port of the endpoint: those that the kernel tracks now, and
        those that were begun at the socket.

        Raises: LimpetError.
        """
        asked = {
            (NUMBERS[port.protocol], frontend.address, frontend.port)
            for port in service.ports
            for frontend in frontends(service, port)
        }
        names = {number: name for name, number in NUMBERS.items()}
        counter = self.sockets.side.counter() if self.sockets.side is not None else None
        found = await asyncio.to_thread(_count, asked, counter)
        return {
            (names[number], str(ip_address(address)), port): count
            for (number, address, port), count in found.items()
        }

    def hear(self, change: Change) -> None:
        """Documents of any kind are others than before."""
        self._gone.hear(change)

    def look_around(self) -> None:
        """The cluster, the paths, who answers, or this node's segments are others than before."""
        self._surroundings.look()
        self.part.look_around("nodes or this node's pods changed")

    def _pins_taken(self) -> None:
        self._loop.run("pins of eBPF programs were taken away", self.part)

    def pods_changed(self) -> None:
        """A pod came or went."""
        self._gone.look_soon()
        if self.sockets.side is not None:
            self.part.look_around("pods came or went")
            self.sockets.follow()

    def _heard(self, names: Iterable[ServiceName], why: str) -> None:
        names = tuple(names)
        self._own_endpoints.changed(names)
        self.health.changed(names)
        self._gone.look_soon()
        self.part.changed(names, why)
        if self._zone() != self.part.here.zone:
            self._loop.tell(PlaceChanged())

    def _part_taken(self) -> None:
        """Or the next agent would let stand what this one has made of it."""
        self.source.keep_part()

    # What the part asks

    def _name(self) -> str:
        grant = self._membership.grant
        return grant.name if grant is not None else self._membership.identity.name

    def _here(self) -> Here:
        here = here_of(self._membership, self._probing)
        is_even, gone = self._is_even, self._gone.addresses
        return replace(here, zone=self._zone(), gone=gone, is_even=is_even)

    def _zone(self) -> str:
        """As the node's label says, which kube-proxy goes by, too; else as its endpoints do, whose
        zone is a copy, and whoever may write an EndpointSlice may write any."""
        grant = self._membership.grant
        return (grant.zone if grant is not None else "") or self.catalog.zone_of(self._name())


def give_back(folders: Folders, *, keep: bool) -> None:
    """Services are off, and were on: what this node did of them goes. `keep`: what is known of them
    stays on the disk, for names. Raises: LimpetError."""
    with closing(ServicesKernel()) as kernel:
        pins = remove_pins(pins_of(folders.run_dir))
        if any((kernel.remove(), detach_programs(), pins)):
            _log.info("Services are off: their rules were removed")
    if not keep:
        (folders.run_dir / JOURNAL_FILE).unlink(missing_ok=True)
        try:
            remove_durably(folders.cluster_dir / KEPT_FILE)
        except StorageError as error:  # a read-only disk: tried again at the next start
            _log.warning("what was kept of Services is still there", error=str(error))


def _count(asked: Collection[FlowEnd], counter: SocketCounter | None) -> Mapping[FlowEnd, int]:
    found = Counter(count_connections(asked))
    if counter is not None:
        with closing(counter):
            found += counter.count(asked)
    return found
