"""The cluster as the API and a person see it: the registry, the reports, and the clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import structlog

from limpet.base import faults
from limpet.base.acceptor.places import Source
from limpet.base.errors import LimpetError, StorageError
from limpet.cluster.api import (
    Code,
    JoinRequest,
)
from limpet.cluster.documents import Key
from limpet.cluster.keys import is_uid
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import (
    DefaultCommunity,
    Encryption,
    Network,
    ServicesMode,
    TunnelBackend,
)
from limpet.controller.api.feed import DocumentFeed
from limpet.controller.communities import communities
from limpet.controller.communities.namesakes import settle_namesakes
from limpet.controller.node_objects.node import NO_NODES, KnownNodes
from limpet.controller.orchestrator.node_keeper.segments import give_back
from limpet.controller.picture.reported import ReportedPaths
from limpet.controller.picture.timeline import ClusterTimeline
from limpet.controller.registry import rotation
from limpet.controller.registry.others import follow_others
from limpet.controller.registry.reading import LOST_SECRETS
from limpet.controller.registry.records import COMMUNITY, NODE, PRESENCE, SEGMENT, record_types
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.registry import Registry
from limpet.controller.registry.rotation import has_signing_key
from limpet.controller.registry.tables import Tables
from limpet.controller.settings import ControllerSettings, next_network
from limpet.controller.state import grants, happenings, nodes, recovery, tokens
from limpet.controller.state.authority import (
    create_cluster,
    new_key,
    remake_network,
)
from limpet.controller.state.happenings import Happening
from limpet.controller.state.reports import NodeReports
from limpet.controller.store.interface import Store

_log = structlog.get_logger("cluster")

T = TypeVar("T")


class Cluster:
    """Everything that may be asked of the controller."""

    def __init__(
        self,
        store: Store,
        settings: ControllerSettings,
        on_happening: Callable[[Happening], None] = lambda _: None,
        *,
        nodes: KnownNodes = NO_NODES,
        known_revision: int = 0,
        check_account: Callable[[JoinRequest, Source], Awaitable[None]] | None = None,
        timeline: ClusterTimeline | None = None,
    ) -> None:
        """`on_happening`: told what a person should hear of a node; it returns at once.

        `nodes`: of Kubernetes, as they are now. `known_revision`: that this process has seen
        before, so that a store that was put back is found out. `check_account`: returns when the
        node's name is that of the account whose token it shows, else raises RefusedError; None:
        nobody is let in by an account. `timeline`: None: it is kept in memory.
        """
        self.settings = settings
        self._on_happening = on_happening
        self.check_account = check_account
        self._store = store
        self._since = ""
        self._known_revision = known_revision
        self.community_problems: dict[str, str] = {}
        """Why one is not as its object in Kubernetes says."""
        source = settings.nodes.source(nodes)
        self._registry = Registry(store, settings.quarantine_s, source, self._set_up)
        self.reports = NodeReports(store)
        self.paths = ReportedPaths()
        self.timeline = timeline or ClusterTimeline(None)
        self.feed = DocumentFeed(store)

    async def start(self) -> None:
        """Makes the cluster when there is none. Raises: LimpetError."""
        self._since = await self._store.mark(list(record_types()))
        await self._registry.start()
        try:
            await self.change(lambda _: None)  # which writes what was set up
        except BaseException:
            await self._registry.stop()
            raise

    def is_member(self, uid: str) -> bool:
        """Whether the cluster has granted it something, and has not removed it."""
        return self._registry.is_member(uid)

    def name_of(self, uid: str) -> str:
        """Name of the node, removed or not; empty: none has ever had that uid."""
        return self._registry.name_of(uid)

    async def follow_others(self) -> None:
        """For ever: what nodes and people write to the store themselves is heard."""
        with faults.noted("declaring communities"):
            for name in await self.change(lambda tables: sorted(tables.communities)):
                await self._declare((COMMUNITY, name))  # it may have been written while nobody led
        await follow_others(self._store, self._registry, self._since, self._declare)

    async def _declare(self, key: Key) -> None:
        """A community is made as somebody has written it."""
        kind, name = key
        if kind != COMMUNITY:
            return
        try:
            changed = await self.change(lambda tables: communities.declare(tables, name))
        except LimpetError as error:
            self.community_problems[name] = str(error)
            _log.warning("a community is not as its object says", community=name, error=str(error))
        else:
            self.community_problems.pop(name, None)
            _log.info("read community", community=name, grants=changed)

    async def stop(self) -> None:
        await self._registry.stop()

    def _set_up(self, tables: Tables) -> None:
        if not tables.exists:
            if tables.has_grants or self._registry.unreadable:
                raise StorageError(
                    "read", "the cluster's secrets", "they are gone", hint=LOST_SECRETS
                )
            create_cluster(tables, self.settings.network)
            _log.info("made a cluster", cluster=self.settings.network.cluster)
            return
        had_state = tables.has_state
        if not had_state:
            recovery.remake_state(tables)
        if not tables.has_network:
            remake_network(tables, self.settings.network)
            _log.error("the network was taken away by hand: signed again, nodes show what is newer")
        self._take_stock(tables, had_state=had_state)
        if signed_again := rotation.finish_rotation(tables):
            _log.warning("a rotation of the cluster key was cut off: finished", count=signed_again)
        if not has_signing_key(tables):
            _log.error(
                "nodes know a later key than this controller has: restore a back-up of after the "
                "last `limpet controller rotate-key`"
            )
            return
        if put_back := nodes.bury_put_back(tables, time.time()):
            _log.error("grants of removed nodes were put back: removed again", uids=put_back)
        if buried := grants.finish_replacements(tables):
            _log.warning("a replacement was cut off: finished", count=buried)
        following = next_network(tables.network, self.settings)
        if following is not None:
            grants.put_network(tables, following)
            _log.info("changed the network", generation=tables.network.generation)
        tokens.forget_tokens(tables, time.time())

    def _take_stock(self, tables: Tables, *, had_state: bool) -> None:
        """What somebody took away while no controller ran, or put back from an old copy."""
        now_s, unreadable = time.time(), self._registry.unreadable
        for (kind, name), why in unreadable.items():
            _log.error("nobody can read it", kind=kind, name=name, why=why)
        segments = [name for kind, name in unreadable if kind == SEGMENT]
        missing = recovery.reclaim(tables, segments, now_s)
        if missing:
            _log.error("records of segments were taken away: made again", segments=missing)
        if given_back := give_back(tables):
            _log.warning("a replacement was cut off: what it took is given back", count=given_back)
        if resting := nodes.finish_removals(tables, now_s):
            _log.warning("a removal was cut off: what was held rests now", segments=resting)
        # A state that was written last, and was cut off, is behind what lies beside it.
        known = max(self.known_revision, tables.highest_revision)
        if not had_state or tables.state.revision < known:
            if tables.state.recovery is None:
                recovery.begin(tables, self.settings.restore_margin, now_s, paused=True)
            _log.error(
                "the store was put back or its state taken away: nothing is granted until every "
                "node has reported (limpet controller recovery)",
                revision=tables.state.revision,
                known=known,
            )

    async def write_again(self, kind: str, name: str) -> None:
        """What is known, over what lies in the store. Raises: LimpetError."""

        def make(tables: Tables) -> None:
            if (record := tables.record(kind, name)) is not None:
                tables.put(kind, name, record)

        await self.change(make)

    @property
    def store_trouble(self) -> str:
        """Why the last change could not be written; empty: it was."""
        return self._registry.trouble

    @property
    def known_revision(self) -> int:
        """The highest that this process has seen."""
        return max(self._known_revision, self._registry.highest_revision)

    @property
    def unreadable_grants(self) -> dict[str, str]:
        """Why, by uid."""
        unreadable = self._registry.unreadable
        return {name: why for (kind, name), why in unreadable.items() if kind == NODE}

    @property
    def turn(self) -> int:
        """Another number when the records are others than they were."""
        return self._registry.turn

    async def change(self, make: Callable[[Tables], T]) -> T:
        return await self._registry.change(make)

    def tell(self, happening: Happening | None) -> None:
        if happening is not None:
            self._on_happening(happening)
            self.timeline.tell(happening)

    # What a person asks

    async def remove(
        self, name_or_uid: str, only_if: Callable[[Tables], bool] = lambda _: True
    ) -> str:
        """The uid; empty: `only_if`, asked in the change that would remove the node, said no.

        Of a machine that holds segments and has no grant those rest.
        """
        begun: list[Grant] = []
        rested: list[str] = []
        granted = await self._granted_and_lost(name_or_uid)

        def make(tables: Tables) -> bool:
            known = tables.grants.get(begun[0].uid) if begun else None
            if known is None or not known.tombstone:  # else it was cut off, and is made again
                if not only_if(tables):
                    return False
                if nodes.rest_of_unknown(tables, name_or_uid, time.time(), granted):
                    rested.append(name_or_uid)
                elif name_or_uid in tables.grants or not rested:
                    begun[:] = [nodes.remove(tables, name_or_uid, time.time())]
            else:
                settle_namesakes(tables, known.name)
            recovery.end_if_all_reported(tables, self.settings.restore_margin)
            return True

        if not await self.change(make):
            return ""
        if not begun:
            _log.info("what a machine without a grant has held rests", uid=name_or_uid)
            return name_or_uid
        grant = begun[0]
        await self.reports.drop(grant.uid)
        self.paths.drop(grant.uid)
        _log.info("removed", node=grant.name, uid=grant.uid)
        self.tell(happenings.removed(grant))
        return grant.uid

    async def _granted_and_lost(self, uid: str) -> set[str]:
        """Uids of nodes whose grant is not known here: what is left of them in the store says that
        they had one. Of those with a report, `uid` alone."""
        unreadable = self._registry.unreadable
        found = {name for kind, name in unreadable if kind in (NODE, PRESENCE)}
        is_unknown = is_uid(uid) and not self.name_of(uid)
        if is_unknown and await self.reports.has(uid):
            found.add(uid)
        return found

    async def set_network(
        self,
        default_community: DefaultCommunity | None,
        encryption: Encryption | None,
        tunnel_backend: TunnelBackend | None,
        services: ServicesMode | None = None,
    ) -> Network:
        """What holds for all then; None leaves as it is.

        Raises: RefusedError where the configuration says otherwise.
        """
        fixed = self.settings.cluster.default_community
        if fixed is not None and default_community not in (None, fixed):
            raise RefusedError(
                Code.BAD_REQUEST,
                "set default_community: the controller's configuration says "
                f'default_community = "{fixed.value}", which counts at each start (change it there '
                "and restart the controller, or take the line out, restart, and ask again)",
            )

        def make(tables: Tables) -> Network:
            following = replace(
                tables.network,
                default_community=default_community or tables.network.default_community,
                encryption=encryption or tables.network.encryption,
                tunnel_backend=tunnel_backend or tables.network.tunnel_backend,
                services=services or tables.network.services,
            )
            if following != tables.network:
                grants.put_network(tables, following)
            return tables.network

        network = await self.change(make)
        _log.info(
            "set the network",
            default_community=network.default_community.value,
            encryption=network.encryption.value,
            tunnel_backend=network.tunnel_backend.value,
            services=network.services.value,
            generation=network.generation,
        )
        return network

    async def rotate_key(self, *, force: bool = False) -> int:
        key = await asyncio.to_thread(new_key)
        count = await self.change(lambda tables: rotation.rotate_key(tables, key, force=force))
        _log.info("rotated the cluster key", signed_again=count)
        return count
