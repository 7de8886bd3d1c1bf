"""Items of the store <-> objects of the API server, a row for each kind. Pure.

What people look at is a custom resource; what is secret is a Secret; the rest are ConfigMaps.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import msgspec

from limpet.cluster.kinds import KINDS, NETWORK
from limpet.cluster.kinds.network import TunnelBackend
from limpet.cluster.seal import read_sealed
from limpet.controller.communities.selectors import SelectorError, parse_selector
from limpet.controller.state.records import (
    AUTHORITY,
    COMMUNITY,
    NODE,
    PRESENCE,
    TOKEN,
    CommunityRecord,
    DocumentRecord,
    NodeRecord,
    PresenceRecord,
)
from limpet.kubernetes import resources
from limpet.kubernetes.objects import Metadata, Object, Resource
from limpet.kubernetes.resources import (
    GROUP,
    NETWORK_OBJECT,
    UID_LABEL,
    VERSION,
    ResourceError,
    document_object,
    is_object_name,
    node_object_names,
    read_document,
    read_field,
)

KIND_LABEL = f"{GROUP}/kind"
MANAGED_BY = {"app.kubernetes.io/managed-by": "limpet"}
NAME_ANNOTATION = f"{GROUP}/name"
_LONGEST_NAME = 200
_PLAIN = re.compile(r"[a-z0-9]")


class Kept(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
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
class Place:
    """Where an item's object is: its name, and that of the node that it is of."""

    object_name: str
    node: str = ""


class Row(Protocol):
    """How items of one kind are objects."""

    @property
    def resource(self) -> Resource[Kept]: ...

    @property
    def labels(self) -> str:
        """Selector of its objects."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields of an object that hold the item; all others are left as they are."""

    def places(self, name: str, value: bytes) -> tuple[Place, ...]:
        """Where a new item goes, the best first: the next where another item is there.

        Raises: ResourceError for an item that can have no object.
        """

    def place(self, found: Kept) -> Place: ...

    def encode(self, name: str, value: bytes, place: Place) -> Kept:
        """Raises: ResourceError."""

    def decode(self, found: Kept) -> tuple[str, bytes]:
        """Name and value of the item. Raises: ResourceError."""

    def guess(self, found: Kept) -> str:
        """Name of the item of an object that nobody can read, as far as it can be told."""

    def rank(self, found: Kept) -> tuple[int, ...]:
        """Of two objects of one item the higher one counts."""

    @property
    def is_others_too(self) -> bool:
        """Nodes or people write it as well: what nobody can read is passed over and logged."""


@dataclass(frozen=True, slots=True)
class PlainRow:
    """A ConfigMap, or a Secret, for each item; its name follows from the item's."""

    kind: str
    secret: bool = False

    @property
    def resource(self) -> Resource[Kept]:
        return _SECRETS if self.secret else _CONFIG_MAPS

    @property
    def labels(self) -> str:
        return f"{KIND_LABEL}={self.kind}"

    @property
    def fields(self) -> tuple[str, ...]:
        return ("data",) if self.secret else ("data", "binaryData")

    def places(self, name: str, value: bytes) -> tuple[Place, ...]:
        return (Place(self.object_name(name)),)

    def object_name(self, name: str) -> str:
        """Raises: ResourceError for a name that is no text."""
        try:
            return f"limpet-{self.kind}" + ("" if name == self.kind else f"-{escape(name)}")
        except UnicodeEncodeError as error:
            raise ResourceError(f"name an object after {self.kind} {name!r}: {error}") from error

    def place(self, found: Kept) -> Place:
        return Place(found.metadata.name)

    def encode(self, name: str, value: bytes, place: Place) -> Kept:
        metadata = Metadata(name=place.object_name, labels={**MANAGED_BY, KIND_LABEL: self.kind})
        if self.secret:
            data = {"name": _base64(name.encode()), "record": _base64(value)}
            return Kept(metadata=metadata, data=data)
        try:
            return Kept(metadata=metadata, data={"name": name, "record": value.decode()})
        except UnicodeDecodeError:
            binary = {"record": _base64(value)}
            return Kept(metadata=metadata, data={"name": name}, binary_data=binary)

    def decode(self, found: Kept) -> tuple[str, bytes]:
        what = f"{self.resource.kind} {found.metadata.name}"
        if self.secret:
            data = read_field(what, found.builtins, "data", dict[str, bytes])
            return _part(what, data, "name").decode(), _part(what, data, "record")
        texts = read_field(what, found.builtins, "data", dict[str, str])
        if found.binary_data:
            binary = read_field(what, found.builtins, "binaryData", dict[str, bytes])
            return _part(what, texts, "name"), _part(what, binary, "record")
        return _part(what, texts, "name"), _part(what, texts, "record").encode()

    def guess(self, found: Kept) -> str:
        name = (found.data or {}).get("name")
        if isinstance(name, str) and not self.secret:
            return name
        return unescape(found.metadata.name.removeprefix(f"limpet-{self.kind}").removeprefix("-"))

    def rank(self, found: Kept) -> tuple[int, ...]:
        return ()

    @property
    def is_others_too(self) -> bool:
        return False


