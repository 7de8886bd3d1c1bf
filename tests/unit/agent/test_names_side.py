"""What the agent writes for the process that answers names."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from limpet.agent.names.side import NamesSide
from limpet.services.kept_here import HERE_FILE, decode_here
from limpet.services.rotation import Here


class Known:
    """What an agent knows; changed by the test."""

    def __init__(self, here: Here) -> None:
        self.here = here

    def __call__(self) -> Here:
        return self.here


def test_it_is_written_at_the_start_and_when_it_changes_and_again_while_somebody_is_dead(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        known = Known(Here("a", distances={"b": 1}))
        side = NamesSide(tmp_path, known)
        path = tmp_path / HERE_FILE
        side.begin()
        assert decode_here(path.read_bytes())[0] == known.here

        # Nothing new, nobody dead: nothing is written, now or later.
        path.unlink()
        side.look_around()
        assert not path.exists()
        assert not side.is_due

        known.here = Here("a", silent=frozenset({"b"}))
        side.look_around()
        assert decode_here(path.read_bytes())[0] == known.here
        assert side.is_due

        known.here = Here("a")
        side.look_around()
        assert decode_here(path.read_bytes())[0] == known.here
        assert not side.is_due
        side.close()

    asyncio.run(scenario())


def test_what_the_disk_refuses_ends_nothing_and_is_tried_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        folder = tmp_path / "run"
        folder.write_text("in the way")
        side = NamesSide(folder, Known(Here("a")))
        side.begin()
        assert side.is_due

        folder.unlink()
        folder.mkdir()
        side.look_around()
        assert (folder / HERE_FILE).exists()
        assert not side.is_due
        shutil.rmtree(folder)
        side.close()

    asyncio.run(scenario())
