"""Custom resources that carry signed documents, and what the controller notes beside them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from limpet.cluster.kinds import KINDS, NETWORK
from limpet.cluster.seal import read_sealed
from limpet.controller.registry.records import (
    NODE,
    PRESENCE,
    DocumentRecord,
    NodeRecord,
    PresenceRecord,
)
from limpet.controller.store.kubernetes.items import ItemObject, ObjectPlace, custom, read_record
from limpet.kubernetes.kinds import resources
from limpet.kubernetes.kinds.objects import Metadata, Resource
from limpet.kubernetes.kinds.resources import (
    NETWORK_OBJECT,
    UID_LABEL,
    ResourceError,
    document_object,
    node_object_names,
    read_document,
    read_field,
)


class _GrantExtra(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    joined_at_seconds: float = 0.0
    awaits_replacement: bool = False
    replaced_by: str = ""
    reported_epoch: int = 0
    communities: tuple[str, ...] = ()
    node_labels: tuple[str, ...] = ()
    node_uid: str = msgspec.field(default="", name="nodeUID")
    node_gone_at_seconds: float | None = None
    joined_by: str = ""


class _PresenceExtra(msgspec.Struct, frozen=True, omit_defaults=True):
    at_seconds: float | None = msgspec.field(default=None, name="atSeconds")
    retired_boot_ids: tuple[str, ...] = msgspec.field(default=(), name="retiredBootIDs")
    cloned_at_seconds: float | None = msgspec.field(default=None, name="clonedAtSeconds")


@dataclass(frozen=True, slots=True)
class DocumentRow:
    """A custom resource that carries a signed document."""

    kind: str

    @property
    def resource(self) -> Resource[ItemObject]:
        return custom(resources.RESOURCES[self.kind])

    @property
    def labels(self) -> str:
        return ""

    @property
    def fields(self) -> tuple[str, ...]:
        return ("spec", "document", "record")

    def places(self, name: str, value: bytes) -> tuple[ObjectPlace, ...]:
        """Places of an item; none for a presence: it is where the grant of its node is."""
        if self.kind == NODE:
            node = read_sealed(read_record(NodeRecord, value).sealed, KINDS).value.name
            return tuple(ObjectPlace(each, node) for each in node_object_names(node, name))
        return () if self.kind == PRESENCE else (ObjectPlace(NETWORK_OBJECT),)

    def place(self, found: ItemObject) -> ObjectPlace:
        spec = found.spec if isinstance(found.spec, Mapping) else {}
        node = spec.get("node")
        return ObjectPlace(found.metadata.name, node if isinstance(node, str) else "")

    def encode(self, name: str, value: bytes, place: ObjectPlace) -> ItemObject:
        record, extra = self._record(value)
        document = read_sealed(record.sealed, KINDS)
        body = document_object(document, place.object_name, place.node)
        metadata = Metadata(**{**body["metadata"], "name": place.object_name})
        return ItemObject(
            metadata=metadata, spec=body["spec"], document=body["document"], record=extra
        )

    def _record(self, value: bytes) -> tuple[Any, Any]:
        """The record, and what of it stands beside the document."""
        if self.kind == NODE:
            node = read_record(NodeRecord, value)
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
                    node.joined_by,
                )
            )
        if self.kind == PRESENCE:
            said = read_record(PresenceRecord, value)
            return said, msgspec.to_builtins(
                _PresenceExtra(said.at_s, said.retired_boot_ids, said.cloned_at_s)
            )
        return read_record(DocumentRecord, value), None

    def decode(self, found: ItemObject) -> tuple[str, bytes]:
        document = read_document(self.kind, found.builtins)
        what = f"{self.resource.kind} {found.metadata.name}"
        if self.kind == NODE:
            node = document.value.name
            if found.metadata.name not in node_object_names(node, document.name):
                raise ResourceError(
                    f"read {what}: document: it is that of node {node} ({document.name}), which "
                    "somebody has put here (delete the object; the right one is written again)"
                )
        if self.kind == PRESENCE:
            self._check_place(what, found, document.name)
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
                kept.joined_by,
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

    def _check_place(self, what: str, found: ItemObject, uid: str) -> None:
        """An object is that of the node in its name and `spec.node`, where no other's account can
        write. Raises: ResourceError for one that says otherwise than its document."""
        spec = found.spec if isinstance(found.spec, Mapping) else {}
        label = (found.metadata.labels or {}).get(UID_LABEL, uid)
        names = node_object_names(self.place(found).node, uid)
        if (label, spec.get("uid", uid)) != (uid, uid) or found.metadata.name not in names:
            raise ResourceError(
                f"read {what}: document: it is that of the machine {uid}, whose object this is not "
                "(delete the object; who has signed it writes it again)"
            )

    def guess(self, found: ItemObject) -> str:
        if self.kind == NETWORK.name:
            return NETWORK.name
        spec = found.spec if isinstance(found.spec, Mapping) else {}
        uid = (found.metadata.labels or {}).get(UID_LABEL) or spec.get("uid")
        return uid if isinstance(uid, str) else ""

    def rank(self, found: ItemObject) -> tuple[int, ...]:
        try:
            document = read_document(self.kind, found.builtins)
        except ResourceError:
            return (-1,)
        return (document.era, int(document.tombstone), document.version)

    @property
    def is_others_too(self) -> bool:
        return self.kind == PRESENCE


def _created_at_s(found: ItemObject) -> float:
    """By the API server's clock; 0 where it does not say."""
    try:
        return datetime.fromisoformat(found.metadata.creation_timestamp or "").timestamp()
    except ValueError:
        return 0.0
