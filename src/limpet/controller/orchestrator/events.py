"""Events of Kubernetes: what a person sees of an object with `kubectl describe`.

They are core/v1 Events with a count, since `kubectl describe` looks for these. Telling never waits:
what cannot be written is tried again for a while and then let go.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import secrets
import time
from datetime import UTC, datetime

import structlog

from limpet.base import faults
from limpet.base.errors import LimpetError
from limpet.base.http.connection import LinkError
from limpet.base.rate_limit import TokenBucket
from limpet.base.text.escaping import escaped, shortened
from limpet.controller.orchestrator.event_backlog import (
    About,
    Backlog,
    EventType,
    PendingEvent,
    node,
)
from limpet.controller.state.happenings import Happening
from limpet.kubernetes.client import Client
from limpet.kubernetes.errors import BusyError, ExistsError, NotFoundError
from limpet.kubernetes.kinds.objects import Metadata, Object, Resource

_log = structlog.get_logger("events")
COMPONENT = "limpet-controller"
_SPACING_S = 0.1
"""Time between two writes."""
_AGAIN_S, _GIVEN_UP_S = 5.0, 600.0
_MAX_MESSAGE_CHARACTERS = 1024
_NAMESPACE = "default"
"""Namespace of Events about what is in no namespace, as everybody has it."""
_CLAIMS = (1 / 30, 10.0)
"""Events, a second and at once, that strangers can bring about."""
_ODD = re.compile(r"[^a-z0-9]+")


class Event(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Source: k8s.io/api/core/v1/types.go."""

    involved_object: dict[str, str] | None = None
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int = 0
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    source: dict[str, str] | None = None
    reporting_component: str = ""


EVENTS = Resource("Event", "events", Event, namespaced=True)


class Events:
    """The recorder. Made and used on one event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._backlog = Backlog()
        self._more = asyncio.Event()
        self._said = ""

    @property
    def dropped(self) -> int:
        """How many were not written: too many, or nobody took them."""
        return self._backlog.dropped

    def tell(self, about: About, reason: str, message: str, kind: EventType = "Normal") -> None:
        """`reason`: one CamelCase word; `message`: what it is, and what to do."""
        words = escaped(shortened(message, _MAX_MESSAGE_CHARACTERS - 40))
        key = (about, kind, reason, words[:_MAX_MESSAGE_CHARACTERS])
        self._backlog.add(key, time.monotonic(), time.time())
        self._more.set()

    async def run(self) -> None:
        """Until it is cancelled. Raises nothing."""
        while True:
            self._more.clear()
            wait_s = self._backlog.first_s - time.monotonic()
            if wait_s > 0:
                timeout_s = None if math.isinf(wait_s) else wait_s
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._more.wait(), timeout_s)
                continue
            entry = self._backlog.take(time.monotonic())
            if entry is not None:
                with faults.noted("events"):
                    await self._write(entry)
                await asyncio.sleep(_SPACING_S)

    async def _write(self, entry: PendingEvent) -> None:
        count = entry.count
        try:
            await self._put(entry, count)
        except (LinkError, BusyError, TimeoutError) as error:
            self._say(error)
            now_s = time.monotonic()
            if time.time() - entry.last_at_s > _GIVEN_UP_S:
                self._backlog.give_up(entry)
            else:
                self._backlog.again(entry, now_s + _AGAIN_S)
        except LimpetError as error:
            self._say(error)
            self._backlog.give_up(entry)
        else:
            self._said = ""
            self._backlog.written(entry, count, time.monotonic())

    def _say(self, error: Exception) -> None:
        if str(error) != self._said:
            _log.warning("an Event is not written", error=str(error))
        self._said = str(error)

    async def _put(self, entry: PendingEvent, count: int) -> None:
        """Raises: LimpetError."""
        about = entry.key[0]
        namespace = about.namespace or _NAMESPACE
        if entry.is_made:
            changes = {"count": count, "lastTimestamp": _moment(entry.last_at_s)}
            try:
                await self._client.patch(EVENTS, entry.object_name, changes, namespace=namespace)
                return
            except NotFoundError:
                entry.is_made = False  # the API server forgets Events after an hour
                entry.object_name = ""
        if not entry.object_name:
            entry.object_name = f"{_plain(about.name)}.{secrets.token_hex(8)}"
        with contextlib.suppress(ExistsError):  # the answer to the last attempt was lost
            await self._client.create(EVENTS, _event(entry, count), namespace=namespace)
        entry.is_made = True


def _plain(name: str) -> str:
    """A beginning for an object's name."""
    return _ODD.sub("-", name[:200].lower()).strip("-.") or "limpet"


def _event(entry: PendingEvent, count: int) -> Event:
    about, kind, reason, message = entry.key
    reference = {
        "kind": about.kind,
        "name": about.name,
        "uid": about.uid,
        "apiVersion": about.api_version,
        "namespace": about.namespace,
    }
    return Event(
        metadata=Metadata(name=entry.object_name),
        involved_object={key: value for key, value in reference.items() if value},
        type=kind,
        reason=reason,
        message=message,
        count=count,
        first_timestamp=_moment(entry.first_at_s),
        last_timestamp=_moment(entry.last_at_s),
        source={"component": COMPONENT},
        reporting_component=COMPONENT,
    )


def _moment(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class NodeEvents:
    """Happenings of nodes as Events on their Nodes."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._claims = TokenBucket(*_CLAIMS, now_s=time.monotonic())

    def tell(self, happening: Happening) -> None:
        if happening.is_claimed and not self._claims.take(time.monotonic()):
            return
        kind: EventType = "Warning" if happening.is_warning else "Normal"
        self._events.tell(node(happening.node), happening.reason, happening.message, kind)
