"""The journal's records: what is read back from whole, cut and damaged ones."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from limpet.ipam.journal_codec import encode_base, encode_change, encode_entries, parse_journal
from limpet.ipam.leases import FREE, Binding, Entry, Holder, PodKey

texts = st.text(max_size=8)
holders = st.builds(Holder, texts, texts)
bindings = st.builds(
    Binding, st.builds(PodKey, texts, texts, texts), st.integers(0, 2**62), texts, st.booleans()
)
entries = st.builds(Entry, st.none() | holders, st.none() | bindings)
changes = st.dictionaries(st.integers(0, 2**129), entries, max_size=3)
marks = st.dictionaries(st.integers(0, 3), st.integers(0, 2**129), max_size=2)
steps = st.lists(st.tuples(changes, marks), max_size=6)

Step = tuple[dict[int, Entry], dict[int, int]]


@dataclass
class Written:
    """A half of a journal, with where each record ends and what had been said by then."""

    data: bytearray
    ends: list[int]
    states: list[Step]


def write(first: int, said: list[Step], *, size: int = 1 << 14) -> Written:
    """The first step as the base, each other one as a record of its own."""
    state: Step = ({}, {})
    written = Written(bytearray(size), [], [])
    end = 0
    for number, step in enumerate([*said] or [({}, {})], first):
        encoded = encode_entries(*step)
        record = encode_change(number, [encoded]) if end else encode_base(number, encoded, size)
        written.data[end : end + len(record)] = record
        end += len(record)
        state = (state[0] | step[0], state[1] | step[1])
        written.ends.append(end)
        written.states.append(state)
    return written


def same(text: str) -> Entry:
    return Entry(Holder(text, "eth0"), None)


@given(st.integers(1, 2**60), steps)
def test_everything_written_is_read_back(first: int, said: list[Step]) -> None:
    written = write(first, said)
    journal = parse_journal(bytes(written.data))
    assert (journal.entries, journal.marks) == written.states[-1]
    assert journal.damage == ""
    assert journal.end == written.ends[-1]
    assert journal.next_number == first + len(written.ends)


@given(steps, st.data())
def test_cut_anywhere_the_whole_records_before_the_cut_count(
    said: list[Step], data: st.DataObject
) -> None:
    written = write(1, said)
    cut = data.draw(st.integers(written.ends[0], written.ends[-1]))
    written.data[cut:] = bytes(len(written.data) - cut)
    journal = parse_journal(bytes(written.data))
    whole = sum(end <= cut for end in written.ends)
    assert (journal.entries, journal.marks) == written.states[whole - 1]
    assert journal.damage == ""


@given(steps.filter(lambda said: len(said) > 2), st.data())
def test_a_record_lost_in_the_middle_loses_no_other_and_is_reported(
    said: list[Step], data: st.DataObject
) -> None:
    written = write(1, said)
    lost = data.draw(st.integers(0, len(said) - 2))
    start = written.ends[lost - 1] if lost else 0
    at = data.draw(st.integers(start, written.ends[lost] - 1))
    written.data[at] ^= data.draw(st.integers(1, 255))
    journal = parse_journal(bytes(written.data))
    rest: Step = ({}, {})
    for entries, marks in said[:lost] + said[lost + 1 :]:
        rest = (rest[0] | entries, rest[1] | marks)
    assert journal.damage
    assert (journal.entries, journal.marks) == rest


@given(st.binary())
def test_any_bytes_are_a_journal_or_a_damaged_one(data: bytes) -> None:
    journal = parse_journal(data)
    assert journal.damage
    assert not journal.entries


def test_a_newer_base_in_the_other_half_supersedes_all_before_it() -> None:
    old = write(1, [({}, {}), ({1: same("a")}, {0: 1}), ({2: same("b")}, {})], size=4096)
    base = encode_base(4, encode_entries({2: same("b")}, {0: 2}), 4096)
    change = encode_change(5, [encode_entries({3: same("c")}, {})])
    old.data[2048 : 2048 + len(base + change)] = base + change
    journal = parse_journal(bytes(old.data))
    assert journal.entries == {2: same("b"), 3: same("c")}
    assert journal.marks == {0: 2}
    assert (journal.next_number, journal.end) == (6, 2048 + len(base + change))


def test_the_remains_of_a_former_turn_of_a_half_say_nothing() -> None:
    data = write(1, [({}, {}), *[({1: same("old")}, {})] * 5], size=4096).data
    base = encode_base(90, encode_entries({}, {}), 4096)
    data[: len(base)] = base
    journal = parse_journal(bytes(data))
    assert (journal.entries, journal.damage, journal.end) == ({}, "", len(base))


def test_a_base_that_was_torn_leaves_the_former_half_in_charge() -> None:
    written = write(1, [({}, {}), ({1: same("a")}, {})], size=4096)
    base = encode_base(3, encode_entries({}, {}), 4096)
    written.data[2048 : 2048 + len(base) - 1] = base[:-1]
    journal = parse_journal(bytes(written.data))
    assert (journal.entries, journal.damage) == ({1: same("a")}, "")
    assert (journal.next_number, journal.end) == (3, written.ends[-1])


def test_after_a_base_whose_write_failed_changes_count_wherever_it_is() -> None:
    """The disk refused the base of the other half, yet it is there; work went on in the old one."""
    written = write(1, [({}, {}), ({1: same("a")}, {}), ({1: FREE}, {}), ({2: same("b")}, {})])
    base = encode_base(3, encode_entries({}, {}), len(written.data))
    for there in (False, True):
        if there:
            written.data[8192 : 8192 + len(base)] = base
        journal = parse_journal(bytes(written.data))
        assert journal.entries.get(1, FREE) == FREE
        assert journal.entries[2] == same("b")
        assert (journal.next_number, journal.end) == (5, written.ends[-1])
        assert journal.damage == ""


def test_a_journal_whose_length_has_changed_is_damaged() -> None:
    data = bytes(write(1, [({}, {}), ({1: same("a")}, {})]).data)
    assert "bytes" in parse_journal(data[:-512]).damage
    assert parse_journal(data[:-512]).entries == {1: same("a")}


def test_a_record_can_hold_several_changes() -> None:
    record = encode_change(2, [encode_entries({1: same("a")}, {}), encode_entries({1: FREE}, {})])
    journal = parse_journal(encode_base(1, encode_entries({}, {}), 0) + record)
    assert journal.entries == {1: FREE}
