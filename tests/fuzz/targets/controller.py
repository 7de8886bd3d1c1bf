"""What the controller reads of its store, be it objects of an API server or a file, and what people
and other controllers answer it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from limpet.base.decoding import decode_json
from limpet.base.errors import LimpetError, StorageError
from limpet.base.http.connection import HttpAnswer
from limpet.cloud.second_road import own_objects, presence_object
from limpet.cloud.second_road.api_server import told_controllers
from limpet.cluster.api import JoinRequest
from limpet.controller.admin import api_server
from limpet.controller.orchestrator.account import read_review
from limpet.controller.orchestrator.object_status import OBJECTS, Carrying, read_shown
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.store.database import check_database, read_item
from limpet.controller.store.kubernetes import follower
from limpet.controller.store.kubernetes.items import ItemObject
from limpet.controller.store.kubernetes.rows import row_of
from limpet.kubernetes import exec as pod_exec
from limpet.kubernetes import pods
from limpet.kubernetes.kinds.objects import Metadata, TokenReview
from limpet.kubernetes.kinds.resources import RESOURCES, ResourceError, document_object
from tests.fuzz.target import Shape, fuzzed
from tests.fuzz.targets.documents import FIXTURES, every_document

_ITEMS = ("community", "authority", "token", "state", *RESOURCES)
_STATUS = {
    "observedGeneration": 2,
    "nodes": 3,
    "controllers": {"addresses": ["192.0.2.1:7470", "nonsense"], "caCertificate": "PEM"},
    "conditions": [
        {
            "type": "Ready",
            "status": "False",
            "reason": "Why",
            "message": "because",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ],
}


def _objects() -> Iterator[bytes]:
    metadata = {"name": "east", "uid": "u", "resourceVersion": "17", "generation": 2}
    selector = {
        "matchLabels": {"site": "harbour"},
        "matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["edge", "x"]}],
    }
    community: dict[str, Any] = {
        "spec": {"members": ["edge-1"], "nodeSelector": selector, "tunnelBackend": "ipsec"}
    }
    secret = {"data": {"name": "dG9rZW4=", "record": "e30="}}
    plain = {"data": {"name": "state"}, "binaryData": {"record": "e30="}}
    for kind, body in zip(_ITEMS, (community, secret, secret, plain), strict=False):
        yield msgspec.json.encode([kind, {"metadata": metadata, **body}])
    for each in every_document():
        if each.kind in RESOURCES:
            yield msgspec.json.encode([each.kind, document_object(each, "edge-1", "edge-1")])


_PLAIN = (ResourceError, msgspec.MsgspecError)


@fuzzed(seeds=_objects, errors=_PLAIN, shape=Shape.JSON, most_bytes=16_384)
def item_of_the_store(data: bytes) -> None:
    """Objects that nodes and people write as well as the controller."""
    kind, found = decode_json(data, tuple[str, ItemObject])
    row = row_of(kind)
    row.guess(found)
    row.rank(found)
    name, value = row.decode(found)
    place = row.place(found)
    again = row.encode(name, value, place)
    assert row.decode(again)[0] == name


def _with_status() -> Iterator[bytes]:
    for each in every_document():
        if each.kind in RESOURCES:
            found = {**document_object(each, "edge-1", "edge-1"), "status": _STATUS}
            yield msgspec.json.encode([each.kind, found])


@fuzzed(seeds=_with_status, errors=(msgspec.MsgspecError,), shape=Shape.JSON, most_bytes=16_384)
def object_as_it_is_shown(data: bytes) -> None:
    kind, found = decode_json(data, tuple[str, Carrying])
    if kind in OBJECTS:
        read_shown(kind, found)


def _followed() -> Iterator[bytes]:
    metadata = {"name": "a", "uid": "u", "resourceVersion": "7"}
    found = {"metadata": metadata, "data": {"name": "state", "record": "{}"}}
    yield msgspec.json.encode({"type": "ADDED", "object": found})
    gone = {"code": 410, "message": "too old"}
    yield msgspec.json.encode({"type": "ERROR", "object": gone})


@fuzzed(seeds=_followed, errors=(LimpetError,), shape=Shape.JSON)
def line_that_the_store_follows(data: bytes) -> None:
    follower.read_line(data)


@fuzzed(seeds=lambda: [msgspec.json.encode(_STATUS)], shape=Shape.JSON)
def status_of_an_object(data: bytes) -> None:
    """As an agent reads it: nonsense says nothing."""
    carrier = own_objects.Carrier(metadata=Metadata(name="x"), status=msgspec.Raw(data))
    own_objects.not_as_it_should_be(carrier)
    try:
        told_controllers(msgspec.json.decode(data))
    except (ValueError, RecursionError):
        return  # no JSON at all


def _presences() -> Iterator[bytes]:
    for each in every_document():
        if each.kind == "presence":
            yield msgspec.json.encode(document_object(each, "edge-1", "edge-1"))


@fuzzed(seeds=_presences, errors=(msgspec.MsgspecError,), shape=Shape.JSON, most_bytes=8192)
def presence_of_an_api_server(data: bytes) -> None:
    presence_object.document_of(decode_json(data, presence_object.PresenceObject))


_REVIEW = {
    "metadata": {"name": "x"},
    "spec": {"token": "t", "audiences": ["limpet.dev/controller"]},
    "status": {
        "authenticated": True,
        "audiences": ["limpet.dev/controller"],
        "user": {
            "username": "system:serviceaccount:limpet-system:limpet-agent",
            "groups": [],
            "extra": {
                "authentication.kubernetes.io/node-name": ["edge-1"],
                "authentication.kubernetes.io/pod-name": ["agent-1"],
                "authentication.kubernetes.io/pod-uid": ["u"],
            },
        },
    },
}


@fuzzed(
    seeds=lambda: [msgspec.json.encode(_REVIEW)],
    errors=(RefusedError, msgspec.MsgspecError),
    shape=Shape.JSON,
)
def review_of_a_token(data: bytes) -> None:
    asked = JoinRequest("t", "edge-1", b"", b"")
    read_review(decode_json(data, TokenReview), asked, "limpet-system")


def _words(data: bytes) -> Any:
    return api_server.document_of(HttpAnswer(200, data))


@fuzzed(
    seeds=lambda: [
        b'{"status": "Success"}',
        b'{"status":"Failure","message":"no","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}',
        b'{"kind": "Status", "code": "not_leader"}',
    ],
    errors=(ValueError, LimpetError),
    shape=Shape.JSON,
)
def words_of_an_api_server(data: bytes) -> None:
    """At the end of a command, or in place of what a pod answers."""
    assert isinstance(_words(data), dict)
    pods.kind_of(data)
    pod_exec.exit_code(data, "exec")


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="fuzz-controller-")


@fuzzed(
    seeds=lambda: [(FIXTURES / "controller.db").read_bytes()],
    errors=(StorageError,),
    most_bytes=20_480,
)
def back_up_of_a_controller(data: bytes) -> None:
    path = Path(_folder().name) / "controller.db"
    path.write_bytes(data)
    check_database(path)
    read_item(path, "state", "state")
