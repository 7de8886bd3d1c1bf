"""Items that nobody looks at: ConfigMaps, and Secrets of what is secret. Pure.

One that says no `version` in its data is of version 1, as all are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from limpet.controller.store.kubernetes.items import ItemObject, ObjectPlace
from limpet.controller.store.kubernetes.object_names import escape, unescape
from limpet.kubernetes.kinds.objects import Metadata, Resource
from limpet.kubernetes.kinds.resources import GROUP, ResourceError, read_field

KIND_LABEL = f"{GROUP}/kind"
MANAGED_BY = {"app.kubernetes.io/managed-by": "limpet"}
_FIRST = "1"
_SECRETS = Resource("Secret", "secrets", ItemObject, namespaced=True)
_CONFIG_MAPS = Resource("ConfigMap", "configmaps", ItemObject, namespaced=True)


@dataclass(frozen=True, slots=True)
class PlainRow:
    """A ConfigMap, or a Secret, for each item; its name follows from the item's."""

    kind: str
    secret: bool = False

    @property
    def resource(self) -> Resource[ItemObject]:
        return _SECRETS if self.secret else _CONFIG_MAPS

    @property
    def labels(self) -> str:
        return f"{KIND_LABEL}={self.kind}"

    @property
    def fields(self) -> tuple[str, ...]:
        return ("data",) if self.secret else ("data", "binaryData")

    def places(self, name: str, value: bytes) -> tuple[ObjectPlace, ...]:
        return (ObjectPlace(self.object_name(name)),)

    def object_name(self, name: str) -> str:
        """Raises: ResourceError for a name that is no text."""
        try:
            return f"limpet-{self.kind}" + ("" if name == self.kind else f"-{escape(name)}")
        except UnicodeEncodeError as error:
            raise ResourceError(f"name an object after {self.kind} {name!r}: {error}") from error

    def place(self, found: ItemObject) -> ObjectPlace:
        return ObjectPlace(found.metadata.name)

    def encode(self, name: str, value: bytes, place: ObjectPlace) -> ItemObject:
        metadata = Metadata(name=place.object_name, labels={**MANAGED_BY, KIND_LABEL: self.kind})
        if self.secret:
            data = {"name": _base64(name.encode()), "record": _base64(value)}
            return ItemObject(metadata=metadata, data=data)
        try:
            return ItemObject(metadata=metadata, data={"name": name, "record": value.decode()})
        except UnicodeDecodeError:
            binary = {"record": _base64(value)}
            return ItemObject(metadata=metadata, data={"name": name}, binary_data=binary)

    def decode(self, found: ItemObject) -> tuple[str, bytes]:
        what = f"{self.resource.kind} {found.metadata.name}"
        self._check_version(what, found)
        if self.secret:
            data = read_field(what, found.builtins, "data", dict[str, bytes])
            return _text(what, _part(what, data, "name")), _part(what, data, "record")
        texts = read_field(what, found.builtins, "data", dict[str, str])
        if found.binary_data:
            binary = read_field(what, found.builtins, "binaryData", dict[str, bytes])
            return _part(what, texts, "name"), _part(what, binary, "record")
        return _part(what, texts, "name"), _part(what, texts, "record").encode()

    def _check_version(self, what: str, found: ItemObject) -> None:
        """Raises: ResourceError for one of a later Limpet."""
        version = (found.data or {}).get("version", _FIRST)
        if version not in (_FIRST, _base64(_FIRST.encode())):
            raise ResourceError(
                f"read {what}: data.version: it is {version!r:.80}, and this Limpet knows {_FIRST} "
                "(run the newer Limpet that wrote it; it was not touched)"
            )

    def guess(self, found: ItemObject) -> str:
        name = (found.data or {}).get("name")
        if isinstance(name, str) and not self.secret:
            return name
        return unescape(found.metadata.name.removeprefix(f"limpet-{self.kind}").removeprefix("-"))

    def rank(self, found: ItemObject) -> tuple[int, ...]:
        return ()

    @property
    def is_others_too(self) -> bool:
        return False


def _part(what: str, data: Mapping[str, Any], key: str) -> Any:
    if key not in data:
        raise ResourceError(
            f"read {what}: data.{key}: it is missing (put a back-up of the object in its place)"
        )
    return data[key]


def _text(what: str, name: bytes) -> str:
    """Raises: ResourceError."""
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise ResourceError(f"read {what}: data.name: it is no text: {error.reason}") from error


def _base64(value: bytes) -> str:
    text: str = msgspec.to_builtins(value)
    return text
