"""Services and their endpoints, heard at an API server and kept on the node's disk.

Unlike documents they are signed by nobody: what the API server says is so, also that one is gone.
A list without any is taken for a server that has lost its data: no cluster has none. What was heard
is on the disk some seconds later, the whole as it was then or as it was before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from limpet.base.disk import read_kept, refusals, write_durably
from limpet.base.errors import StorageError
from limpet.base.process.memory import give_memory_back
from limpet.base.timer import Timer
from limpet.cloud.workloads.change_journal import MOST_BYTES, ChangeJournal
from limpet.cloud.workloads.listed import Listed
from limpet.cloud.workloads.source import REST_S, WorkloadSource
from limpet.cloud.workloads.unread import UnreadObjects
from limpet.kubernetes.access.access import Access
from limpet.kubernetes.client import Client
from limpet.kubernetes.kinds.objects import AnyViewed
from limpet.kubernetes.kinds.services import (
    ENDPOINT_SLICES,
    SERVICES,
    ServiceView,
    SliceView,
    service_of,
    slice_of,
)
from limpet.kubernetes.reflector import Reflector
from limpet.kubernetes.reflector_state import ObjectChanges, ObjectKey
from limpet.services.catalog import Catalog, Item, called
from limpet.services.doubted import CUT_S, DOUBT_S, has_doubts, with_doubts, without_doubts
from limpet.services.kept import (
    LOST,
    encode_end,
    encode_gone,
    encode_item,
    encode_lines,
    read_items,
)
from limpet.services.values import EndpointSlice, Service, ServiceName

_log = structlog.get_logger("services")

_PAGE = 500
"""Objects of a list: small ones, of which a server has thousands."""
_AT_ONCE = 200
"""Objects that are encoded before others have their turn."""

_LISTS = {SERVICES.kind: "services", ENDPOINT_SLICES.kind: "slices"}
"""What a list of each kind is called here."""

Tell = Callable[[Iterable[ServiceName], str], None]


def load_catalog(path: Path) -> Catalog:
    """What was kept, as far as it can be read; nothing, where there is no such file."""
    catalog, items = Catalog(), list[Item]()
    try:
        content = read_kept(path)
        if content is not None:
            items, catalog.damage = read_items(content)
            catalog.has_part = bool(items)
            catalog.is_part_served = catalog.damage == LOST
    except (StorageError, ValueError) as error:
        catalog.damage = str(error)
    for item in items:
        catalog.put(item)
    if catalog.damage:
        _log.error(
            "Services that this node knew are lost", path=str(path), error=catalog.damage,
            kept=len(items), what_to_do="nothing: the API server tells them anew",
        )  # fmt: skip
    return catalog


@dataclass(slots=True)
class _Untold:
    """What was heard and nobody was told yet."""

    listed: set[str] = field(default_factory=set)
    """Kinds of which the server has told all, once at least."""
    names: dict[ServiceName, None] = field(default_factory=dict)
    lines: list[bytes] = field(default_factory=list)
    size_bytes: int = 0

    def keep(self, lines: list[bytes]) -> None:
        """None of them where the journal has no room for all: a server that never lists the other
        kind may tell changes without end."""
        self.size_bytes += sum(map(len, lines)) + len(lines)
        if self.size_bytes > MOST_BYTES:
            self.lines.clear()
        else:
            self.lines += lines

    def take(self) -> tuple[dict[ServiceName, None], list[bytes]]:
        """Names and lines; they are told now."""
        names, lines = self.names, self.lines
        self.names, self.lines, self.size_bytes = {}, [], 0
        return names, lines


class ServiceSource(WorkloadSource):
    """As every source."""

    def __init__(
        self,
        catalog: Catalog,
        path: Path,
        find_access: Callable[[], Access],
        *,
        tell: Tell,
        random: Callable[[], float],
        journal: ChangeJournal | None = None,
        gather_s: float = 2.0,
    ) -> None:
        """`path`: where the catalog is kept. `find_access`: is asked again while it raises
        LimpetError. `tell`: Services that are others now, and why. `journal`: where it is noted
        before it is told. `gather_s`: how long changes are gathered before they are written."""
        self._catalog = catalog
        self._path = path
        self._tell = tell
        super().__init__("Services", find_access, random=random, gather_s=gather_s)
        self._journal = journal
        self._listed = {"services": Listed(), "slices": Listed()}
        """What the server has: what was kept and is not there is gone."""
        self.unread = UnreadObjects()
        self._waits = _Untold()
        self._doubting = Timer("services", self._believe)

    async def stop(self) -> None:
        self._doubting.stop()
        await super().stop()

    @property
    def is_connected(self) -> bool:
        return bool(self._reflectors) and all(
            each.follow_state.connected for each in self._reflectors.values()
        )

    # Hearing

    def _begin(self, client: Client, _access: Access) -> list[Coroutine[Any, Any, None]]:
        self._listed = {kind: Listed() for kind in self._listed}
        reflect = partial(Reflector, client, mirror=True, random=self._random, page=_PAGE)
        services = reflect(SERVICES, self._hear_services)
        slices = reflect(ENDPOINT_SLICES, self._hear_slices)
        self._reflectors = {"services": services, "slices": slices}
        return [each.run() for each in self._reflectors.values()]

    async def _hear_services(self, changes: ObjectChanges[ServiceView]) -> None:
        told: dict[ServiceName, None] = {}
        gone = self._gone(Service, changes, (each.key for each in self._catalog))
        self.unread.hear(SERVICES.kind, changes)
        lines = []
        for key in gone:
            if others := self._catalog.remove_service(*key):
                told.update(dict.fromkeys(others))
                lines.append(encode_gone(Service, key))
        for service in map(service_of, changes.put):
            if others := self._put(SERVICES.kind, service):
                told.update(dict.fromkeys(others))
                lines.append(encode_item(service))
        self._note("services", told, lines, "Services changed", all_told=changes.listed)

    async def _hear_slices(self, changes: ObjectChanges[SliceView]) -> None:
        told: dict[ServiceName, None] = {}
        gone = self._gone(EndpointSlice, changes, (x.key for x in self._catalog.all_slices()))
        self.unread.hear(ENDPOINT_SLICES.kind, changes)
        lines = []
        for key in gone:
            if others := self._catalog.remove_slice(*key):
                told.update(dict.fromkeys(others))
                lines.append(encode_gone(EndpointSlice, key))
        for piece in map(self._as_believed, map(slice_of, changes.put)):
            if others := self._put(ENDPOINT_SLICES.kind, piece):
                told.update(dict.fromkeys(others))
                lines.append(encode_item(piece))
        self._note("slices", told, lines, "endpoints changed", all_told=changes.listed)

    def _as_believed(self, told: EndpointSlice) -> EndpointSlice:
        """After a cut, a server says of those it could not hear that they are not ready."""
        now_s = time.monotonic()
        away_s, since_s = self._reflectors["slices"].follow_state.last_away(now_s)
        if away_s < CUT_S or now_s >= since_s + DOUBT_S:
            return told
        piece = with_doubts(told, self._catalog.slices(*told.service_key))
        if has_doubts(piece):
            self._doubting.set(since_s + DOUBT_S)
        return piece

    def _believe(self) -> None:
        """What was told counts now, as long as the server could say something else."""
        if not self.is_connected:
            self._doubting.set_in(DOUBT_S)
            return
        told: dict[ServiceName, None] = {}
        lines = []
        for doubted in list(filter(has_doubts, self._catalog.all_slices())):
            piece = without_doubts(doubted)
            told.update(dict.fromkeys(self._catalog.put(piece)))
            lines.append(encode_item(piece))
        self._note("slices", told, lines, "endpoints are not ready", all_told=False)

    def _put(self, kind: str, item: Item) -> tuple[ServiceName, ...]:
        """Services that are others by this."""
        if refusal := self._catalog.refusal(item):
            self._refuse(kind, item.key, refusal)
            return ()
        before = self._catalog.incomplete.get((type(item), item.key))
        others = self._catalog.put(item)
        if item.left_out and (before is None or before.left_out != item.left_out):
            _log.warning(
                "what no node can use of an object is left out, and the rest of it goes on",
                by_others=True,
                object=called(item),
                left_out="; ".join(item.left_out),
            )
        return others

    def _refuse(self, kind: str, key: ObjectKey, cause: str) -> None:
        """One that has no room stays as it was."""
        self._crowded.note(_LISTS[kind])
        self.unread.refuse(kind, key, cause)
        name = "/".join(key)
        _log.warning("an object is not kept", by_others=True, object=f"{kind} {name}", cause=cause)

    def _gone(
        self, what: type[Item], changes: ObjectChanges[AnyViewed], kept: Iterable[ObjectKey]
    ) -> list[ObjectKey]:
        """What to remove. The absence of all says nothing."""
        kind = _LISTS[what.__name__]
        there = self._listed[kind].hear(changes, partial(self._catalog.has, what))
        for key, cause in changes.crowded.items():
            self._refuse(what.__name__, key, cause)
        if there is None:
            return changes.gone
        is_believed = self._listed[kind].some
        if not is_believed:
            self._crowded.note(kind)  # what comes by events says of no other that it is gone
        self._crowded.hear_list()
        if not is_believed:
            _log.warning("the API server lists none, which is not believed", kind=kind)
            return []
        return [key for key in (*changes.gone, *kept) if key not in there]

    def _note(
        self,
        kind: str,
        told: dict[ServiceName, None],
        lines: list[bytes],
        why: str,
        *,
        all_told: bool,
    ) -> None:
        """Nothing is told or kept before both kinds were listed once: a Service whose endpoints
        were not heard of yet would refuse its clients, and be planned twice."""
        waits = self._waits
        waits.names.update(told)
        if self._journal is not None:
            waits.keep(lines)
        if all_told:
            waits.listed.add(kind)
        # A list without any is not believed, and mends nothing.
        is_whole = all(each.some for each in self._listed.values())
        is_mended = bool(self._catalog.damage) and is_whole
        if len(waits.listed) == len(self._listed) and (waits.names or is_mended):
            if is_mended:
                self._catalog.damage = ""
            names, noted = waits.take()
            if not self._catalog.damage:  # else the next start would take it for all there is
                self._keeping.note()
            if self._journal is not None:
                self._journal.note(noted)
            self._tell(names, why)
        if all_told:
            give_memory_back()

    # Keeping

    def keep_part(self) -> None:
        """What could be read of a damaged file is to stand in its place, as what it is. One of
        which nothing could be read is left: a later Limpet, or a disk that is well again, may have
        all of it."""
        if self._catalog.has_part:
            self.keep()

    async def _write(self) -> int:
        """As every source."""
        items: list[Item] = [*self._catalog, *self._catalog.all_slices()]
        noted = self._journal.end if self._journal is not None else 0
        is_part = bool(self._catalog.damage)
        size_bytes = await asyncio.to_thread(self._write_items, items, is_part)
        if self._journal is not None:
            self._journal.forget(noted)
        return size_bytes

    def _write_items(self, items: list[Item], is_part: bool) -> int:
        with refusals("make folder", self._path.parent):
            self._path.parent.mkdir(parents=True, exist_ok=True)
        # Not line by line: the room of 20,000 small objects is lost between those that stay.
        pieces = []
        for start in range(0, len(items), _AT_ONCE):
            pieces.append(encode_lines(items[start : start + _AT_ONCE]))
            time.sleep(REST_S)
        content = b"".join([*pieces, encode_end(len(items), is_part=is_part)])
        write_durably(self._path, content)
        give_memory_back()
        return len(content)
