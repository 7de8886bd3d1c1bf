from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.base.records.codec import NewerRecordError
from limpet.cluster.documents import Sealed
from limpet.cluster.snapshot.log import (
    HEADER_BYTES,
    VERSION,
    cluster_mark,
    encode_header,
    encode_record,
    parse_log,
)

MARK = cluster_mark(b"key")
SEALED = st.builds(
    Sealed, st.sampled_from(["grant", "toy"]), st.binary(max_size=40), st.binary(max_size=8)
)
DOCUMENTS = st.lists(SEALED, max_size=6)


def log_of(base: list[Sealed], *groups: list[Sealed]) -> tuple[bytes, list[int]]:
    """The file, and where each of its records ends."""
    data, ends = bytes(HEADER_BYTES), []
    for document in base:
        data += encode_record(document, 0)
        ends.append(len(data))
    data = encode_header(MARK, len(data)) + data[HEADER_BYTES:]
    for group in groups:
        synced = len(data)
        for document in group:
            data += encode_record(document, synced)
            ends.append(len(data))
    return data, ends


def toy(text: bytes) -> Sealed:
    return Sealed("toy", text, b"signature")


@given(base=DOCUMENTS, groups=st.lists(DOCUMENTS, max_size=3))
def test_everything_is_read_as_it_was_written(
    base: list[Sealed], groups: list[list[Sealed]]
) -> None:
    data, _ = log_of(base, *groups)
    log = parse_log(data)
    assert log.documents == sum(groups, base)
    assert log.mark == MARK
    assert (log.end, log.torn, log.damage) == (len(data), False, "")


@given(base=DOCUMENTS, group=DOCUMENTS, data=st.data())
def test_a_tail_that_was_cut_is_no_damage_and_hides_nothing_before_it(
    base: list[Sealed], group: list[Sealed], data: st.DataObject
) -> None:
    whole, ends = log_of(base, group)
    base_end = len(log_of(base)[0])
    cut = data.draw(st.integers(base_end, len(whole)))
    rest = data.draw(st.sampled_from([b"", bytes(700), b"LMSd" * 9]))
    torn = whole[:cut] + rest
    log = parse_log(torn)
    # What follows the cut may happen to be what was cut off.
    kept = [end for end in ends if torn[:end] == whole[:end]]
    assert log.documents == (base + group)[: len(kept)]
    assert log.damage == ""
    assert log.end == max([base_end, *kept])
    assert log.whole == (log.end == len(torn))


@given(
    base=st.lists(SEALED, min_size=1, max_size=4),
    groups=st.lists(st.lists(SEALED, min_size=1, max_size=3), min_size=2, max_size=3),
    data=st.data(),
)
def test_damage_costs_one_document_and_is_told_if_it_was_on_the_disk(
    base: list[Sealed], groups: list[list[Sealed]], data: st.DataObject
) -> None:
    whole, ends = log_of(base, *groups)
    documents = sum(groups, base)
    victim = data.draw(st.integers(0, len(documents) - 1))
    start = ([HEADER_BYTES, *ends])[victim]
    at = data.draw(st.integers(start, ends[victim] - 1))
    log = parse_log(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
    assert log.documents == documents[:victim] + documents[victim + 1 :]
    in_last_group = victim >= len(documents) - len(groups[-1])
    assert bool(log.damage) == (not in_last_group)
    assert log.torn == (victim < len(documents) - 1)
    assert not log.whole
    assert parse_log(whole).whole


def test_a_hole_in_the_group_that_the_power_cut_is_no_damage_but_the_file_is_not_gone_on_with() -> (
    None
):
    whole, ends = log_of([toy(b"a")], [toy(b"b"), toy(b"c")])
    log = parse_log(whole[: ends[0]] + bytes(ends[1] - ends[0]) + whole[ends[1] :])
    assert log.documents == [toy(b"a"), toy(b"c")]
    assert log.torn
    assert not log.damage


@pytest.mark.parametrize("cut", [1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 50])
def test_a_file_that_is_shorter_than_what_it_began_with_is_damaged(cut: int) -> None:
    whole, _ = log_of([toy(b"a"), toy(b"b")])
    assert parse_log(whole[:cut]).damage


def test_documents_are_found_behind_a_damaged_header() -> None:
    whole, _ = log_of([toy(b"a"), toy(b"b")])
    log = parse_log(bytes(HEADER_BYTES) + whole[HEADER_BYTES:])
    assert log.documents == [toy(b"a"), toy(b"b")]
    assert log.damage == "its first bytes cannot be read"


@given(st.binary(max_size=300))
def test_bytes_that_are_no_log_are_damage_and_nothing_else(data: bytes) -> None:
    log = parse_log(data)
    assert log.damage
    assert not log.documents


def test_a_later_format_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limpet.cluster.snapshot.log.VERSION", VERSION + 1)
    newer, _ = log_of([toy(b"a")])
    monkeypatch.undo()
    with pytest.raises(NewerRecordError, match="format 2, this Limpet knows 1"):
        parse_log(newer)
