"""Items and the objects that hold them: there and back, and nonsense in words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from limpet.base.bounds.signers import MAX_VERSION
from limpet.cluster.kinds import GRANT, NETWORK, PRESENCE
from limpet.cluster.kinds.network import TunnelBackend
from limpet.cluster.seal import seal
from limpet.controller.communities.selectors import parse_selector
from limpet.controller.registry.records import (
    AUTHORITY,
    COMMUNITY,
    NODE,
    SEGMENT,
    STATE,
    TOKEN,
    AuthorityRecord,
    CommunityRecord,
    DocumentRecord,
    NodeRecord,
    PresenceRecord,
    Record,
    StateRecord,
)
from limpet.controller.store.kubernetes.items import ItemObject, ObjectPlace, operations
from limpet.controller.store.kubernetes.object_names import escape
from limpet.controller.store.kubernetes.rows import row_of
from limpet.kubernetes.kinds.resources import UID_LABEL, ResourceError, is_object_name
from tests.unit.cluster_values import CLUSTER_KEY, grant, network, node_key, presence

SECONDS = st.floats(0, 1e10)
TEXTS = st.lists(st.text(max_size=4), max_size=3).map(tuple)
WHOLE = st.integers(0, MAX_VERSION.most)


@st.composite
def items(draw: st.DrawFn) -> tuple[str, str, Record]:
    """Kind, name and record."""
    number = draw(st.integers(1, 5))
    what = draw(st.sampled_from((NODE, PRESENCE.name, NETWORK.name, AUTHORITY, STATE)))
    if what == NODE:
        document = seal(GRANT, grant(number, tombstone=draw(st.booleans())), CLUSTER_KEY)
        node = NodeRecord(
            document.sealed,
            draw(SECONDS),
            draw(st.booleans()),
            draw(st.text(max_size=4)),
            draw(WHOLE),
            draw(TEXTS),
            draw(TEXTS),
            draw(st.text(max_size=4)),
            draw(st.none() | SECONDS),
            draw(st.text(max_size=4)),
        )
        return what, document.name, node
    if what == PRESENCE.name:
        said = seal(PRESENCE, presence(number, draw(WHOLE)), node_key(number))
        clone = draw(st.none() | SECONDS)
        value = said.value
        record = PresenceRecord(
            said.sealed, value.sequence, value.boot_id, draw(TEXTS), draw(SECONDS), clone
        )
        return what, said.name, record
    if what == NETWORK.name:
        return what, what, DocumentRecord(seal(NETWORK, network(number), CLUSTER_KEY).sealed)
    if what == AUTHORITY:
        return what, what, AuthorityRecord(draw(st.binary()), "PEM", (draw(st.binary()),))
    return what, what, StateRecord(draw(WHOLE), {4: draw(WHOLE)})


def through_json(found: ItemObject) -> ItemObject:
    return msgspec.json.decode(msgspec.json.encode(found.builtins), type=ItemObject)


@given(items())
def test_any_record_comes_back_as_it_was(item: tuple[str, str, Record]) -> None:
    kind, name, record = item
    row, value = row_of(kind), msgspec.json.encode(record)
    place = (*row.places(name, value), ObjectPlace("node-1", "node-1"))[0]

    found = through_json(row.encode(name, value, place))

    assert row.decode(found) == (name, value)
    assert row.place(found).object_name == place.object_name
    assert is_object_name(place.object_name)


@given(st.sampled_from((SEGMENT, "report", TOKEN)), st.text(max_size=40), st.binary())
def test_any_bytes_under_any_name_come_back(kind: str, name: str, value: bytes) -> None:
    row = row_of(kind)
    try:
        (place,) = row.places(name, value)
    except ResourceError:
        assert any("\ud800" <= each <= "\udfff" for each in name)
        return
    assert is_object_name(place.object_name)
    assert row.decode(through_json(row.encode(name, value, place))) == (name, value)


@given(st.text(max_size=30), st.text(max_size=30))
def test_no_two_names_give_one_object(one: str, other: str) -> None:
    try:
        assert (escape(one) == escape(other)) is (one == other)
    except UnicodeEncodeError:
        return


def test_a_key_is_in_secrets_alone() -> None:
    assert row_of(AUTHORITY).resource.kind == row_of(TOKEN).resource.kind == "Secret"
    assert row_of(SEGMENT).resource.kind == row_of(STATE).resource.kind == "ConfigMap"


@pytest.mark.parametrize("selector", ["", "site=harbour", "b=2,a=1,tier!=edge,tier!=cloud"])
def test_a_selector_is_written_as_kubernetes_writes_it(selector: str) -> None:
    row, value = row_of(COMMUNITY), msgspec.json.encode(CommunityRecord(selector))
    found = through_json(row.encode("harbour", value, ObjectPlace("harbour")))

    name, again = row.decode(found)

    assert name == "harbour"
    read = msgspec.json.decode(again, type=CommunityRecord).selector
    assert read == selector or set(parse_selector(read).requirements) == set(
        parse_selector(selector).requirements
    )


@pytest.mark.parametrize(
    ("kind", "found", "words"),
    [
        (NODE, {"spec": {}}, "read NodeGrant x: it has no document"),
        (STATE, {"data": {"name": "state"}}, r"read ConfigMap x: data.record: it is missing"),
        (STATE, {"data": {"name": 1}}, r"read ConfigMap x: data\[\.\.\.\]: Expected `str`"),
        (AUTHORITY, {"data": {"name": "%"}}, "read Secret x: data.*: Invalid base64"),
        (
            AUTHORITY,
            {"data": {"name": "/w==", "record": "e30="}},
            "read Secret x: data.name: it is no text",
        ),
        (
            COMMUNITY,
            {"spec": {"nodeSelector": {"matchLabels": {"a": 1}}}},
            "read Community x: spec.nodeSelector.matchLabels",
        ),
        (
            COMMUNITY,
            {"spec": {"nodeSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}},
            r"read Community x: spec.nodeSelector.matchExpressions\[0\]: Exists",
        ),
        (
            COMMUNITY,
            {"spec": {"nodeSelector": {"matchLabels": {"ä": "b"}}}},
            "read Community x: spec.nodeSelector: read selector",
        ),
    ],
)
def test_nonsense_is_refused_in_words_that_name_object_and_field(
    kind: str, found: dict[str, Any], words: str
) -> None:
    kept = msgspec.convert({"metadata": {"name": "x"}, **found}, ItemObject)

    with pytest.raises(ResourceError, match=words):
        row_of(kind).decode(kept)


def test_a_change_leaves_all_fields_but_those_of_the_item() -> None:
    row = row_of(COMMUNITY)
    chosen = row.encode("a", msgspec.json.encode(CommunityRecord("x=y")), ObjectPlace("a"))
    nobody = row.encode("a", msgspec.json.encode(CommunityRecord()), ObjectPlace("a"))

    selector = {"op": "add", "path": "/spec/nodeSelector", "value": {"matchLabels": {"x": "y"}}}
    assert selector in operations(chosen, row.fields)
    assert {"op": "remove", "path": "/spec/nodeSelector"} in operations(nobody, row.fields)
    assert {each["path"] for each in operations(chosen, row.fields)} == {
        "/spec/members",
        "/spec/nodeSelector",
        "/spec/tunnelBackend",
    }


def test_a_community_is_what_people_write_in_its_object() -> None:
    spec = {
        "members": ["n1", "n2"],
        "nodeSelector": {
            "matchLabels": {"example.org/site": "harbour"},
            "matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["edge"]}],
        },
        "tunnelBackend": "ipsec",
    }
    kept = msgspec.convert({"metadata": {"name": "harbour"}, "spec": spec}, ItemObject)

    name, value = row_of(COMMUNITY).decode(kept)

    assert name == "harbour"
    assert msgspec.json.decode(value, type=CommunityRecord) == CommunityRecord(
        "example.org/site=harbour,tier!=edge", ("n1", "n2"), TunnelBackend.IPSEC
    )
    assert row_of(COMMUNITY).encode(name, value, ObjectPlace(name)).spec == spec


def test_a_presence_in_the_object_of_another_node_is_none_of_the_store() -> None:
    row = row_of(PRESENCE.name)
    said = seal(PRESENCE, presence(1, 7), node_key(1))
    value = msgspec.json.encode(PresenceRecord(said.sealed, 7, "boot", (), 0.0))
    for place in (("node-1", "node-1"), (f"node-1.{said.name}", "node-1"), (said.name, "node-1")):
        assert row.decode(row.encode(said.name, value, ObjectPlace(*place)))[0] == said.name
    for place in (("evil", "node-1"), ("node-1", "evil"), ("evil.x", "evil")):
        with pytest.raises(ResourceError, match="whose object this is not"):
            row.decode(row.encode(said.name, value, ObjectPlace(*place)))
    found = row.encode(said.name, value, ObjectPlace("node-1", "node-1"))
    for other in (
        replace(found, spec={**found.spec, "uid": "another"}),
        replace(found, metadata=replace(found.metadata, labels={UID_LABEL: "another"})),
    ):
        with pytest.raises(ResourceError, match="whose object this is not"):
            row.decode(other)
