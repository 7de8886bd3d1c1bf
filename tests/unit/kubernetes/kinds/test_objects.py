"""What an API server, or a cache of it, says of objects."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from limpet.kubernetes.kinds.objects import Resource, Viewed
from limpet.kubernetes.lists import ListDocument, read_parts
from limpet.kubernetes.watch_event import ObjectPut, Unreadable, read_event

_NODES = Resource("Node", "nodes", Viewed)


def event(**metadata: Any) -> bytes:
    return json.dumps({"type": "ADDED", "object": {"metadata": metadata}}).encode()


@pytest.mark.parametrize(
    "metadata",
    [
        {"name": "web\nforged"},
        {"name": "web\x1b[2J"},
        {"name": "a\u202eb"},
        {"name": "a b"},
        {"name": "a" * 254},
        {"name": "web", "namespace": "kube\nsystem"},
        {"name": "web", "uid": "\x00"},
        {"name": "web", "labels": {"a\n": "b"}},
        {"name": "web", "labels": {"a": "b\x1b[2J"}},
        {"name": "web", "labels": {"a": "b" * 64}},
        {"name": "web", "annotations": {"a\r": "b"}},
        {"name": "web\n"},
    ],
)
def test_an_object_that_no_kubernetes_has_is_passed_over(metadata: dict[str, Any]) -> None:
    found = read_event(event(**metadata, resourceVersion="7"), _NODES)
    assert isinstance(found, Unreadable)
    assert found.resource_version == "7"


def test_an_object_as_they_are_in_the_field_is_read() -> None:
    labels = {"node-role.kubernetes.io/control-plane": "", "kubernetes.io/hostname": "edge-1"}
    annotations = {"flannel.alpha.coreos.com/backend-data": '{"VNI":1,\n"VtepMAC":"\u202e"}'}
    found = read_event(event(name="system:node", labels=labels, annotations=annotations), _NODES)
    assert isinstance(found, ObjectPut)
    assert found.item.metadata.annotations == annotations
    assert msgspec.to_builtins(found.item.metadata.labels) == labels


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_an_answer_with_all_that_there_is_is_read_part_by_part(count: int) -> None:
    names = [f"node-{each}" for each in range(count)]
    said = {
        "metadata": {"resourceVersion": "7"},
        "items": [{"metadata": {"name": each}} for each in names],
    }
    found = msgspec.json.decode(json.dumps(said), type=ListDocument)

    parts = list(read_parts(found, _NODES, 2))

    assert [each.metadata.name for part in parts for each in part.items] == names
    assert all(len(part.items) <= 2 for part in parts)
    assert [part.more for part in parts] == [True] * (len(parts) - 1) + [False]
    assert {(part.resource_version, part.next) for part in parts} == {("7", "")}
