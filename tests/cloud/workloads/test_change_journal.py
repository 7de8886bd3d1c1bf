"""Changes of Services that are not in the whole file yet: replayed in order, or ended by what
cannot be read."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.cloud.workloads.change_journal import ChangeJournal
from limpet.services.catalog import Catalog
from limpet.services.kept import JOURNAL_FILE, encode_gone, encode_item
from limpet.services.values import Service, ServiceName

PUT, GONE, WHOLE = "put", "gone", "whole"
steps = st.lists(
    st.tuples(st.sampled_from((PUT, GONE, WHOLE)), st.integers(0, 3), st.integers(1, 9))
)


def service(number: int, affinity_s: int) -> Service:
    return Service("shop", f"web-{number}", affinity_s=affinity_s)


def seen(catalog: Catalog) -> dict[ServiceName, Service]:
    return {each.key: each for each in catalog}


def apply(catalog: Catalog, step: tuple[str, int, int]) -> list[bytes]:
    what, number, affinity_s = step
    one = service(number, affinity_s)
    if what == PUT:
        catalog.put(one)
        return [encode_item(one)]
    catalog.remove_service(*one.key)
    return [encode_gone(Service, one.key)]


@given(steps)
def test_what_is_on_the_disk_and_what_is_noted_since_is_what_was_heard(
    heard: Sequence[tuple[str, int, int]],
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, JOURNAL_FILE)
        journal, catalog, on_disk = ChangeJournal(path), Catalog(), Catalog()
        for step in heard:
            if step[0] == WHOLE:
                end = journal.end
                on_disk = Catalog()
                for each in catalog:
                    on_disk.put(each)
                journal.forget(end)
            else:
                journal.note(apply(catalog, step))

        ChangeJournal(path).replay(on_disk)

        assert seen(on_disk) == seen(catalog)


def test_what_comes_while_the_file_is_written_is_kept(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL_FILE
    journal = ChangeJournal(path)
    journal.note([encode_item(service(1, 1))])
    end = journal.end
    journal.note([encode_item(service(2, 2))])
    journal.forget(end)
    journal.note([encode_item(service(3, 3))])

    catalog = Catalog()
    ChangeJournal(path).replay(catalog)

    assert [each.name for each in catalog] == ["web-2", "web-3"]


def test_a_change_that_was_noted_by_half_is_none(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL_FILE
    ChangeJournal(path).note([encode_item(service(n, n)) for n in (1, 2)])
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for length in range(first, len(whole)):
        path.write_bytes(whole[:length])
        catalog = Catalog()
        ChangeJournal(path).replay(catalog)
        assert [each.name for each in catalog] == ["web-1"]


@pytest.mark.parametrize("nonsense", [b"nonsense", b'["a"]', b"\xff", b"[1,2,3]"])
def test_nonsense_ends_it_and_nothing_is_raised(tmp_path: Path, nonsense: bytes) -> None:
    path = tmp_path / JOURNAL_FILE
    ChangeJournal(path).note([encode_item(service(1, 1)), nonsense, encode_item(service(2, 2))])

    catalog = Catalog()
    ChangeJournal(path).replay(catalog)

    assert [each.name for each in catalog] == ["web-1"]


def test_an_agent_that_begins_after_a_torn_change_loses_nothing_that_it_notes(
    tmp_path: Path,
) -> None:
    path = tmp_path / JOURNAL_FILE
    ChangeJournal(path).note([encode_item(service(n, n)) for n in (1, 2)])
    path.write_bytes(path.read_bytes()[:-4])

    journal, catalog = ChangeJournal(path), Catalog()
    journal.replay(catalog)
    journal.note([encode_item(service(3, 3))])

    again = Catalog()
    ChangeJournal(path).replay(again)
    assert [each.name for each in again] == ["web-1", "web-3"]


def test_more_than_it_may_hold_is_left_to_the_disk(tmp_path: Path) -> None:
    journal = ChangeJournal(tmp_path / JOURNAL_FILE)
    line = encode_item(service(1, 1))
    journal.note([line])
    before = journal.end
    journal.note([line] * ((5 << 20) // len(line)))
    assert journal.end == before


def test_what_there_is_no_room_for_does_not_hide_what_is_noted_later(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL_FILE
    journal, catalog = ChangeJournal(path), Catalog()
    lines = [encode_item(service(number, 1)) for number in range(3)]
    journal.note(lines[:1])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, hard))
    try:
        journal.note(lines[1:2])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    journal.note(lines[2:])

    ChangeJournal(path).replay(catalog)

    assert seen(catalog).keys() == {("shop", "web-0"), ("shop", "web-2")}