class _GrantExtra(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    joined_at_seconds: float = 0.0
    awaits_replacement: bool = False
    replaced_by: str = ""
    reported_epoch: int = 0
    communities: tuple[str, ...] = ()
    node_labels: tuple[str, ...] = ()
    node_uid: str = msgspec.field(default="", name="nodeUID")
    node_gone_at_seconds: float | None = None


class _PresenceExtra(msgspec.Struct, frozen=True, omit_defaults=True):
    at_seconds: float | None = msgspec.field(default=None, name="atSeconds")
    retired_boot_ids: tuple[str, ...] = msgspec.field(default=(), name="retiredBootIDs")
    cloned_at_seconds: float | None = msgspec.field(default=None, name="clonedAtSeconds")


@dataclass(frozen=True, slots=True)
class DocumentRow:
    """A custom resource that carries a signed document."""

    kind: str

    @property
    def resource(self) -> Resource[Kept]:
        return _custom(resources.RESOURCES[self.kind])

    @property
    def labels(self) -> str:
        return ""

    @property
    def fields(self) -> tuple[str, ...]:
        return ("spec", "document", "record")

    def places(self, name: str, value: bytes) -> tuple[Place, ...]:
        """Of a presence: none; it is where the grant of its node is."""
        if self.kind == NODE:
            node = read_sealed(_record(NodeRecord, value).sealed, KINDS).value.name
            return tuple(Place(each, node) for each in node_object_names(node, name))
        return () if self.kind == PRESENCE else (Place(NETWORK_OBJECT),)

    def place(self, found: Kept) -> Place:
        spec = found.spec if isinstance(found.spec, Mapping) else {}
        node = spec.get("node")
        return Place(found.metadata.name, node if isinstance(node, str) else "")

    def encode(self, name: str, value: bytes, place: Place) -> Kept:
        record, extra = self._record(value)
        document = read_sealed(record.sealed, KINDS)
        body = document_object(document, place.object_name, place.node)
        metadata = Metadata(**{**body["metadata"], "name": place.object_name})
        return Kept(metadata=metadata, spec=body["spec"], document=body["document"], record=extra)

    def _record(self, value: bytes) -> tuple[Any, Any]:
        """The record, and what of it stands beside the document."""
        if self.kind == NODE:
            node = _record(NodeRecord, value)
            return node, msgspec.to_builtins(
                _GrantExtra(
                    node.joined_at_s,
                    node.awaits_replacement,
                    node.replaced_by,
                    node.reported_epoch,
                    node.communities,
                    node.node_labels,
                    node.node_uid,
                    node.node_gone_at_s,
                )
            )
        if self.kind == PRESENCE:
            said = _record(PresenceRecord, value)
            return said, msgspec.to_builtins(
                _PresenceExtra(said.at_s, said.retired_boot_ids, said.cloned_at_s)
            )
        return _record(DocumentRecord, value), None

    def decode(self, found: Kept) -> tuple[str, bytes]:
        document = read_document(self.kind, found.builtins)
        what = f"{self.resource.kind} {found.metadata.name}"
        if self.kind == NODE:
            node = document.value.name
            if found.metadata.name not in node_object_names(node, document.name):
                raise ResourceError(
                    f"read {what}: document: it is that of node {node} ({document.name}), which "
                    "somebody has put here (delete the object; the right one is written again)"
                )
        body = found.builtins | {"record": found.record or {}}
        record: NodeRecord | PresenceRecord | DocumentRecord
        if self.kind == NODE:
            kept = read_field(what, body, "record", _GrantExtra)
            record = NodeRecord(
                document.sealed,
                kept.joined_at_seconds,
                kept.awaits_replacement,
                kept.replaced_by,
                kept.reported_epoch,
                kept.communities,
                kept.node_labels,
                kept.node_uid,
                kept.node_gone_at_seconds,
            )
        elif self.kind == PRESENCE:
            heard = read_field(what, body, "record", _PresenceExtra)
            at_s = heard.at_seconds
            record = PresenceRecord(
                document.sealed,
                document.version,
                document.value.boot_id,
                heard.retired_boot_ids,
                _created_at_s(found) if at_s is None else at_s,
                heard.cloned_at_seconds,
            )
        else:
            record = DocumentRecord(document.sealed)
        return document.name, msgspec.json.encode(record)

    def guess(self, found: Kept) -> str:
        if self.kind == NETWORK.name:
            return NETWORK.name
        spec = found.spec if isinstance(found.spec, Mapping) else {}
        uid = (found.metadata.labels or {}).get(UID_LABEL) or spec.get("uid")
        return uid if isinstance(uid, str) else ""

    def rank(self, found: Kept) -> tuple[int, ...]:
        try:
            document = read_document(self.kind, found.builtins)
        except ResourceError:
            return (-1,)
        return (int(document.tombstone), document.version)

    @property
    def is_others_too(self) -> bool:
        return self.kind == PRESENCE


@dataclass(frozen=True, slots=True)
class CommunityRow:
    """A Community. People write it too; one that nobody can read holds up no other."""

    kind: str = COMMUNITY

    @property
    def resource(self) -> Resource[Kept]:
        return _custom(resources.COMMUNITY)

    @property
    def labels(self) -> str:
        return ""

    @property
    def fields(self) -> tuple[str, ...]:
        return ("spec/members", "spec/nodeSelector", "spec/tunnelBackend")

    def places(self, name: str, value: bytes) -> tuple[Place, ...]:
        return (Place(name if is_object_name(name) else f"limpet-{escape(name)}"),)

    def place(self, found: Kept) -> Place:
        return Place(found.metadata.name)

    def encode(self, name: str, value: bytes, place: Place) -> Kept:
        record: CommunityRecord = _record(CommunityRecord, value)
        spec: dict[str, Any] = {}
        if record.members:
            spec["members"] = list(record.members)
        if record.selector:
            spec["nodeSelector"] = node_selector(record.selector)
        if record.tunnel_backend is not None:
            spec["tunnelBackend"] = record.tunnel_backend.value
        annotations = None if place.object_name == name else {NAME_ANNOTATION: name}
        metadata = Metadata(name=place.object_name, annotations=annotations)
        return Kept(metadata=metadata, spec=spec)

    def decode(self, found: Kept) -> tuple[str, bytes]:
        resources.check_object(resources.COMMUNITY, found.builtins)
        what = f"Community {found.metadata.name}"
        spec = read_field(what, found.builtins | {"spec": found.spec or {}}, "spec", _Spec)
        name = (found.metadata.annotations or {}).get(NAME_ANNOTATION, found.metadata.name)
        selector = spec.node_selector.text(what) if spec.node_selector is not None else ""
        record = CommunityRecord(selector, spec.members, spec.tunnel_backend)
        return name, msgspec.json.encode(record)

    def guess(self, found: Kept) -> str:
        return (found.metadata.annotations or {}).get(NAME_ANNOTATION, found.metadata.name)

    def rank(self, found: Kept) -> tuple[int, ...]:
        return ()

    @property
    def is_others_too(self) -> bool:
        return True


class _Requirement(msgspec.Struct, frozen=True):
    key: str
    operator: str
    values: tuple[str, ...] = ()


class _NodeSelector(msgspec.Struct, frozen=True, rename="camel"):
    match_labels: dict[str, str] = {}
    match_expressions: tuple[_Requirement, ...] = ()

    def text(self, what: str) -> str:
        """As a person writes it. Raises: ResourceError, which begins with `what`."""
        parts = [f"{key}={value}" for key, value in self.match_labels.items()]
        for number, each in enumerate(self.match_expressions):
            at = f"read {what}: spec.nodeSelector.matchExpressions[{number}]"
            if each.operator == "In" and len(each.values) == 1:
                parts.append(f"{each.key}={each.values[0]}")
            elif each.operator == "NotIn" and each.values:
                parts += [f"{each.key}!={value}" for value in each.values]
            else:
                raise ResourceError(
                    f"{at}: {each.operator} of {len(each.values)} values is not known here "
                    "(In one value, or NotIn some)"
                )
        try:
            return str(parse_selector(",".join(parts)))
        except SelectorError as error:
            raise ResourceError(f"read {what}: spec.nodeSelector: {error}") from error


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    members: tuple[str, ...] = ()
    node_selector: _NodeSelector | None = None
    tunnel_backend: TunnelBackend | None = None


def node_selector(text: str) -> dict[str, Any]:
    """A selector as Kubernetes writes it: equal ones as labels. Raises: SelectorError."""
    found: dict[str, Any] = {}
    for each in parse_selector(text).requirements:
        if each.is_equal:
            found.setdefault("matchLabels", {})[each.key] = each.value
        else:
            found.setdefault("matchExpressions", []).append(
                {"key": each.key, "operator": "NotIn", "values": [each.value]}
            )
    return found


def row_of(kind: str) -> Row:
    """What is in no table is a ConfigMap."""
    return _ROWS.get(kind) or PlainRow(kind)


_ROWS: dict[str, Row] = {
    NETWORK.name: DocumentRow(NETWORK.name),
    NODE: DocumentRow(NODE),
    PRESENCE: DocumentRow(PRESENCE),
    COMMUNITY: CommunityRow(),
    AUTHORITY: PlainRow(AUTHORITY, secret=True),
    TOKEN: PlainRow(TOKEN, secret=True),
}
_SECRETS = Resource("Secret", "secrets", Kept, namespaced=True)
_CONFIG_MAPS = Resource("ConfigMap", "configmaps", Kept, namespaced=True)


def _custom(resource: resources.Resource) -> Resource[Kept]:
    return Resource(resource.object_kind, resource.plural, Kept, GROUP, VERSION)


def escape(name: str) -> str:
    """As a part of an object's name; no two names give one. Raises: UnicodeEncodeError."""
    encoded = name.encode()
    if not 0 < len(encoded) <= _LONGEST_NAME // 3:
        return "h--" + hashlib.sha256(encoded).hexdigest()
    text = encoded.decode("latin-1")
    return "".join(
        each if _PLAIN.fullmatch(each) or _is_inner_dot(text, at) else f"-{ord(each):02x}"
        for at, each in enumerate(text)
    )


def unescape(text: str) -> str:
    """The name that `escape` made this of; empty: it is none of those."""
    parts = text.split("-")
    try:
        found = parts[0].encode() + b"".join(
            bytes.fromhex(part[:2]) + part[2:].encode() for part in parts[1:]
        )
        return found.decode()
    except ValueError:
        return ""


def _is_inner_dot(text: str, at: int) -> bool:
    """A dot between two plain characters; an object's name has no others."""
    beside = text[at - 1 : at] + text[at + 1 : at + 2]
    return text[at] == "." and len(beside) == 2 and all(map(_PLAIN.fullmatch, beside))


def _record(kind: type[Any], value: bytes) -> Any:
    """Raises: ResourceError."""
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.MsgspecError as error:
        raise ResourceError(f"write {kind.__name__}: {error}") from error


def _part(what: str, data: Mapping[str, Any], key: str) -> Any:
    if key not in data:
        raise ResourceError(
            f"read {what}: data.{key}: it is missing (put a back-up of the object in its place)"
        )
    return data[key]


def _base64(value: bytes) -> str:
    text: str = msgspec.to_builtins(value)
    return text


def _created_at_s(found: Kept) -> float:
    """By the API server's clock; 0 where it does not say."""
    try:
        return datetime.fromisoformat(found.metadata.creation_timestamp or "").timestamp()
    except ValueError:
        return 0.0


def label_of(kind: str, name: str) -> str:
    """Selector of the objects of one item, where its object may have several names; or empty."""
    return f"{UID_LABEL}={name}" if kind in (NODE, PRESENCE) else ""


def operations(item: Kept, fields: tuple[str, ...]) -> list[dict[str, Any]]:
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
