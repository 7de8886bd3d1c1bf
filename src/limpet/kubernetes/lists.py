"""What is asked of a list of objects, and a part of the answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic

import msgspec

from limpet.kubernetes.kinds.objects import AnyViewed, Resource
from limpet.kubernetes.watch_event import Unreadable, read_item


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection of objects of a kind; by default all."""

    namespace: str = ""
    labels: str = ""
    """A selector as kubectl takes it."""
    fields: str = ""

    @property
    def query(self) -> dict[str, str]:
        asked = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {key: value for key, value in asked.items() if value}


ALL = Selection()


@dataclass(frozen=True, slots=True)
class PageOfList(Generic[AnyViewed]):
    """A part of a list."""

    items: list[AnyViewed]
    unreadable: list[Unreadable]
    resource_version: str
    """Version of the whole list: to watch from."""
    next: str
    """Token to go on with; empty: this is the last part."""
    more: bool = False
    """The same answer has further parts."""


class _ListMetadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class ListDocument(msgspec.Struct, frozen=True):
    metadata: _ListMetadata = _ListMetadata()
    items: list[msgspec.Raw] | None = None


def read_parts(
    found: ListDocument, resource: Resource[AnyViewed], most: int
) -> Iterator[PageOfList[AnyViewed]]:
    """Parts of one answer, at least one, of `most` objects each, read when they are asked for."""
    raw, metadata = found.items or [], found.metadata
    for start in range(0, max(len(raw), 1), most):
        items, unreadable = read_items(raw[start : start + most], resource)
        more = start + most < len(raw)
        version, go_on = metadata.resource_version, metadata.continue_
        yield PageOfList(items, unreadable, version, go_on, more=more)


def read_items(
    raw: list[msgspec.Raw], resource: Resource[AnyViewed]
) -> tuple[list[AnyViewed], list[Unreadable]]:
    items: list[AnyViewed] = []
    unreadable: list[Unreadable] = []
    for each in raw:
        item = read_item(each, resource)
        if isinstance(item, Unreadable):
            unreadable.append(item)
        else:
            items.append(item)
    return items, unreadable
