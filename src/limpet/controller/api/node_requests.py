"""What nodes ask of the controller: each is told why not, where it is not done."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import structlog
from msgspec.structs import replace as replace_fields

from limpet.base.acceptor.places import Source
from limpet.base.errors import StorageError
from limpet.cluster.api import (
    Code,
    HelloAnswer,
    HelloRequest,
    JoinAnswer,
    JoinBy,
    JoinRequest,
    PodReport,
)
from limpet.cluster.documents import Document, Sealed
from limpet.cluster.keys import RevokedKeyError, public_key_of
from limpet.cluster.kinds import KINDS
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.seal import check, read_sealed
from limpet.controller.api.member_rates import MemberRates
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.rotation import is_former
from limpet.controller.registry.tables import Tables
from limpet.controller.state import grants, happenings, published, recovery, tokens
from limpet.controller.state.authority import (
    digest_of,
    node_certificate,
)
from limpet.controller.state.cluster import Cluster
from limpet.controller.state.problems import problems_of
from limpet.controller.state.recovery import absorb

_log = structlog.get_logger("cluster")

T = TypeVar("T")


class NodeRequests:
    """For the API; each call raises RefusedError, and StorageError while nothing can be written."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.rates = MemberRates()

    async def ask(self, uid: str, revision: int, make: Callable[[Tables], T]) -> T:
        """As `change`, for a node that is let in and knows nothing newer. Raises: RefusedError."""

        def checked(tables: Tables) -> T:
            grants.live_grant(tables, uid)
            _check_revision(tables, revision)
            return make(tables)

        return await self._cluster.change(checked)

    async def join(self, request: JoinRequest, source: Source) -> JoinAnswer:
        by_account = request.by is JoinBy.ACCOUNT

        def make(tables: Tables) -> tuple[grants.JoinedNode, Grant, JoinAnswer]:
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
                vtep_macs=dict(tables.grants[joined.uid].vtep_macs),
            )
            return joined, tables.grants[joined.uid], answer

        try:
            if by_account:
                await self._review(request, source)
            joined, grant, answer = await self._cluster.change(make)
        except RefusedError as error:
            self._cluster.tell(happenings.join_refused(request.name, error))
            raise
        _log.info(
            "joined",
            node=request.name,
            uid=joined.uid,
            replaces=joined.replaces,
            by=request.by.value,
        )
        if joined.is_new:
            self._cluster.tell(happenings.joined(grant, joined.replaces))
        if not joined.replaces:
            return answer
        await self._cluster.reports.hand_over(joined.replaces, joined.uid)
        pages = await self._cluster.reports.pages(joined.uid)
        return replace_fields(answer, pod_pages=pages)

    async def confirm(self, uid: str) -> None:
        """The node has what it was answered: its token lets in nobody else any more."""

        def make(tables: Tables) -> None:
            grants.live_grant(tables, uid)
            tokens.spend_token(tables, uid)

        await self._cluster.change(make)

    async def _review(self, request: JoinRequest, source: Source) -> None:
        """Raises: RefusedError."""
        tokens.check_proof(request)  # costs nobody but us: nothing else is asked for a stranger
        if self._cluster.check_account is None:
            raise RefusedError(
                Code.BAD_TOKEN,
                f"join {request.name}: this controller is not in a Kubernetes cluster, so it knows "
                'no accounts (store = "kubernetes"; or join with a token: limpet token create)',
            )
        await self._cluster.check_account(request, source)

    async def hello(self, uid: str, request: HelloRequest) -> HelloAnswer:
        margin = self._cluster.settings.restore_margin

        def make(tables: Tables) -> HelloAnswer | RefusedError:
            now_s = time.time()
            was_known = uid in tables.grants
            shown = [read_sealed(sealed, KINDS) for sealed in request.documents]
            for each in shown:
                if each.name != uid and not KINDS[each.kind].root:
                    raise RefusedError(
                        Code.NOT_YOURS,
                        f"node {uid} shows a {each.kind} of {each.name} as its own",
                    )
            _check_keys(tables, uid, shown)
            _absorb(tables, request.documents, margin, now_s)
            try:
                grants.live_grant(tables, uid)
            except RefusedError as refusal:
                if was_known or uid not in tables.grants:
                    raise
                return refusal  # not raised: the tombstone that was made of what it shows counts
            # What a node knows that has not heard of the last rotation was all signed anew.
            if not any(KINDS[each.kind].root and is_former(tables, each) for each in shown):
                _check_revision(tables, request.revision)
                _check_shown(tables, request.revision)
            lost = tables.state.recovery  # also where this report ends it: others may be away
            recovery.note_report(tables, uid, margin)
            return HelloAnswer(
                revision=tables.state.revision,
                documents=(*tables.first_documents, tables.nodes[uid].sealed),
                versions=tables.versions(uid),
                show_above=lost.above if lost else None,
            )

        answer = await self._cluster.change(make)
        if isinstance(answer, RefusedError):
            raise answer
        with contextlib.suppress(StorageError):  # on a full disk nodes hear what is known, too
            await self.confirm(uid)
        return replace_fields(answer, pods_sequence=await self._cluster.reports.sequence(uid))

    async def show(self, uid: str, documents: tuple[Sealed, ...]) -> int:
        margin = self._cluster.settings.restore_margin

        def make(tables: Tables) -> int:
            if uid in tables.grants:  # one that is not may be lost, and shows its grant here
                grants.live_grant(tables, uid)
            return _absorb(tables, documents, margin, time.time())

        return await self._cluster.change(make)

    async def publish(self, uid: str, revision: int, sealed: Sealed) -> int:
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
                _log.error("cloned identity", uid=uid, error=str(error), by_others=uid)
                grant = await self._cluster.change(
                    lambda tables: published.note_clone(tables, uid, time.time())
                )
                self._cluster.tell(happenings.cloned(grant, error))
            raise
        for problem in after:
            if problem not in before:
                _log.warning(
                    "a node is not as it should be", uid=uid, problem=problem, by_others=uid
                )
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
            known = await self._cluster.change(lambda tables: tables.grants.get(uid))
            if known is not None:
                self._cluster.tell(happenings.segments_refused(known, error))
            raise
        _log.info("granted segments", uid=uid)
        self._cluster.tell(happenings.segments_granted(before, grant))
        return sealed

    async def put_pods(self, uid: str, revision: int, report: PodReport) -> int:
        """Raises: RefusedError, also where its hello was of before a recovery that waits for it."""

        def check(tables: Tables) -> None:
            if recovery.awaits(tables, uid):
                raise RefusedError(
                    Code.SAY_HELLO,
                    "take a report of pods: the controller was restored and must see the grant "
                    "that the node has first",
                )

        def afford(size_bytes: int) -> None:
            self.rates.report_bytes.take(uid, time.monotonic(), size_bytes)

        await self.ask(uid, revision, check)
        return await self._cluster.reports.put(uid, report, time.time(), afford)


