"""The page of a node in a world of the lab: the real command, a real agent, links that die."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from limpet.lab.world.world import World
from tests.lab.bed import TWO_SITES, Pinging, a_world
from tests.ui.conftest import PICTURES, SignIn
from tests.waiting import PATIENCE_S, wait_until

TURNS_S = 3.0
NAMES = ("crane-1", "crane-2", "digger-1")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with a_world(TWO_SITES, tmp_path_factory.mktemp("page")) as world:
        yield world


@pytest.fixture(scope="module")
def links(world: World) -> Iterator[Iterator[str]]:
    """What `limpet ui` prints on crane-1: each of them lets in once."""
    command = (sys.executable, "-m", "limpet", "ui", "--listen", "127.0.0.1:0", "--config")
    config = str(world.machine("crane-1").config_path)
    with subprocess.Popen((*command, config), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield (line.strip() for line in process.stdout)
        finally:
            process.terminate()
            assert process.wait(PATIENCE_S) == 0


def way_to(seen: Page, name: str) -> str:
    """What the table of pairs says of crane-1's way to that node."""
    rows = seen.locator("#list tbody tr").filter(has_text=name).filter(has_text="crane-1")
    return rows.first.inner_text() if rows.count() else ""


def is_well(words: str) -> bool:
    return "VXLAN" in words and "lost" not in words


def test_a_world_is_drawn_and_a_link_that_dies_turns(
    world: World, links: Iterator[str], sign_in: SignIn
) -> None:
    """From when the node finds out, which is its prober's matter: four questions without an
    answer, whose times a busy machine stretches."""
    seen = sign_in(next(links))
    expect(seen.locator(".viewer")).to_contain_text("crane-1")
    wait_until(lambda: "plain route" in seen.locator(".facts .rungs").inner_text())
    seen.screenshot(path=PICTURES / "map.png")
    for name in NAMES:
        seen.get_by_placeholder("Find a node or site").fill(name)
        expect(seen.locator("#map-found")).to_contain_text(name)
    seen.goto(seen.url.rstrip("/") + "/pairs")
    wait_until(lambda: "VXLAN" in way_to(seen, "digger-1"))
    crane = world.machine("crane-1")
    (far,) = world.machine("digger-1").pods.values()
    turned_s = []
    for _ in range(2):
        wait_until(lambda: is_well(way_to(seen, "digger-1")))
        with Pinging(next(iter(crane.pods.values())).netns, far.addresses[0].ip):
            last = crane.ask("events", limit=1)["entries"][0]["sequence"]
            world.cut("quarry")
            cut_s = time.monotonic()
            try:
                wait_until(lambda: "lost" in way_to(seen, "digger-1"))
                shown_s = time.time()
                whole_s = time.monotonic() - cut_s
                entries = crane.ask("events", after=last)["entries"]
                turned_s.append(shown_s - min(each["at_s"] for each in entries))
            finally:
                world.restore("quarry")
        print(f"turned {whole_s:.1f} s after the cut, {turned_s[-1]:.1f} s after the node knew")

    assert min(turned_s) < TURNS_S


def test_an_agent_that_is_gone_is_told_and_the_last_that_it_said_stays(
    world: World, links: Iterator[str], sign_in: SignIn
) -> None:
    seen = sign_in(next(links))
    crane = world.machine("crane-1")

    world.kill_agents([crane])
    try:
        expect(seen.locator("#trouble")).to_contain_text("agent")
        expect(seen.locator("#live")).to_contain_text("not answering")
    finally:
        world.start_agents([crane])

    expect(seen.locator("#trouble")).to_be_hidden()
    expect(seen.locator("#live")).to_contain_text("live")


def test_every_place_of_a_real_node_is_there(
    world: World, links: Iterator[str], sign_in: SignIn
) -> None:
    seen = sign_in(next(links))
    home = seen.url.rstrip("/")
    for path in (
        *("/nodes", "/pairs", "/segments", "/communities", "/relays", "/services", "/policies"),
        *("/findings", "/timeline", "/nodes/crane-2", "/pairs/crane-1/digger-1"),
    ):
        answer = seen.goto(home + path)
        assert answer is not None
        assert answer.status == 200, path
        expect(seen.locator("main h1")).to_be_visible()
    seen.goto(home + "/timeline")
    expect(seen.locator(".timeline")).to_contain_text("digger-1")
