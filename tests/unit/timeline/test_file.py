"""The file is read after a power cut at any byte, and never larger than it may be."""

from __future__ import annotations

from pathlib import Path

from limpet.picture.timeline import Clock, Happening
from limpet.timeline.clock import Moment
from limpet.timeline.file import NEWER, EventFile, read_all
from limpet.timeline.log import Recorded


def recorded(sequence: int, wall_s: float = 0.0) -> Recorded:
    moment = Moment("boot1", float(sequence), wall_s, Clock.KEPT)
    return Recorded(sequence, moment, Happening(kind="path", words=f"entry {sequence}"))


def sequences(folder: Path) -> list[int]:
    return [each.sequence for each in read_all(folder)]


def test_what_was_written_is_read_after_a_cut_at_any_byte_and_what_follows_it_too(
    tmp_path: Path,
) -> None:
    file = EventFile(tmp_path)
    ends = []
    for sequence in range(1, 5):
        file.append([recorded(sequence)], sync=True)
        ends.append((tmp_path / NEWER).stat().st_size)
    file.close()
    whole = (tmp_path / NEWER).read_bytes()

    for cut in range(len(whole) + 1):
        (tmp_path / NEWER).write_bytes(whole[:cut])
        kept = [sequence for sequence, end in enumerate(ends, 1) if end <= cut]
        assert sequences(tmp_path) == kept
        again = EventFile(tmp_path)
        again.append([recorded(9)], sync=True)
        again.close()
        assert sequences(tmp_path) == [*kept, 9]


def test_a_damaged_page_costs_its_entries_and_no_others(tmp_path: Path) -> None:
    file = EventFile(tmp_path)
    file.append([recorded(sequence) for sequence in range(1, 101)], sync=True)
    file.close()
    data = bytearray((tmp_path / NEWER).read_bytes())
    data[1000:1200] = bytes(200)
    (tmp_path / NEWER).write_bytes(data)

    found = sequences(tmp_path)

    assert found == sorted(found)
    assert 90 < len(found) < 100


def test_both_files_together_stay_below_the_bound_and_keep_the_newest(tmp_path: Path) -> None:
    file = EventFile(tmp_path, most_bytes=8 << 10)
    for sequence in range(1, 1001):
        file.append([recorded(sequence)], sync=False)
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 8 << 10
    file.close()

    found = sequences(tmp_path)

    assert found == list(range(found[0], 1001))
    assert len(found) > 40


def test_a_file_that_was_begun_long_ago_makes_room(tmp_path: Path) -> None:
    file = EventFile(tmp_path)
    for sequence, wall_s in enumerate((0.0, 90.0, 101.0, 102.0, 250.0), 1):
        file.append([recorded(sequence, wall_s)], sync=False, old_s=100.0)
    file.close()

    assert sequences(tmp_path) == [3, 4, 5]
