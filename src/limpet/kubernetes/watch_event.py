"""Lines of a watch, read. Source: k8s.io/apimachinery/pkg/apis/meta/v1/watch.go."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Generic

import msgspec

from limpet.base.decoding import Decoder, json_decoder
from limpet.kubernetes.kinds.objects import AnyViewed, Resource, Status


@dataclass(frozen=True, slots=True)
class ObjectPut(Generic[AnyViewed]):
    """An object that is there, as it is now."""

    item: AnyViewed


@dataclass(frozen=True, slots=True)
class ObjectDeleted(Generic[AnyViewed]):
    """An object that is gone, as it was at the end."""

    item: AnyViewed


@dataclass(frozen=True, slots=True)
class WatchBookmark:
    """All up to this version has been told."""

    resource_version: str


@dataclass(frozen=True, slots=True)
class WatchEnded:
    """The watch ends here, and why."""

    status: Status


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An object that is not as its kind is: it is passed over, and the others count."""

    name: str
    cause: str
    resource_version: str = ""
    namespace: str = ""
    is_gone: bool = False
    """It was deleted: what cannot be read of it matters no more."""


WatchEvent = (
    ObjectPut[AnyViewed] | ObjectDeleted[AnyViewed] | WatchBookmark | WatchEnded | Unreadable
)


class _Line(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Versioned(msgspec.Struct, frozen=True, rename="camel"):
    """What an object has that is no other, as a bookmark; its name may be any text."""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class _Marked(msgspec.Struct, frozen=True):
    metadata: _Versioned = _Versioned()


def read_event(line: bytes, resource: Resource[AnyViewed]) -> WatchEvent[AnyViewed]:
    """Raises: ValueError in words for what is no line of a watch."""
    try:
        read = _decoder(_Line).decode(line)
        match read.type:
            case "ADDED" | "MODIFIED" | "DELETED":
                item = read_item(read.object, resource)
                if isinstance(item, Unreadable):
                    return replace(item, is_gone=read.type == "DELETED")
                return ObjectDeleted(item) if read.type == "DELETED" else ObjectPut(item)
            case "BOOKMARK":
                return WatchBookmark(
                    _decoder(_Marked).decode(read.object).metadata.resource_version
                )
            case "ERROR":
                return WatchEnded(_decoder(Status).decode(read.object))
    except msgspec.MsgspecError as error:
        raise ValueError(f"a line of it is no event: {error}") from error
    raise ValueError(f"a line of it is no event: its type is {read.type[:40]!r}")


def read_item(raw: msgspec.Raw, resource: Resource[AnyViewed]) -> AnyViewed | Unreadable:
    """One object; of one that is not as its kind is, what can be told of it."""
    try:
        item: AnyViewed = _decoder(resource.type).decode(raw)
    except msgspec.MsgspecError as error:
        return _unreadable(raw, str(error))
    if not item.metadata.name:
        return _unreadable(raw, "it has no name")
    return item


def _unreadable(raw: msgspec.Raw, cause: str) -> Unreadable:
    try:
        found: _Versioned = _decoder(_Marked).decode(raw).metadata
    except msgspec.MsgspecError:
        return Unreadable("an object without a name", cause)
    name = found.name or "an object without a name"
    return Unreadable(name, cause, found.resource_version, found.namespace)


@cache
def _decoder(kind: type[Any]) -> Decoder[Any]:
    return json_decoder(kind)
