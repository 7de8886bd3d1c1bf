"""How long it takes from the cut of a link to what the page shows of it, by one clock."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator

from playwright.sync_api import Locator, Page

from limpet.lab.world.machine import Machine
from limpet.lab.world.world import World
from tests.ui.waited import Waited
from tests.waiting import wait_until

TURNS_S = 3.0
TRIES = 3

_WATCH_ROWS = """(names) => {
  window.turned_ = 0;
  const isOf = (row) => names.every((name) => row.querySelector("th").innerText.includes(name));
  const lost = () => [...document.querySelectorAll("#list tbody tr")].some((row) =>
    isOf(row) && row.innerText.includes("lost"));
  new MutationObserver(() => { if (!window.turned_ && lost()) window.turned_ = Date.now(); })
    .observe(document.body, { subtree: true, childList: true, characterData: true });
}"""
"""When the row of a pair in the table of pairs first says that it is lost."""


@contextlib.contextmanager
def cut(world: World, link: str) -> Iterator[Callable[[], None]]:
    """What cuts that link of the world, which is whole again behind the block."""
    try:
        yield lambda: world.cut(link)
    finally:
        world.restore(link)


def row_of(seen: Page, one: str, other: str) -> Locator:
    """The pair's row in the table of pairs, by its head: another pair's way names its relay."""
    rows = seen.locator("#list tbody tr")
    for name in (one, other):
        rows = rows.filter(has=seen.locator("th", has_text=name))
    return rows.first


def turned_s(
    seen: Page, here: Machine, peer: str, programs: Iterable[int], cutting: Callable[[], None]
) -> float:
    """Seconds from the cut, made just after the link was found well, to the pair's row in the
    browser, which shows the table of pairs. On a busy machine without the time that `programs`
    (pids) and the browser waited for a processor, by the kernel's own count."""
    seen.evaluate(_WATCH_ROWS, [here.label, peer])
    _await_answer(here, peer)
    cut_at_s, waited = time.time(), Waited(programs)
    cutting()
    wait_until(lambda: seen.evaluate("window.turned_"), f"the pair with {peer} is lost")
    busy_s = waited.most_s()
    whole_s = float(seen.evaluate("window.turned_")) / 1000 - cut_at_s
    print(f"turned {whole_s:.2f} s after the cut, of it {busy_s:.2f} s for a busy machine")
    return whole_s - busy_s


def _await_answer(here: Machine, peer: str) -> None:
    """Returns just after what the path stands on was answered: it is asked again as late as it may
    be."""
    picture = here.ask("picture")
    own = picture["viewer"]["uid"]
    theirs = next(each["uid"] for each in picture["nodes"] if each["name"] == peer)
    one, other = sorted((own, theirs))

    def answered_at_s() -> float:
        detail = here.ask("pair", one=one, other=other)
        way = detail["there" if one == own else "back"]
        used = (each for each in way["probes"] if each.get("in_use"))
        return max((float(each.get("answered_at_s", 0)) for each in used), default=0.0)

    before_s = answered_at_s()
    wait_until(lambda: answered_at_s() > before_s)
