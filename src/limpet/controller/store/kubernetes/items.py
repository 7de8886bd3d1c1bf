"""Objects of the API server that hold items of the store, and what a kind says of its own. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from limpet.base.decoding import decode_json
from limpet.controller.registry.records import NODE, PRESENCE
from limpet.kubernetes.kinds import resources
from limpet.kubernetes.kinds.objects import Object, Resource
from limpet.kubernetes.kinds.resources import (
    GROUP,
    UID_LABEL,
    VERSION,
    ResourceError,
)


class ItemObject(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """An object that holds an item, of whatever resource."""

    spec: Any = None
    document: Any = None
    record: Any = None
    data: dict[str, Any] | None = None
    binary_data: dict[str, Any] | None = None

    @property
    def builtins(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """Where an item's object is: its name, and that of the node that it is of."""

    object_name: str
    node: str = ""


class Row(Protocol):
    """How items of one kind are objects."""

    @property
    def resource(self) -> Resource[ItemObject]: ...

    @property
    def labels(self) -> str:
        """Selector of its objects."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields of an object that hold the item; all others are left as they are."""

    def places(self, name: str, value: bytes) -> tuple[ObjectPlace, ...]:
        """Where a new item goes, the best first: the next where another item is there.

        Raises: ResourceError for an item that can have no object.
        """

    def place(self, found: ItemObject) -> ObjectPlace: ...

    def encode(self, name: str, value: bytes, place: ObjectPlace) -> ItemObject:
        """Raises: ResourceError."""

    def decode(self, found: ItemObject) -> tuple[str, bytes]:
        """Name and value of the item. Raises: ResourceError."""

    def guess(self, found: ItemObject) -> str:
        """Name of the item of an object that nobody can read, as far as it can be told."""

    def rank(self, found: ItemObject) -> tuple[int, ...]:
        """Rank of an object: of two objects of one item the higher one counts."""

    @property
    def is_others_too(self) -> bool:
        """Nodes or people write it as well: what nobody can read is passed over and logged."""


def custom(resource: resources.CustomResource) -> Resource[ItemObject]:
    """A resource of ours, as the store reads it."""
    return Resource(resource.object_kind, resource.plural, ItemObject, GROUP, VERSION)


def read_record(kind: type[Any], value: bytes) -> Any:
    """A record of the store. Raises: ResourceError."""
    try:
        return decode_json(value, kind)
    except msgspec.MsgspecError as error:
        raise ResourceError(f"write {kind.__name__}: {error}") from error


def label_of(kind: str, name: str) -> str:
    """Selector of the objects of one item, where its object may have several names; or empty."""
    return f"{UID_LABEL}={name}" if kind in (NODE, PRESENCE) else ""


def operations(item: ItemObject, fields: tuple[str, ...]) -> list[dict[str, Any]]:
    """A JSON patch (RFC 6902) that puts the item into its object, and leaves all else."""
    body = json.loads(msgspec.json.encode(item.builtins))
    found: list[dict[str, Any]] = []
    for path in fields:
        at: Any = body
        for part in path.split("/"):
            at = (at or {}).get(part)
        # What may not be there is added first: taking away what is not there is refused.
        found.append({"op": "add", "path": f"/{path}", "value": at if at is not None else {}})
        if at is None:
            found.append({"op": "remove", "path": f"/{path}"})
    return found
