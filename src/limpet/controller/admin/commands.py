"""What a person asks of the controller, over a unix socket that only root may connect to, or by the
API server's road (`rights.py`).

A verb is `POST /<verb>` with its arguments as a JSON object; the answer is a JSON object.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection
from functools import partial
from inspect import signature
from ipaddress import ip_network
from typing import TypeVar, get_type_hints

import msgspec
import structlog
from aiohttp import web
from msgspec.structs import asdict

from limpet import __version__
from limpet.base.addresses import Prefix
from limpet.base.bounds.administrators import ADMIN_BODY
from limpet.base.errors import LimpetError
from limpet.base.text.escaping import shortened
from limpet.cluster.api import (
    ApiError,
    Code,
    decode,
    encode,
    label_key_problem,
)
from limpet.cluster.keys import key_name
from limpet.cluster.kinds.network import signing_keys
from limpet.controller.admin.answers import (
    KeyRotated,
    NetworkShown,
    NodeLabelled,
    NodeLine,
    NodeRemoved,
    NodeReplaced,
    NodeSet,
    NodeShown,
    NodesListed,
    Recovery,
    SegmentLine,
    SegmentsListed,
    Waiting,
)
from limpet.controller.admin.client import BY_HEADER
from limpet.controller.admin.communities import CommunityAdmin, Verb
from limpet.controller.admin.looks import LookAdmin
from limpet.controller.admin.pods import PodAdmin
from limpet.controller.admin.policies import PolicyAdmin
from limpet.controller.admin.tokens import TokenAdmin, Who, known_roles
from limpet.controller.admin.views import (
    network_shown,
    node_line,
    presence_shown,
    segment_line,
)
from limpet.controller.figures.metrics import Metrics
from limpet.controller.picture.listed import ListedServices
from limpet.controller.picture.timeline import CHANGING
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.tables import Tables, by_name, live_uids
from limpet.controller.state import nodes, recovery
from limpet.controller.state.cluster import Cluster

_log = structlog.get_logger("admin")
_WHO, _WHOM = 100, 240
"""Characters: of a name, in the log, and of it with the account that it asks as."""

T = TypeVar("T")


class Admin:
    """The verbs."""

    def __init__(
        self,
        cluster: Cluster,
        metrics: Metrics,
        restore_margin: int,
        services: ListedServices | None = None,
    ) -> None:
        """`services`: of Kubernetes, for whoever looks; None: nothing tells of any."""
        self._cluster = cluster
        self._metrics = metrics
        self._margin = restore_margin
        verbs: dict[str, Verb] = {
            "node.list": self._node_list,
            "node.show": self._node_show,
            "node.remove": self._node_remove,
            "node.replace": self._node_replace,
            "node.label": self._node_label,
            "node.set": self._node_set,
            "segment.list": self._segment_list,
            "network.show": self._network_show,
            "rotate-key": self._rotate_key,
            "recovery": self._recovery,
            **TokenAdmin(cluster).verbs,
            **CommunityAdmin(cluster).verbs,
            **PolicyAdmin(cluster).verbs,
            **PodAdmin(cluster).verbs,
            **LookAdmin(cluster, services).verbs,
        }
        self._verbs = {name: (_arguments_of(name, verb), verb) for name, verb in verbs.items()}
        self._told = {name for name, verb in verbs.items() if Who in get_type_hints(verb).values()}
        """Verbs that are told who asks."""

    def application(self) -> web.Application:
        application = web.Application(client_max_size=ADMIN_BODY.most)
        for name in self._verbs:
            application.router.add_post(f"/{name}", partial(self.answer, name))
        application.router.add_post("/{verb}", self._answer_unknown)
        application.add_routes(self.health_routes())
        return application

    def health_routes(self) -> list[web.RouteDef]:
        return [web.get("/healthz", self._healthz), web.get("/metrics", self._metrics_text)]

    async def _answer_unknown(self, request: web.Request) -> web.Response:
        """In words, for a command of another version."""
        return await self.answer(request.match_info["verb"], request)

    async def answer(self, name: str, request: web.Request, who: str = "") -> web.Response:
        """What comes of the verb `name`, or why nothing does, in words. Who asks may.

        `who`: asks, as the API server says; empty: whoever may open the socket. Either may say for
        whom.
        """
        try:
            if name not in self._verbs:
                raise ApiError(
                    f"{name[:80]}: this controller knows no such command (another version?)"
                )
            kind, verb = self._verbs[name]
            arguments = decode(await _body(request, name), kind)
            plain = msgspec.to_builtins(arguments)
            said_by = shortened(request.headers.get(BY_HEADER, ""), _WHO)
            by = f"{said_by}, as {who}" if who and said_by else who or said_by
            if by and name in CHANGING:
                _log.info("asked", verb=name, by=by, said=str(plain))
            whom = Who(shortened(by or "root at the controller's machine", _WHOM))
            told = {"who": whom} if name in self._told else {}
            said = await verb(**asdict(arguments), **told)
            self._cluster.timeline.done(name, plain, whom, self._cluster.name_of)
            return web.Response(body=encode(said), content_type="application/json")
        except LimpetError as error:
            return web.json_response({"error": str(error)}, status=400)
        except Exception as error:  # noqa: BLE001 - the log has it; a person gets words
            _log.error("failed", path=request.path, exc_info=error)
            message = f"{request.path}: the controller failed; its log says why"
            return web.json_response({"error": message}, status=500)

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.json_response({"ok": True, "leads": True, "version": __version__})

    async def _metrics_text(self, _request: web.Request) -> web.Response:
        text = await self._cluster.change(self._metrics.text)
        return web.Response(body=text, content_type="text/plain", charset="utf-8")

    # Verbs: what they take is what a person may say, by name

    async def _node_list(self) -> NodesListed:
        reports = await self._cluster.reports.times(await self._cluster.change(live_uids))
        paths = self._cluster.paths.known

        def make(tables: Tables) -> list[NodeLine]:
            return [
                node_line(tables, grant, reports.get(grant.uid), paths.get(grant.uid))
                for grant in by_name(tables.grants.values())
            ]

        return NodesListed(nodes=await self._cluster.change(make))

    async def _node_show(self, node: str) -> NodeShown:
        uid = await self._cluster.change(lambda tables: _any_uid(tables, node))
        report = await self._cluster.reports.get(uid)

        def make(tables: Tables) -> NodeShown:
            grant, paths = tables.grants[uid], self._cluster.paths.known.get(uid)
            said = tables.presence(uid)
            return NodeShown(
                **asdict(node_line(tables, grant, report.at_s if report else None, paths)),
                public_key=base64.b64encode(grant.public_key).decode(),
                supersedes=list(grant.supersedes),
                presence=presence_shown(said) if said is not None else None,
                pods=sum(not pod.kept for pod in report.pods) if report else None,
            )

        return await self._cluster.change(make)

    async def _node_remove(self, node: str) -> NodeRemoved:
        return NodeRemoved(removed=await self._cluster.remove(node))

    async def _node_replace(self, node: str, cancel: bool = False) -> NodeReplaced:
        def make(tables: Tables) -> NodeReplaced:
            grant = nodes.await_replacement(tables, node, wanted=not cancel)
            segments = list(map(str, grant.segments))
            return NodeReplaced(name=grant.name, uid=grant.uid, segments=segments)

        return await self._cluster.change(make)

    async def _node_label(
        self,
        node: str,
        add: dict[str, str] = {},  # noqa: B006 - each call has its own
        drop: tuple[str, ...] = (),
    ) -> NodeLabelled:
        for key in add:
            if problem := label_key_problem(key):
                raise RefusedError(Code.BAD_REQUEST, f"label {key[:80]!r}: {problem}")
        labels = await self._cluster.change(lambda tables: nodes.label(tables, node, add, drop))
        return NodeLabelled(labels=dict(labels))

    async def _node_set(
        self,
        node: str,
        roles: tuple[str, ...] | None = None,
        add_roles: tuple[str, ...] = (),
        remove_roles: tuple[str, ...] = (),
        behind: tuple[str, ...] | None = None,
        add_behind: tuple[str, ...] = (),
        remove_behind: tuple[str, ...] = (),
        anyway: bool = False,
    ) -> NodeSet:
        """`roles` and `behind` (prefixes) in place of those that it has; None: those stay.

        `anyway`: a relay without a public address too.
        """
        what = f"set {node}"
        of_roles = _altered(partial(known_roles, what=what), roles, add_roles, remove_roles)
        of_behind = _altered(partial(_prefixes, what=what), behind, add_behind, remove_behind)
        grant = await self._cluster.change(
            lambda tables: nodes.set_node(tables, node, of_roles, of_behind, anyway=anyway)
        )
        answer = NodeSet(
            name=grant.name,
            uid=grant.uid,
            generation=grant.generation,
            roles=sorted(each.value for each in grant.roles),
            prefixes_behind=list(map(str, grant.prefixes_behind)),
        )
        _log.info("set node", **asdict(answer))
        return answer

    async def _segment_list(self) -> SegmentsListed:
        def make(tables: Tables) -> list[SegmentLine]:
            return [
                segment_line(tables, prefix)
                for prefix in sorted(
                    tables.space.holdings, key=lambda each: (each.version, each.network_address)
                )
            ]

        return SegmentsListed(segments=await self._cluster.change(make))

    async def _network_show(self) -> NetworkShown:
        def make(tables: Tables) -> NetworkShown:
            space = tables.space
            return NetworkShown(
                **asdict(network_shown(tables.network)),
                cluster_revision=tables.state.revision,
                free_segments={f"ipv{v}": space.free(v) for v in space.versions},
            )

        return await self._cluster.change(make)

    async def _rotate_key(self, force: bool = False) -> KeyRotated:
        count = await self._cluster.rotate_key(force=force)

        def make(tables: Tables) -> KeyRotated:
            key = key_name(signing_keys(tables)[-1])
            return KeyRotated(signed_again=count, key=key, rotations=tables.era)

        return await self._cluster.change(make)

    async def _recovery(self, resume: bool = False, force: bool = False) -> Recovery:
        def make(tables: Tables) -> Recovery:
            if resume:
                recovery.resume(tables)
            freed = recovery.force(tables) if force else 0
            state = tables.state.recovery
            unknown = [each for each in tables.space.holdings.values() if not each.uid]
            return Recovery(
                recovering=state is not None,
                granting=state is None or not state.paused,
                restored_revision=state.above if state else None,
                began_at_s=state.began_at_s if state else None,
                waiting_for=[
                    Waiting(name=grant.name, uid=grant.uid)
                    for grant in recovery.waiting_for(tables)
                ],
                needs_force=recovery.is_clipped(tables, self._margin),
                held_back=len(unknown),
                freed=freed,
            )

        if force:
            _log.warning("the recovery was ended by force")
        return await self._cluster.change(make)


def _arguments_of(name: str, verb: Verb) -> type[msgspec.Struct]:
    """What the body of a request is decoded as: the parameters of `verb`, and nothing else.

    Tables are no parameter of a verb: they are what it is done to. Nor is who asks.
    """
    types = get_type_hints(verb)
    fields = [
        (each.name, types[each.name], *(() if each.default is each.empty else (each.default,)))
        for each in signature(verb).parameters.values()
        if types[each.name] not in (Tables, Who)
    ]
    return msgspec.defstruct(name, fields, forbid_unknown_fields=True)


def _altered(
    read: Callable[[Collection[str]], frozenset[T]],
    only: Collection[str] | None,
    add: Collection[str],
    drop: Collection[str],
) -> nodes.Altered[T]:
    return nodes.Altered(None if only is None else read(only), read(add), read(drop))


def _prefixes(texts: Collection[str], what: str) -> frozenset[Prefix]:
    """Raises: ApiError for what is no prefix."""
    found = set()
    for text in texts:
        try:
            found.add(ip_network(text))
        except ValueError as error:
            raise ApiError(
                f"{what}: {text[:80]!r} is no prefix such as 10.1.0.0/16: {error}"
            ) from error
    return frozenset(found)


def _any_uid(tables: Tables, name_or_uid: str) -> str:
    """Uid of a node, a removed one too if it is named by uid. Raises: RefusedError."""
    if name_or_uid in tables.grants:
        return name_or_uid
    return nodes.find_node(tables, name_or_uid).uid


async def _body(request: web.Request, name: str) -> bytes:
    """Raises: LimpetError."""
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise LimpetError(
            f"{name}: what was sent has more than {ADMIN_BODY.most:,} bytes (send it in parts)"
        ) from error
