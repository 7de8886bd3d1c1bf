"""Records in a file that was cut, damaged or written by a later version."""

from __future__ import annotations

from binascii import crc32
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.base.records import checksums, codec
from limpet.base.records.checksums import PartialChecksums
from limpet.base.records.codec import HEADER_BYTES, NewerRecordError, encode_record, find_records

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


@given(st.binary(max_size=2000), st.data())
def test_the_checksum_of_a_part_is_that_of_its_bytes(data: bytes, more: st.DataObject) -> None:
    start = more.draw(st.integers(0, len(data)))
    end = more.draw(st.integers(start, len(data)))
    before = more.draw(st.integers(0, 2**32 - 1))
    partial = PartialChecksums(memoryview(data))
    assert partial.of(start, end, before) == crc32(data[start:end], before)


def forged(count: int, filling: int = 40) -> bytes:
    """The beginnings of so many records, each of which would go to the end of all."""
    each = HEADER_BYTES + filling
    return b"".join(
        pack("<4sBIQI", b"TOYa", 1, (count - number) * each - HEADER_BYTES, number, 7)
        + bytes(filling)
        for number in range(count)
    )


def test_records_behind_thousands_of_forged_beginnings_are_found() -> None:
    whole = written((1, b"one"), (2, b"two" * 100_000))
    found = list(find_records(written((0, b"zero")) + forged(3000) + whole, b"TOY", 1))
    assert [each.number for each in found] == [0, 1, 2]
    assert found[2].payload == b"two" * 100_000


@pytest.mark.parametrize("count", [500, 3000, 6000])
def test_forged_beginnings_take_work_in_proportion_to_the_file(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    summed, products = 0, 0

    def counting(data: bytes, before: int = 0) -> int:
        nonlocal summed
        summed += len(data)
        return crc32(data, before)

    def multiplying(one: int, other: int) -> int:
        nonlocal products
        products += 1
        return times(one, other)

    times = checksums._times
    data = forged(count)
    list(find_records(written((1, b"one")), b"TOY", 1))
    monkeypatch.setattr(codec, "crc32", counting)
    monkeypatch.setattr(checksums, "crc32", counting)
    monkeypatch.setattr(checksums, "_times", multiplying)
    assert list(find_records(data, b"TOY", 1)) == []
    assert summed < (1 << 20) + 16 * len(data)  # reading a megabyte is cheaper than any other way
    assert products < 1100 + 4 * count
