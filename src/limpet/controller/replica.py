"""One of several controllers of a cluster in Kubernetes: it follows until it leads, and leads until
it does not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec
import structlog

from limpet.base.addresses import UnderlayLink
from limpet.base.decoding import decode_json
from limpet.base.errors import KernelError, StorageError
from limpet.base.process.lifetime import notify_service_manager
from limpet.controller.admin.rights import Rights
from limpet.controller.communities.node_labels import NodeLabels
from limpet.controller.figures.metrics import Metrics
from limpet.controller.leader.election import DURATION_S
from limpet.controller.leader.elector import Elector, own_identity
from limpet.controller.leader.follower_api import follower_application, health_application
from limpet.controller.orchestrator.account_check import AccountCheck
from limpet.controller.orchestrator.conditions import ConditionFacts
from limpet.controller.orchestrator.events import Events, NodeEvents
from limpet.controller.orchestrator.flannel.beside import FlannelBeside
from limpet.controller.orchestrator.node_keeper.keeper import NodeKeeper
from limpet.controller.orchestrator.nodes import Nodes
from limpet.controller.orchestrator.object_status import ObjectStatus
from limpet.controller.orchestrator.pods import Pods
from limpet.controller.orchestrator.reached_at import ReachTeller
from limpet.controller.picture.listed import ListedServices
from limpet.controller.reach import read_links
from limpet.controller.registry.reading import LOST_SECRETS
from limpet.controller.registry.records import AUTHORITY, AuthorityRecord
from limpet.controller.serving import serve, serve_following, serve_monitors
from limpet.controller.settings import ControllerSettings
from limpet.controller.state.cluster import Cluster
from limpet.controller.store.kubernetes.store import KubernetesStore
from limpet.kubernetes.access.kubeconfig import find_access
from limpet.kubernetes.client import Client

_log = structlog.get_logger("replica")
_AGAIN_S = 2.0
"""After the API server has failed it."""
_FAILURES = 3
"""In a row, of one that leads and does not get so far that it serves anybody."""


@dataclass(slots=True)
class LeaderMemory:
    """What this process has seen while it led, for when it leads again."""

    revision: int = 0


class _Follower(Protocol):
    async def run(self) -> None:
        """Until it is cancelled."""


async def run_replica(settings: ControllerSettings) -> None:
    """Until it is cancelled. Raises: LimpetError for what a person has to put right."""
    place = settings.place
    async with contextlib.AsyncExitStack() as undo:
        client = Client(find_access(place.kubeconfig, server=place.server or ""))
        undo.callback(client.close)
        electing = Client(client.access)  # of its own: the Lease waits behind no list
        undo.callback(electing.close)
        elector = Elector(electing, place.namespace, own_identity())
        store = KubernetesStore(client, place.namespace, may_write=elector.check)
        undo.push_async_callback(store.close)
        nodes = Nodes(client)
        undo.callback(asyncio.create_task(nodes.run()).cancel)
        elector.start()
        undo.push_async_callback(elector.stop)
        notify_service_manager("READY=1")
        known, say = LeaderMemory(), _each_once()
        failures = 0
        while True:
            try:
                if elector.leads:
                    await _lead(settings, client, nodes, store, elector, known)
                else:
                    await _follow(settings, store, elector, say)
                failures = 0
            except StorageError as error:
                say(error)
                failures = failures + 1 if elector.leads else 0
                if failures < _FAILURES:
                    await asyncio.sleep(_AGAIN_S)
                    continue
                # Another may be able to, and can't begin while this one renews the Lease.
                _log.warning("does not begin to lead, and lets another", after=failures)
                failures = 0
                await elector.stop()
                elector.start(in_s=DURATION_S)


def _each_once() -> Callable[[StorageError], None]:
    """Says why nodes are not served; the same again only after another."""
    said = ""

    def say(error: StorageError) -> None:
        nonlocal said
        if str(error) != said:
            _log.error("not served", error=str(error), again_s=_AGAIN_S)
        said = str(error)

    return say


async def _lead(
    settings: ControllerSettings,
    client: Client,
    nodes: Nodes,
    store: KubernetesStore,
    elector: Elector,
    known: LeaderMemory,
) -> None:
    """Raises: StorageError, ConfigError."""
    async with contextlib.AsyncExitStack() as undo:
        events = Events(client)
        undo.callback(asyncio.create_task(events.run()).cancel)
        reviews = Client(client.access)  # of its own: whoever asks does not hold up the Lease
        undo.callback(reviews.close)
        listing = Client(client.access)
        undo.callback(listing.close)
        services = ListedServices(listing)
        undo.callback(services.stop)
        tell = NodeEvents(events).tell
        cluster = Cluster(
            store,
            settings,
            tell,
            nodes=nodes,
            known_revision=known.revision,
            check_account=AccountCheck(reviews, settings.place.namespace),
        )
        async with contextlib.AsyncExitStack() as beginning:
            await serve_monitors(health_application(elector, lambda: False), settings, beginning)
            await cluster.start()
        undo.push_async_callback(cluster.stop)
        undo.callback(lambda: setattr(known, "revision", cluster.known_revision))
        following = asyncio.create_task(cluster.follow_others())
        undo.callback(following.cancel)
        pods = Pods(client, cluster, events)
        keeper = NodeKeeper(nodes, cluster, tell, settings.nodes.node_grace_s)
        status = ObjectStatus(
            client,
            cluster,
            events,
            lambda: ConditionFacts(
                dict(cluster.community_problems),
                cluster.unreadable_grants,
                pods.held_twice,
                keeper.cidr_problems,
            ),
        )
        followers: list[_Follower] = [
            pods,
            status,
            NodeLabels(nodes, cluster),
            keeper,
        ]
        if settings.place.flannel:
            followers.append(FlannelBeside(client, nodes, cluster, events))
        for each in followers:
            undo.callback(asyncio.create_task(each.run()).cancel)
        metrics = Metrics()
        metrics.watch("addresses_held_twice", lambda: pods.count)
        metrics.watch("events_dropped", lambda: events.dropped)
        listening = await serve(settings, cluster, undo, Rights(reviews).check, metrics, services)
        reach = ReachTeller(client, cluster, settings, _links())
        undo.callback(asyncio.create_task(reach.run()).cancel)
        _log.info("ready", listen=",".join(listening), leads=True)
        await elector.turned(leads=False)


def _links() -> tuple[UnderlayLink, ...]:
    """Links of this machine, as far as they can be read."""
    try:
        return read_links()
    except KernelError as error:
        _log.warning("addresses of this machine are not known", error=str(error))
        return ()


async def _follow(
    settings: ControllerSettings,
    store: KubernetesStore,
    elector: Elector,
    say: Callable[[StorageError], None],
) -> None:
    """Until it leads. Raises: StorageError.

    Who monitors it is answered also while the API server is away: a probe that ended the process
    would end what it remembers of when it led, too (`LeaderMemory`).
    """
    authority: AuthorityRecord | None = None
    async with contextlib.AsyncExitStack() as undo:
        health = health_application(elector, lambda: authority is not None)
        await serve_monitors(health, settings, undo)
        while not elector.leads:
            try:
                authority = await _authority(store)
            except StorageError as error:
                say(error)
            if authority is not None:
                break
            # While no cluster is made, who leads makes it, and then this one answers nodes, too.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_AGAIN_S):
                    await elector.turned(leads=True)
        if authority is None:
            return
        api = follower_application(elector, authority.ca_certificate)
        await serve_following(settings, authority, api, undo)
        _log.info("follows", leader=elector.leader)
        await elector.turned(leads=True)


async def _authority(store: KubernetesStore) -> AuthorityRecord | None:
    """None: no cluster is made yet. Raises: StorageError."""
    item = await store.get(AUTHORITY, AUTHORITY)
    if item is None:
        return None
    try:
        return decode_json(item.value, AuthorityRecord)
    except msgspec.MsgspecError as error:
        raise StorageError(
            "read", "the cluster's secrets", str(error), hint=LOST_SECRETS
        ) from error
