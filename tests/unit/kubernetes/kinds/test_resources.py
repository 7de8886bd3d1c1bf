"""Custom resources: what was signed comes back as it was; nonsense is refused in words."""

from __future__ import annotations

import copy
import string
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from limpet.cluster.documents import Document
from limpet.cluster.kinds import GRANT, NETWORK, PRESENCE
from limpet.cluster.kinds.grant import Role
from limpet.cluster.kinds.network import DefaultCommunity, Encryption, TunnelBackend
from limpet.cluster.seal import seal
from limpet.kubernetes.kinds.resources import (
    RESOURCES,
    ResourceError,
    document_object,
    is_object_name,
    node_object_names,
    read_document,
    spec_problem,
)
from tests.unit.cluster_values import CLUSTER_KEY, grant, network, node_key, presence

CRDS = Path(__file__).parents[4] / "deploy" / "crds"
NAMES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
SEGMENTS = st.integers(0, 255).map(lambda each: ip_network(f"10.244.{each}.0/24"))


@st.composite
def documents(draw: st.DrawFn) -> Document:
    number = draw(st.integers(1, 9))
    kind = draw(st.sampled_from((NETWORK, GRANT, PRESENCE)))
    version = draw(st.integers(0, (1 << 47) - 1))
    if kind is NETWORK:
        value: Any = network(
            version,
            service_cidrs=tuple(draw(st.sampled_from(((), (ip_network("10.96.0.0/12"),))))),
            default_community=draw(st.sampled_from(DefaultCommunity)),
            encryption=draw(st.sampled_from(Encryption)),
            community_backends=draw(st.dictionaries(NAMES, st.sampled_from(TunnelBackend))),
            segment_lengths=draw(st.sampled_from(({4: 26, 6: 64}, {4: 24}))),
        )
    elif kind is GRANT:
        value = grant(
            number,
            generation=version,
            segments=tuple(draw(st.lists(SEGMENTS, unique=True, max_size=4))),
            communities=tuple(draw(st.lists(NAMES, max_size=3))),
            roles=draw(st.frozensets(st.sampled_from(Role), min_size=1)),
            labels=draw(st.dictionaries(NAMES, st.text(max_size=5), max_size=3)),
            tombstone=draw(st.booleans()),
        )
    else:
        value = presence(
            number,
            version,
            endpoints=tuple(draw(st.sampled_from(((), ((ip_address("2001:db8::1"), 7),))))),
            vtep_macs=draw(st.sampled_from(({}, {4: "02:00:00:00:00:01"}))),
            boot_id=draw(st.text(string.printable[:94], max_size=5)),
        )
    return seal(kind, value, node_key(number) if kind is PRESENCE else CLUSTER_KEY)  # type: ignore[arg-type]


def through_json(found: dict[str, Any]) -> dict[str, Any]:
    """As the API server hands it back."""
    again: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(found))
    return again


@given(documents())
def test_what_was_signed_comes_back_as_it_was(document: Document) -> None:
    found = through_json(document_object(document, "n1", "n1"))

    assert read_document(document.kind, found) == document
    assert spec_problem(document, found, "n1") == ""


@given(documents())
def test_what_is_readable_is_in_the_schema_and_nothing_else_is(document: Document) -> None:
    resource = RESOURCES[document.kind]
    schema = yaml.safe_load((CRDS / f"{resource.plural}.yaml").read_text())["spec"]["versions"][0]
    known = schema["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]

    assert known.keys() == document_object(document, "n1", "n1")["spec"].keys()


@given(documents(), st.data())
def test_nonsense_is_refused_in_words_that_name_the_object(
    document: Document, data: st.DataObject
) -> None:
    found = through_json(document_object(document, "n1", "n1"))
    junk = st.none() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)
    at = data.draw(st.sampled_from((("document",), ("document", "body"), ("metadata",))))
    inner = found
    for field in at[:-1]:
        inner = inner[field]
    inner[at[-1]] = data.draw(junk | st.dictionaries(st.text(max_size=3), junk, max_size=2))

    with pytest.raises(ResourceError, match=f"read {RESOURCES[document.kind].object_kind} "):
        read_document(document.kind, found)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"apiVersion": "limpet.dev/v2"},
            "apiVersion: it is 'limpet.dev/v2', and this Limpet knows",
        ),
        ({"kind": "NodePresence"}, "kind: it is 'NodePresence', not NodeGrant"),
        ({"document": None}, r"read NodeGrant n1: document: Expected `object`, got `null`"),
        ({"document": {"body": "%"}}, r"read NodeGrant n1: document.body: Invalid base64"),
        (
            {"document": {"body": "e30=", "signature": ""}},
            "read NodeGrant n1: document: read grant: .*delete the object",
        ),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], words: str) -> None:
    found = document_object(seal(GRANT, grant(1), CLUSTER_KEY), "n1", "n1") | change

    with pytest.raises(ResourceError, match=words):
        read_document("grant", found)


def test_an_object_without_a_document_counts_for_nothing() -> None:
    found = document_object(seal(GRANT, grant(1), CLUSTER_KEY), "n1", "n1")
    del found["document"]

    with pytest.raises(ResourceError, match="read NodeGrant n1: it has no document"):
        read_document("grant", found)


def test_a_spec_that_was_edited_by_hand_is_told_and_changes_nothing() -> None:
    document = seal(GRANT, grant(1), CLUSTER_KEY)
    found = copy.deepcopy(document_object(document, "n1", "n1"))
    found["spec"]["segments"] = ["10.0.0.0/8"]

    assert read_document("grant", found) == document
    assert spec_problem(document, found, "n1").startswith("spec.segments: it says ['10.0.0.0/8']")


def test_an_object_is_named_after_its_node_where_it_can_be() -> None:
    uid = "abcdefghijklmnopqrstuvwx"

    assert node_object_names("edge-1.site", uid) == ("edge-1.site", f"edge-1.site.{uid}", uid)
    assert node_object_names("Edge_1", uid) == (uid,)
    assert node_object_names("a" * 253, uid) == ("a" * 253, uid)
    assert not is_object_name("a..b")
    assert not is_object_name("a-")
    assert not is_object_name("ä")