def _check_keys(tables: Tables, uid: str, shown: Sequence[Document]) -> None:
    """Raises: RefusedError for a node that a thief of a former key has told of another successor:
    it takes nothing of ours any more, so a person has to mend it."""
    for document in shown:
        if KINDS[document.kind].root and not is_former(tables, document):
            try:
                check(document, tables)
            except RevokedKeyError as error:
                name = tables.grants[uid].name if uid in tables.grants else uid
                _log.error("a node was taken in by a thief's key", node=name, uid=uid)
                raise RefusedError(
                    Code.NOT_YOURS,
                    f"node {name} holds a network that this cluster's controller has not signed, "
                    "but somebody with a former key of it: it has to join anew, with the addresses "
                    f"of its pods (here: limpet node replace {name}, limpet token create; there: "
                    "stop the agent, limpet join --new-identity)",
                ) from error


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
    segments, and may be away. What is known here by now counts as shown all the same."""
    lost = tables.state.recovery
    if lost is not None and lost.heard_up_to < revision <= lost.below:
        raise RefusedError(
            Code.SHOW,
            f"the node knows revision {revision} of before the restore, and the controller those "
            f"up to {lost.heard_up_to}: it needs the grants that it does not know",
            above=lost.above,
        )


def _absorb(tables: Tables, shown: tuple[Sealed, ...], margin: int, now_s: float) -> int:
    before = tables.state.recovery
    taken = absorb(tables, shown, margin, now_s)
    if before is None and tables.state.recovery is not None:
        _log.error("behind what nodes know: restored from an old back-up? nothing is granted")
    return taken
