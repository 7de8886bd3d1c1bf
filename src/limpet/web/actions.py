"""The few things that the page can do, in the cloud, for who may write: each asks again, and is
logged here and at the controller with who did it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog
from aiohttp import web
from jinja2 import Environment

from limpet.base.errors import LimpetError
from limpet.cluster.api import label_key_problem, name_problem
from limpet.web import views
from limpet.web.access.guard import Guard
from limpet.web.live.feed import PictureFeed
from limpet.web.live.source import PictureSource

_log = structlog.get_logger("page")


class Actions:
    """A form asks first, with what comes of it in words; the same form with `sure` does it."""

    def __init__(
        self, source: PictureSource, feed: PictureFeed, guard: Guard, templates: Environment
    ) -> None:
        self._source = source
        self._feed = feed
        self._guard = guard
        self._templates = templates

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/enter", self._guard.enter),
            web.post("/leave", self._guard.leave),
            web.post("/act/{what}", self._act),
        ]

    async def _act(self, request: web.Request) -> web.Response:
        session = self._guard.session_of(request)
        if session is None or not session.may_write or not self._source.can_act:
            _log.warning(
                "refused", path=request.path, why="read-only", peer=request.remote, by_others=True
            )
            raise web.HTTPForbidden(text="this session may look, and change nothing\n")
        form = {key: str(value).strip() for key, value in (await request.post()).items()}
        view = views.PictureView((await self._feed.now()).picture)
        uid = view.uid_of(form.get("node", ""))
        if uid is None:
            raise web.HTTPNotFound(text="no node of this name or uid is known\n")
        verb, arguments, question = _meant(
            request.match_info["what"], view.nodes[uid].name, uid, form
        )
        who = f"page token {session.who}"
        outcome = error = ""
        if form.get("sure") == "yes":
            # Whatever becomes of the browser meanwhile, it is done whole and logged.
            error = await asyncio.shield(self._do(verb, who, request.remote, arguments))
            outcome = "" if error else "done"
        text = self._templates.get_template("act.html").render(
            node=view.nodes[uid],
            what=request.match_info["what"],
            question=question,
            form=form,
            outcome=outcome,
            error=error,
            session=session,
            is_part="HX-Request" in request.headers,
        )
        return web.Response(text=text, content_type="text/html")

    async def _do(self, verb: str, who: str, peer: str | None, arguments: dict[str, Any]) -> str:
        """Why it was not done; empty: it was."""
        error = ""
        try:
            await self._source.act(verb, who, **arguments)
        except LimpetError as failed:
            error = str(failed)
        _log.info("acted", verb=verb, by=who, peer=peer, error=error, said=str(arguments))
        return error


def _meant(what: str, name: str, uid: str, form: dict[str, str]) -> tuple[str, dict[str, Any], str]:
    """The controller's verb, what it takes, and what is asked before. Raises: web.HTTPException."""
    if what == "remove":
        return (
            "node.remove",
            {"node": uid},
            f"Remove {name} from the pod network for ever? Its segments rest, and its pods lose "
            "their addresses. To come back it needs a new key and a new join.",
        )
    if what in ("join-community", "leave-community"):
        community = _word(form, "community")
        if what == "join-community":
            words = (
                f"Put {name} into the community {community}? Its nodes and {name} may talk then."
            )
            return "community.add", {"community": community, "nodes": [uid]}, words
        words = (
            f"Take {name} out of the community {community}? Pairs that share no other are cut off."
        )
        return "community.take-out", {"community": community, "nodes": [uid]}, words
    if what == "label":
        key, value = _word(form, "key", label_key_problem), form.get("value", "")[:253]
        words = f"Set the label {key}={value} of {name}? Communities that choose by it change."
        return "node.label", {"node": uid, "add": {key: value}}, words
    if what == "unlabel":
        key = _word(form, "key", label_key_problem)
        words = f"Take the label {key} from {name}? Communities that choose by it change."
        return "node.label", {"node": uid, "drop": [key]}, words
    raise web.HTTPNotFound(text="there is no such action\n")


def _word(
    form: dict[str, str], field: str, check: Callable[[str], str | None] = name_problem
) -> str:
    value = form.get(field, "")
    if problem := check(value):
        raise web.HTTPBadRequest(text=f"{field} {value[:80]!r}: {problem}\n")
    return value
