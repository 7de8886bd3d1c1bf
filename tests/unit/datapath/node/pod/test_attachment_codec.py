"""Attachments as JSON in /run."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.strategies import attachment, attachments_of_any_kind

from limpet.datapath.node.pod.attachment import Attachment
from limpet.datapath.node.pod.attachment_codec import (
    attachment_document,
    decode_attachment,
    encode_attachment,
)

scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
WHOLE = json.loads(encode_attachment(attachment("one", "10.244.7.2/24", "fd00:7::2/64")))
NESTED = ["holder", "addresses", "gateways", "bridge", "routes", "port_mappings", "bandwidth"]


def document_of(shown: Attachment) -> Any:
    return json.loads(json.dumps(attachment_document(shown)))


@given(attachments_of_any_kind)
def test_an_attachment_is_read_back_as_it_was_written(written: Attachment) -> None:
    assert decode_attachment(encode_attachment(written)) == written


@given(attachments_of_any_kind)
def test_people_see_what_the_file_says(shown: Attachment) -> None:
    assert document_of(shown) == json.loads(encode_attachment(shown))


@given(st.binary(max_size=60))
@example(b"[" * 100_000)
@example(b"null")
@example(b"[]")
@example(b"{}")
def test_bytes_that_are_no_attachment_are_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="not an attachment"):
        decode_attachment(data)


@given(st.integers(0, 1000))
def test_a_file_cut_short_is_a_value_error(length: int) -> None:
    whole = encode_attachment(attachment("one", "10.244.7.2/24"))
    with pytest.raises(ValueError, match="not an attachment"):
        decode_attachment(whole[: min(length, len(whole) - 1)])


@given(st.sampled_from(sorted(WHOLE)), json_values)
def test_a_changed_field_is_a_value_error_or_means_what_it_says(key: str, value: Any) -> None:
    changed = WHOLE | {key: value}
    with suppress(ValueError):
        found = decode_attachment(json.dumps(changed).encode())
        assert document_of(found) == changed


@pytest.mark.parametrize("key", NESTED)
@pytest.mark.parametrize("value", [5, "10.244.7.2/24", [5], [[]], {"": ""}, [{}], True])
def test_a_part_of_another_shape_is_a_value_error(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match="not an attachment"):
        decode_attachment(json.dumps(WHOLE | {key: value}).encode())


@pytest.mark.parametrize("key", sorted(WHOLE))
def test_a_missing_field_is_a_value_error_or_has_its_default(key: str) -> None:
    rest = {k: v for k, v in WHOLE.items() if k != key}
    with suppress(ValueError):
        found = document_of(decode_attachment(json.dumps(rest).encode()))
        assert {k: v for k, v in found.items() if k != key} == rest


@given(attachments_of_any_kind)
def test_an_attachment_of_an_agent_that_knew_no_labels_is_read(written: Attachment) -> None:
    document = json.loads(encode_attachment(written))
    del document["pod"]["labels"]

    read = decode_attachment(json.dumps(document).encode())

    assert read == replace(written, pod=replace(written.pod, labels=()))
