"""Records in a file that was cut, damaged or written by a later version."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.base.records import NewerRecordError, encode_record, find_records

said = st.lists(st.tuples(st.integers(0, 2**64 - 1), st.binary(max_size=40)), max_size=5)


def written(*records: tuple[int, bytes]) -> bytes:
    return b"".join(encode_record(b"TOYa", 1, *each) for each in records)


@given(said, st.binary(max_size=30))
def test_whole_records_are_found_whatever_is_before_them(
    records: list[tuple[int, bytes]], before: bytes
) -> None:
    found = list(find_records(before + written(*records), b"TOY", 1))
    assert [(each.number, each.payload) for each in found] == records
    assert [each.start for each in found[1:]] == [each.end for each in found[:-1]]


@given(said, st.data())
def test_a_record_that_is_damaged_hides_no_other(
    records: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    start = len(written(*records))
    whole = written(*records, (7, b"damaged"), *records)
    at = data.draw(st.integers(start, len(written(*records, (7, b"damaged"))) - 1))
    bad = whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :]
    found = find_records(bad, b"TOY", 1)
    assert [(each.number, each.payload) for each in found] == records * 2


def test_a_record_of_a_later_version_is_refused_in_words() -> None:
    data = written((1, b"one")) + encode_record(b"TOYb", 3, 2, b"later")
    with pytest.raises(NewerRecordError, match="it has format 3, this Limpet knows 1"):
        list(find_records(data, b"TOY", 1))
