"""The cluster as the API and a person see it: the registry, the reports, and the clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import structlog
from msgspec.structs import replace as replace_fields

from limpet.base.errors import LimpetError, StorageError
from limpet.cluster.api import (
    Code,
    HelloAnswer,
    HelloRequest,
    JoinAnswer,
    JoinBy,
    JoinRequest,
    PodReport,
)
from limpet.cluster.documents import Key, Sealed
from limpet.cluster.keys import public_key_of
from limpet.cluster.kinds import KINDS, NETWORK
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import (
    DefaultCommunity,
    Encryption,
    Network,
    ServicesMode,
    TunnelBackend,
)
from limpet.cluster.seal import read_sealed
from limpet.controller.api.feed import Feed
from limpet.controller.communities import communities
from limpet.controller.orchestrator.flannel_lease import kept_macs
from limpet.controller.orchestrator.node_objects import NO_NODES, KnownNodes
from limpet.controller.settings import ControllerSettings, next_network
from limpet.controller.state import grants, happenings, nodes, published, recovery
from limpet.controller.state.authority import (
    create_cluster,
    digest_of,
    new_key,
    node_certificate,
    remake_network,
)
from limpet.controller.state.happenings import Happening
from limpet.controller.state.others import follow_others
from limpet.controller.state.problems import problems_of
from limpet.controller.state.records import COMMUNITY, NODE, SEGMENT
from limpet.controller.state.recovery import absorb
from limpet.controller.state.refusal import RefusedError, WriteRate
from limpet.controller.state.registry import LOST_SECRETS, Registry
from limpet.controller.state.reports import Reports
from limpet.controller.state.tables import Tables
from limpet.controller.store.interface import Store

_log = structlog.get_logger("cluster")

_PUBLISHED_PER_S, _PUBLISHED = 5.0, 50
"""Documents of one node. It publishes when its links or its NAT have changed; each is written, and
sent to every other node."""
_REPORTS_PER_S, _REPORTS = 2.0, 64
"""Reports of one node's pods; each writes all of them. An agent sends one a second, and 32 in a row
where one cannot hold all."""

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
        check_account: Callable[[JoinRequest], Awaitable[None]] | None = None,
    ) -> None:
        """`on_happening`: told what a person should hear of a node; it returns at once.

        `nodes`: of Kubernetes, as they are now. `known_revision`: that this process has seen
        before, so that a store that was put back is found out. `check_account`: returns when the
        node's name is that of the account whose token it shows, else raises RefusedError; None:
        nobody is let in by an account.
        """
        self._settings = settings
        self._on_happening = on_happening
        self._check_account = check_account
        self._store = store
        self._since = ""
        self._known_revision = known_revision
        self.community_problems: dict[str, str] = {}
        """Why one is not as its object in Kubernetes says."""
        source = settings.nodes.source(nodes)
        self._registry = Registry(store, settings.quarantine_s, source)
        self.reports = Reports(store)
        self.feed = Feed(store)
        self._published = WriteRate("documents", per_s=_PUBLISHED_PER_S, burst=_PUBLISHED)
        self._pod_reports = WriteRate("reports of pods", per_s=_REPORTS_PER_S, burst=_REPORTS)

    async def start(self) -> None:
        """Makes the cluster when there is none. Raises: LimpetError."""
        self._since = (await self._store.listing(NETWORK.name)).version
        await self._registry.start()
        try:
            await self.change(self._set_up)
            self._registry.on_reloaded = self._set_up
        except BaseException:
            await self._registry.stop()
            raise

    async def follow_others(self) -> None:
        """For ever: what nodes and people write to the store themselves is heard."""
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
            create_cluster(tables, self._settings.network)
            _log.info("made a cluster", cluster=self._settings.network.cluster)
            return
        had_state = tables.has_state
        if not had_state:
            recovery.remake_state(tables)
        if not tables.has_network:
            remake_network(tables, self._settings.network)
            _log.error("the network was taken away by hand: signed again, nodes show what is newer")
        self._take_stock(tables, had_state=had_state)
        following = next_network(tables.network, self._settings)
        if following is not None:
            grants.put_network(tables, following)
            _log.info("changed the network", generation=tables.network.generation)
        grants.forget_tokens(tables, time.time())

    def _take_stock(self, tables: Tables, *, had_state: bool) -> None:
        """What somebody took away while no controller ran, or put back from an old copy."""
        now_s, unreadable = time.time(), self._registry.unreadable
        for (kind, name), why in unreadable.items():
            _log.error("nobody can read it", kind=kind, name=name, why=why)
        segments = [name for kind, name in unreadable if kind == SEGMENT]
        missing = recovery.reclaim(tables, segments, now_s)
        if missing:
            _log.error("records of segments were taken away: made again", segments=missing)
        if not had_state or tables.state.revision < self.known_revision:
            if tables.state.recovery is None:
                recovery.begin(tables, self._settings.restore_margin, now_s, paused=True)
            _log.error(
                "the store was put back or its state taken away: nothing is granted until every "
                "node has reported (limpet controller recovery)",
                revision=tables.state.revision,
                known=self.known_revision,
            )

    async def write_again(self, kind: str, name: str) -> None:
        """What is known, over what lies in the store. Raises: LimpetError."""

        def make(tables: Tables) -> None:
            if (record := tables.record(kind, name)) is not None:
                tables.put(kind, name, record)

        await self.change(make)

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

    # What nodes ask

    async def ask(self, uid: str, revision: int, make: Callable[[Tables], T]) -> T:
        """As `change`, for a node that is let in and knows nothing newer. Raises: RefusedError."""

        def checked(tables: Tables) -> T:
            grants.live_grant(tables, uid)
            _check_revision(tables, revision)
            return make(tables)

        return await self.change(checked)

    async def join(self, request: JoinRequest) -> JoinAnswer:
        by_account = request.by is JoinBy.ACCOUNT

        def make(tables: Tables) -> tuple[grants.Joined, Grant, JoinAnswer]:
            authority = tables.authority
            if by_account:
                joined = grants.join_by_account(tables, request, time.time())
            else:
                joined = grants.join(tables, request, digest_of(authority), time.time())
            answer = JoinAnswer(
                certificate=node_certificate(authority, request.public_key),
                ca=authority.ca_certificate,
                pinned_key=public_key_of(authority.cluster_keys[0]),
                documents=(*tables.first_documents, joined.sealed_grant),
                vtep_macs=_known_macs(tables, request.name),
            )
            return joined, tables.grants[joined.uid], answer

        try:
            if by_account:
                await self._review(request)
            joined, grant, answer = await self.change(make)
        except RefusedError as error:
            self._tell(happenings.join_refused(request.name, error))
            raise
        _log.info(
            "joined",
            node=request.name,
            uid=joined.uid,
            replaces=joined.replaces,
            by=request.by.value,
        )
        if joined.is_new:
            self._tell(happenings.joined(grant, joined.replaces))
        if not joined.replaces:
            return answer
        await self.reports.hand_over(joined.replaces, joined.uid)
        report = await self.reports.get(joined.uid)
        return answer if report is None else replace_fields(answer, pods=report.pods)

    async def _review(self, request: JoinRequest) -> None:
        """Raises: RefusedError."""
        grants.check_proof(request)  # costs nobody but us: nothing else is asked for a stranger
        if self._check_account is None:
            raise RefusedError(
                Code.BAD_TOKEN,
                f"join {request.name}: this controller is not in a Kubernetes cluster, so it knows "
                'no accounts (store = "kubernetes"; or join with a token: limpet token create)',
            )
        await self._check_account(request)

    async def hello(self, uid: str, request: HelloRequest) -> HelloAnswer:
        margin = self._settings.restore_margin

        def make(tables: Tables) -> HelloAnswer:
            now_s = time.time()
            for sealed in request.documents:
                shown = read_sealed(sealed, KINDS)
                if shown.name != uid and not KINDS[shown.kind].root:
                    raise RefusedError(
                        Code.NOT_YOURS,
                        f"node {uid} shows a {shown.kind} of {shown.name} as its own",
                    )
            _absorb(tables, request.documents, margin, now_s)
            grants.live_grant(tables, uid)
            _check_revision(tables, request.revision)
            _check_shown(tables, request.revision)
            lost = tables.state.recovery  # also where this report ends it: others may be away
            if recovery.note_report(tables, uid, margin):
                _log.info("every node has reported: granting as ever")
            return HelloAnswer(
                revision=tables.state.revision,
                documents=(*tables.first_documents, tables.nodes[uid].sealed),
                versions=tables.versions(uid),
                show_above=lost.above if lost else None,
            )

        answer = await self.change(make)
        report = await self.reports.get(uid)
        return answer if report is None else replace_fields(answer, pods_sequence=report.sequence)

    async def show(self, documents: tuple[Sealed, ...]) -> int:
        margin = self._settings.restore_margin
        return await self.change(lambda tables: _absorb(tables, documents, margin, time.time()))

    async def publish(self, uid: str, revision: int, sealed: Sealed) -> int:
        self._published.take(uid, time.monotonic())

        def make(tables: Tables) -> tuple[int, list[str], list[str]]:
            grant = tables.grants[uid]
            now_s = time.time()
            before = problems_of(tables, grant, now_s)
            version = published.publish(tables, uid, sealed, now_s)
            return version, before, problems_of(tables, grant, now_s)

        try:
            version, before, after = await self.ask(uid, revision, make)
        except RefusedError as error:
            if error.refused.code is Code.CLONED:
                _log.error("cloned identity", uid=uid, error=str(error))
                grant = await self.change(
                    lambda tables: published.note_clone(tables, uid, time.time())
                )
                self._tell(happenings.cloned(grant, error))
            raise
        for problem in after:
            if problem not in before:
                _log.warning("a node is not as it should be", uid=uid, problem=problem)
        return version

    async def request_segments(
        self, uid: str, revision: int, generation: int, versions: tuple[int, ...]
    ) -> Sealed:
        def make(tables: Tables) -> tuple[Sealed, Grant | None, Grant]:
            before = tables.grants[uid]
            sealed = grants.request_segments(tables, uid, generation, versions, time.time())
            return sealed, before, tables.grants[uid]

        try:
            sealed, before, grant = await self.ask(uid, revision, make)
        except RefusedError as error:
            known = await self.change(lambda tables: tables.grants.get(uid))
            if known is not None:
                self._tell(happenings.segments_refused(known, error))
            raise
        _log.info("granted segments", uid=uid)
        self._tell(happenings.segments_granted(before, grant))
        return sealed

    def _tell(self, happening: Happening | None) -> None:
        if happening is not None:
            self._on_happening(happening)

    async def put_pods(self, uid: str, revision: int, report: PodReport) -> int:
        """Raises: RefusedError, also where its hello was of before a recovery that waits for it."""

        def check(tables: Tables) -> None:
            if recovery.awaits(tables, uid):
                raise RefusedError(
                    Code.SAY_HELLO,
                    "take a report of pods: the controller was restored and must see the grant "
                    "that the node has first",
                )

        self._pod_reports.take(uid, time.monotonic())
        await self.ask(uid, revision, check)
        return await self.reports.put(uid, report, time.time())

    # What a person asks

    async def remove(self, name_or_uid: str) -> str:
        grant = await self.change(lambda tables: nodes.remove(tables, name_or_uid, time.time()))
        await self.reports.drop(grant.uid)
        _log.info("removed", node=grant.name, uid=grant.uid)
        self._tell(happenings.removed(grant))
        return grant.uid

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
        fixed = self._settings.cluster.default_community
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

    async def rotate_key(self) -> int:
        key = await asyncio.to_thread(new_key)
        count = await self.change(lambda tables: grants.rotate_key(tables, key))
        _log.info("rotated the cluster key", grants=count)
        return count


def _known_macs(tables: Tables, name: str) -> dict[int, str]:
    node = tables.source.nodes.objects.get(name)
    return kept_macs(node.flannel) if node is not None else {}


def _check_revision(tables: Tables, revision: int) -> None:
    """A node that claims to know more than we do shows it: a claim alone stops nobody else."""
    state = tables.state
    if revision > state.revision:
        above = state.recovery.above if state.recovery else state.revision
        raise RefusedError(
            Code.SHOW,
            f"the node knows revision {revision}, the controller {state.revision}: was it restored "
            "from an old back-up? It needs the grants that it does not know",
            above=above,
        )


def _check_shown(tables: Tables, revision: int) -> None:
    """A node shows what was lost of others before its report can end the recovery: they hold
    segments, and may be away."""
    lost = tables.state.recovery
    if lost is not None and lost.highest_lost < revision <= lost.below:
        raise RefusedError(
            Code.SHOW,
            f"the node knows revision {revision} of before the restore, and the controller those "
            f"up to {lost.highest_lost}: it needs the grants that it does not know",
            above=lost.above,
        )


def _absorb(tables: Tables, shown: tuple[Sealed, ...], margin: int, now_s: float) -> int:
    before = tables.state.recovery
    taken = absorb(tables, shown, margin, now_s)
    if before is None and tables.state.recovery is not None:
        _log.error("behind what nodes know: restored from an old back-up? nothing is granted")
    return taken
