"""The second road of documents: objects of a Kubernetes API server, or of a cache in its place.

What is heard is signed, so a server that is stale or lies can delay, not forge; what is not told
of stays. Joining, segments and the reports of pods are the controller's (`session`) on both roads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from limpet.base.bounds.servers import UNREAD_CAUSE, UNUSABLE_OBJECTS
from limpet.base.bounds.words import NAME
from limpet.base.decoding import convert, decode_plain_json
from limpet.base.errors import LimpetError
from limpet.base.process.memory import give_memory_back
from limpet.base.settings import SourceSettings
from limpet.base.text.escaping import shortened
from limpet.cloud.following import Following
from limpet.cloud.https import parse_controller
from limpet.cloud.second_road.own_objects import Carrier, OwnObjects
from limpet.cloud.second_road.presence_object import PresenceWriter
from limpet.cloud.second_road.server_return import follow_returns
from limpet.cloud.second_road.state import ApiServerState
from limpet.cloud.second_road.untaken import Untaken
from limpet.cluster.documents import Sealed, Source
from limpet.cluster.kinds import GRANT, KINDS, NETWORK, PRESENCE
from limpet.cluster.membership import Membership, News
from limpet.cluster.replica import Outcome
from limpet.kubernetes.access.access import Access, in_cluster_access, plain_access
from limpet.kubernetes.client import Client
from limpet.kubernetes.kinds.objects import Resource
from limpet.kubernetes.kinds.resources import GROUP, RESOURCES, VERSION
from limpet.kubernetes.reflector import Reflector
from limpet.kubernetes.reflector_state import ObjectChanges

_BATCH = 100
"""Documents checked at once, at some 0.1 ms each: the loop serves pods as well."""
_MOST_TOLD = 8
_TAKEN_S = 5.0
"""After a whole list, for what is done because of it."""
_SPREAD_S = 10.0
"""All nodes hear of a network in one moment, and would list in one."""


CARRIERS = {
    kind: Resource(found.object_kind, found.plural, Carrier, GROUP, VERSION)
    for kind, found in RESOURCES.items()
}


def find_api_server(settings: SourceSettings) -> Access:
    """Raises: AccessError."""
    server = plain_access(settings.server) if settings.server is not None else None
    if settings.kubeconfig is not None:
        # Only here: pods have their account, and a cache on the node has an address.
        from limpet.kubernetes.access.kubeconfig import read_kubeconfig

        access = read_kubeconfig([settings.kubeconfig], settings.context or "")
    elif server is not None and (not server.server.tls or settings.token_file is not None):
        access = server  # a cache on this machine asks for no token
    else:
        access = in_cluster_access(server=settings.server or "")
        server = None
    if server is not None and server is not access:
        access = replace(access, server=server.server, source=f"{server.source}, {access.source}")
    if settings.server is not None and not access.server.tls:
        access = replace(access, is_cache=True)  # nothing else is asked without TLS
    if settings.token_file is not None:
        access = replace(access, token_file=settings.token_file)
    if settings.ca_file is not None:
        access = replace(access, ca=settings.ca_file)
    return access


class _Controllers(msgspec.Struct, frozen=True, rename="camel"):
    addresses: tuple[str, ...] = ()
    ca_certificate: str = ""


class _Status(msgspec.Struct, frozen=True):
    controllers: _Controllers = _Controllers()


def told_controllers(status: object) -> tuple[tuple[str, ...], str]:
    """Where the controllers are, and their CA's certificate, as a ClusterNetwork's status says.

    What can't be used is left out.
    """
    try:
        found = convert(status or {}, _Status).controllers
    except msgspec.ValidationError:
        return (), ""
    return tuple(each for each in found.addresses if _is_address(each)), found.ca_certificate


def _is_address(text: str) -> bool:
    try:
        parse_controller(text)
    except LimpetError:
        return False
    return True


class ApiServerSource:
    """Runs on the event loop, tasks of its own; what fails is told in `state` and tried again."""

    def __init__(
        self,
        membership: Membership,
        find_access: Callable[[], Access],
        *,
        random: Callable[[], float],
        hear_controllers: Callable[[tuple[str, ...]], None] = lambda addresses: None,
        say_hello: Callable[[], None] = lambda: None,
    ) -> None:
        """`find_access`: is asked again while it raises LimpetError.

        `random`: from 0 to below 1; spreads the nodes that come back all at once.
        `hear_controllers`: is told where they are now. `say_hello`: to the controller, which does
        not know this node's grant.
        """
        self._hear_controllers = hear_controllers
        self._membership = membership
        self._following = Following(
            "signed objects", find_access, self._begin, self._end, random=random
        )
        self._random = random
        self._writer = PresenceWriter(membership, random=random)
        self._reflectors: dict[str, Reflector[Carrier]] = {}
        self._listed = {kind: asyncio.Event() for kind in CARRIERS}
        self._untaken = Untaken()
        self._unusable: dict[str, str] = {}
        self._own = OwnObjects(membership, say_hello, random=random)
        self._task: asyncio.Task[None] | None = None
        self._state = ApiServerState("", False, time.monotonic())

    def start(self) -> None:
        self._task = asyncio.create_task(self._following.run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    def network_changed(self) -> None:
        """Asks anew at once: connections may be dead, or a way may be there now."""
        for reflector in self._reflectors.values():
            reflector.network_changed()
        self._writer.wake()

    @property
    def state(self) -> ApiServerState:
        found = [each.follow_state for each in self._reflectors.values()]
        connected = bool(found) and all(each.connected for each in found)
        since_s = self._state.since_s
        if found:
            changed_s = [each.since_s for each in found if each.connected == connected]
            since_s = max(changed_s) if connected else min(changed_s)
        return replace(
            self._state,
            connected=connected,
            since_s=since_s,
            error=next((each.error for each in found if each.error), self._following.trouble),
            refuses=any(each.refuses for each in found),
            refused=self._writer.refused,
            unusable=tuple(
                f"{name}: {why}" for name, why in list(self._unusable.items())[:_MOST_TOLD]
            ),
            told=self._own.told,
            clock_ahead_s=next((each.clock_ahead_s for each in self._reflectors.values()), 0.0),
        )

    def hear(self, news: News) -> None:
        if self._membership.uid in news.uids:
            self._writer.wake()
        if news.network:
            self._untaken.look_at_early()

    # Work

    def _begin(self, client: Client, access: Access) -> list[Coroutine[Any, Any, None]]:
        server = f"{access.server} ({access.source})"
        self._state = ApiServerState(server, False, time.monotonic())
        self._reflectors = {
            kind: Reflector(
                client,
                resource,
                lambda changes, kind=kind: self._hear(kind, changes),  # type: ignore[misc]
                mirror=False,
                random=self._random,
            )
            for kind, resource in CARRIERS.items()
        }
        back = follow_returns(
            access.server,
            is_away=lambda: not self.state.connected,
            returned=self._returned,
            random=self._random,
        )
        own = [self._writer.run(client), self._own.run(client), self._offer_late(), back]
        return [*own, *map(self._run_in_turn, self._reflectors)]

    def _end(self) -> None:
        self._reflectors = {}

    def _returned(self) -> None:
        """The server takes connections again: whoever waits for it asks at once."""
        for reflector in self._reflectors.values():
            if not reflector.follow_state.connected:
                reflector.network_changed()
        self._writer.hurry()

    async def _run_in_turn(self, kind: str) -> None:
        """What documents are checked with is listed before they are."""
        if kind != NETWORK.name:
            await self._listed[NETWORK.name].wait()
        if (under := KINDS[kind].under) in self._listed:
            await self._listed[under].wait()
        await self._reflectors[kind].run()

    # Hearing

    async def _hear(self, kind: str, changes: ObjectChanges[Carrier]) -> None:
        """What is not told stays as it is: only a tombstone removes."""
        told: dict[tuple[str, str], Sealed] = {}
        for item in changes.put:
            name = item.metadata.name
            if kind == NETWORK.name:
                self._hear_status(item)
            self._own.hear(kind, item)
            if item.document is None:
                self._note(kind, name, "nobody has signed it (delete it)")
            else:
                told[kind, name] = Sealed(kind, item.document.body, item.document.signature)
        for each in changes.unreadable:
            self._note(kind, each.name, each.cause)
        for _, name in changes.gone:
            self._note(kind, name, "")
        if kind == GRANT.name and (changes.gone or changes.listed):
            self._own.doubt()
        if kind == PRESENCE.name:
            gone: dict[str, Sealed | None] = {name: None for _, name in changes.gone}
            now = {name: sealed for (_, name), sealed in told.items()}
            self._writer.compare({**gone, **now}, all_told=changes.listed)
        fresh = await self._offer(told)
        if fresh and self._untaken.early:
            await self._offer(dict(self._untaken.early))
        if changes.listed:
            self._listed[kind].set()
            if all(each.is_set() for each in self._listed.values()):
                # Once for all that was listed, and once more does no harm.
                asyncio.get_running_loop().call_later(_TAKEN_S, give_memory_back)

    def _hear_status(self, network: Carrier) -> None:
        addresses, _ = told_controllers(decode_plain_json(network.status))
        if addresses:
            self._hear_controllers(addresses)

    async def _offer(self, told: dict[tuple[str, str], Sealed]) -> bool:
        """Whether anything of it was news."""
        fresh = False
        for names in _batches(list(told), _BATCH):
            now_s = time.monotonic()
            outcomes = self._membership.offer(
                [told[name] for name in names],
                source=Source.CLOUD,
                has_room=partial(self._untaken.has_room, now_s),
            )
            for name, outcome in zip(names, outcomes, strict=True):
                fresh = fresh or outcome is Outcome.FRESH
                self._judge(name, told[name], outcome)
                key = self._membership.replica.key_of(told[name])
                if outcome is Outcome.FRESH and key is not None:
                    self._untaken.note_change(key, now_s)
            await asyncio.sleep(0)
        return fresh

    async def _offer_late(self) -> None:
        while True:
            await self._offer(await self._untaken.some_late())
            if kinds := self._untaken.take_untold():
                await asyncio.sleep(_SPREAD_S * self._random())
                for kind in kinds:
                    self._reflectors[kind].list_again()

    def _judge(self, name: tuple[str, str], document: Sealed, outcome: Outcome) -> None:
        if outcome is Outcome.FRESH:
            self._untaken.note_taken(name)
        self._untaken.forget(name)
        if outcome is Outcome.LATER:
            self._untaken.put_late(name, document)
            return
        if outcome is not Outcome.BAD:
            self._note(*name, "")
            return
        self._untaken.put_early(name, document, era=self._membership.era)
        self._note(
            *name,
            "what it carries was not signed by whom it should be in this cluster (who has signed "
            "a good one writes it again, once this is deleted)",
        )

    def _note(self, kind: str, name: str, why: str) -> None:
        """Empty: the object is in order, or gone."""
        called = f"{CARRIERS[kind].kind} {shortened(name, NAME.most)}"
        if not why:
            self._unusable.pop(called, None)
        elif called in self._unusable or len(self._unusable) < UNUSABLE_OBJECTS.most:
            self._unusable[called] = shortened(why, UNREAD_CAUSE.most)


def _batches(names: list[tuple[str, str]], size: int) -> Iterator[list[tuple[str, str]]]:
    for start in range(0, len(names), size):
        yield names[start : start + size]
