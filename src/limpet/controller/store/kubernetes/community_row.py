"""Communities, which people write too. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from limpet.cluster.kinds.network import TunnelBackend
from limpet.controller.communities.selectors import SelectorError, parse_selector
from limpet.controller.registry.records import COMMUNITY, CommunityRecord
from limpet.controller.store.kubernetes.items import ItemObject, ObjectPlace, custom, read_record
from limpet.controller.store.kubernetes.object_names import escape
from limpet.kubernetes.kinds import resources
from limpet.kubernetes.kinds.objects import Metadata, Resource
from limpet.kubernetes.kinds.resources import (
    GROUP,
    ResourceError,
    is_object_name,
    read_field,
)

NAME_ANNOTATION = f"{GROUP}/name"


@dataclass(frozen=True, slots=True)
class CommunityRow:
    """A Community. People write it too; one that nobody can read holds up no other."""

    kind: str = COMMUNITY

    @property
    def resource(self) -> Resource[ItemObject]:
        return custom(resources.COMMUNITY)

    @property
    def labels(self) -> str:
        return ""

    @property
    def fields(self) -> tuple[str, ...]:
        return ("spec/members", "spec/nodeSelector", "spec/tunnelBackend")

    def places(self, name: str, value: bytes) -> tuple[ObjectPlace, ...]:
        return (ObjectPlace(name if is_object_name(name) else f"limpet-{escape(name)}"),)

    def place(self, found: ItemObject) -> ObjectPlace:
        return ObjectPlace(found.metadata.name)

    def encode(self, name: str, value: bytes, place: ObjectPlace) -> ItemObject:
        record: CommunityRecord = read_record(CommunityRecord, value)
        spec: dict[str, Any] = {}
        if record.members:
            spec["members"] = list(record.members)
        if record.selector:
            spec["nodeSelector"] = node_selector(record.selector)
        if record.tunnel_backend is not None:
            spec["tunnelBackend"] = record.tunnel_backend.value
        annotations = None if place.object_name == name else {NAME_ANNOTATION: name}
        metadata = Metadata(name=place.object_name, annotations=annotations)
        return ItemObject(metadata=metadata, spec=spec)

    def decode(self, found: ItemObject) -> tuple[str, bytes]:
        resources.check_object(resources.COMMUNITY, found.builtins)
        what = f"Community {found.metadata.name}"
        spec = read_field(what, found.builtins | {"spec": found.spec or {}}, "spec", _Spec)
        name = (found.metadata.annotations or {}).get(NAME_ANNOTATION, found.metadata.name)
        selector = spec.node_selector.text(what) if spec.node_selector is not None else ""
        record = CommunityRecord(selector, spec.members, spec.tunnel_backend)
        return name, msgspec.json.encode(record)

    def guess(self, found: ItemObject) -> str:
        return (found.metadata.annotations or {}).get(NAME_ANNOTATION, found.metadata.name)

    def rank(self, found: ItemObject) -> tuple[int, ...]:
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
