"""Every command of every page was run, or a page names the test that plays it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import CHECKOUT, Block, blocks, pages
from tests.docs.worlds import Player, in_the_lab, on_a_machine, on_this_machine

_TYPED = [
    block
    for page in pages()
    for block in blocks(page)
    if block.language == "console" or "file" in block.marker
]


def _pages_with(world: str) -> list[str]:
    return sorted({block.page for block in _TYPED if block.marker.get(world) == ""})


def _of(page: str, world: str) -> list[Block]:
    return [b for b in _TYPED if b.page == page and b.marker.get(world) == ""]


_LABS = sorted({block.marker["lab"] for block in _TYPED if "lab" in block.marker})
_MACHINES = sorted({block.marker["node"] for block in _TYPED if block.marker.get("node")})


@pytest.fixture(scope="module")
def _runtimes() -> None:
    """The foreign programs are in build/runtimes."""
    subprocess.run([CHECKOUT / "scripts" / "fetch-runtimes"], check=True)


@pytest.fixture(scope="module", params=_LABS)
def lab(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Player]]:
    """One world for all pages that only look, and put right what they have changed."""
    with in_the_lab(request.param, tmp_path_factory.mktemp("lab")) as player:
        yield request.param, player


def test_commands_that_are_typed_in_a_running_world_of_the_lab_work(
    lab: tuple[str, Player],
) -> None:
    topology, player = lab
    player.play_all([block for block in _TYPED if block.marker.get("lab") == topology])


@pytest.mark.parametrize("page", _pages_with("plain"))
def test_commands_that_are_typed_on_any_machine_work(page: str, tmp_path: Path) -> None:
    with on_this_machine(tmp_path) as player:
        player.play_all(_of(page, "plain"))


@pytest.mark.usefixtures("_runtimes")
@pytest.mark.parametrize("page", _pages_with("node"))
def test_commands_of_a_node_work_and_leave_nothing(page: str) -> None:
    with on_a_machine() as player:
        player.play_all(_of(page, "node"))


@pytest.mark.usefixtures("_runtimes")
@pytest.mark.parametrize("assumed", _MACHINES)
def test_commands_of_pages_that_assume_more_of_a_node_work(assumed: str) -> None:
    """One machine for all of these pages, in their order."""
    with on_a_machine(assumed) as player:
        player.play_all([block for block in _TYPED if block.marker.get("node") == assumed])
