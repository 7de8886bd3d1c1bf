"""The page in a real browser, with pictures that are made up."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from msgspec.structs import replace
from playwright.sync_api import Browser, Page, expect

from limpet.picture.nodes import NodeState
from limpet.picture.pair import Reach, Way
from limpet.web.access.sessions import PageToken, Sessions, digest_of
from tests.beds.page import PictureSource, page
from tests.beds.pictured import world
from tests.ui.conftest import DESKTOP, PHONE, PICTURES, Listening, SignIn, own_processes
from tests.ui.waited import Waited
from tests.waiting import PATIENCE_S, wait_until

WRITER = PageToken(name="bob", digest=digest_of("write"), may_write=True, expires_at_s=1e12)


class Served:
    """A page that is served, and its source."""

    def __init__(self, source: PictureSource, address: str, sessions: Sessions) -> None:
        self.source = source
        self.address = address
        self.sessions = sessions

    def link(self) -> str:
        return f"{self.address}/enter#{self.sessions.new_link()}"


@pytest.fixture(scope="module")
def small() -> Iterator[Served]:
    source = PictureSource(world(24), can_act=True)
    with page(source, lambda: {WRITER.digest: WRITER}) as (address, sessions):
        yield Served(source, address, sessions)


@pytest.fixture(scope="module")
def large() -> Iterator[Served]:
    source = PictureSource(world(1000))
    with page(source) as (address, sessions):
        yield Served(source, address, sessions)


def places(served: Served) -> list[str]:
    nodes = served.source.now.nodes
    lists = ("nodes", "pairs", "segments", "communities", "relays", "services", "policies")
    return [
        *(f"/{each}" for each in (*lists, "findings", "timeline")),
        f"/nodes/{nodes[0].uid}",
        f"/pairs/{nodes[0].uid}/{nodes[1].uid}",
        f"/sites/{nodes[0].site}",
    ]


def violations(found: Page) -> list[str]:
    """What axe finds wrong, in short."""
    outcome = Axe().run(found).response["violations"]
    return [
        f"{found.url} {each['id']}: {each['nodes'][0]['html'][:120]} "
        f"{each['nodes'][0].get('failureSummary', '')[:160]}"
        for each in outcome
    ]


THEMES = pytest.mark.parametrize("theme", ["light", "dark"])
SIZES = pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])


@THEMES
@SIZES
def test_everybody_can_read_every_place(
    small: Served, sign_in: SignIn, theme: str, size: tuple[int, int]
) -> None:
    seen = sign_in(small.link(), size=size, theme=theme)
    found = violations(seen)
    for path in places(small):
        seen.goto(small.address + path)
        found += violations(seen)
    seen.goto(small.address + "/enter")
    found += violations(seen)

    assert found == []


@THEMES
@SIZES
def test_everybody_can_read_a_pair_beside_the_map_and_the_question_before_an_act(
    small: Served, sign_in: SignIn, theme: str, size: tuple[int, int]
) -> None:
    seen = sign_in(f"{small.address}/enter#write", size=size, theme=theme)
    pair = next(each for each in small.source.now.pairs if each.there.rung == "relay")
    node = next(each for each in small.source.now.nodes if each.uid == pair.one)
    panel = seen.locator("#panel")

    seen.get_by_placeholder("Find a node or site").fill(node.name)
    seen.keyboard.press("Enter")
    expect(panel.get_by_role("heading", level=1)).to_contain_text(node.name)
    panel.get_by_label("Community").fill("line-7")
    panel.get_by_role("button", name="Put in").click()
    expect(panel.get_by_text(f"Put {node.name} into the community line-7?")).to_be_visible()
    found = violations(seen)
    panel.locator(f"[data-pair='{pair.one} {pair.other}']").click()
    expect(panel.get_by_text("Last probe of each rung")).to_be_visible()
    found += violations(seen)
    seen.goto(f"{small.address}/nodes/{node.uid}")
    seen.get_by_role("button", name="Remove this node").click()
    expect(seen.get_by_role("button", name="Yes, do it")).to_be_visible()
    found += violations(seen)

    assert found == []
    assert small.source.acted == []


@THEMES
@SIZES
def test_everybody_can_read_why_a_node_is_cut_off(
    small: Served, sign_in: SignIn, theme: str, size: tuple[int, int]
) -> None:
    before = small.source.now
    why = "does not hear the controller at 203.0.113.10:7470 since 2026-11-27 09:38 UTC: " + 9 * "x"
    viewer = replace(before.viewer, kind="node", name="crane-1", connected=False, cloud=why)
    seen = sign_in(small.link(), size=size, theme=theme)

    small.source.now = replace(before, version="4", viewer=viewer)
    try:
        expect(seen.locator("#cloud")).to_have_text(f"Cut off from the cloud: crane-1 {why}")
        found = violations(seen)
        width = seen.evaluate("document.documentElement.scrollWidth")
    finally:
        small.source.now = replace(before, version="5")
    expect(seen.locator("#cloud")).to_be_hidden()

    assert found == []
    assert width <= size[0]


def test_no_place_is_wider_than_a_phone(small: Served, sign_in: SignIn) -> None:
    seen = sign_in(small.link(), size=PHONE)
    for path in ["/", *places(small)]:
        seen.goto(small.address + path)
        width = seen.evaluate("document.documentElement.scrollWidth")
        assert width <= PHONE[0], f"{path} is {width} pixels wide"
    seen.goto(small.address + "/")
    seen.wait_for_selector("#map[data-drawn]")
    seen.screenshot(path=PICTURES / "phone.png")


def test_the_theme_is_the_systems_until_somebody_chooses(small: Served, sign_in: SignIn) -> None:
    seen = sign_in(small.link(), theme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = seen.evaluate(ground)

    seen.get_by_role("button", name="Light or dark").click()
    light = seen.evaluate(ground)
    seen.reload()

    assert dark != light
    assert seen.evaluate(ground) == light


def test_by_keyboard_alone_one_finds_a_node_and_reads_its_pairs(
    small: Served, sign_in: SignIn
) -> None:
    seen = sign_in(small.link())
    node = small.source.now.nodes[5]

    seen.keyboard.press("/")
    expect(seen.get_by_placeholder("Find a node or site")).to_be_focused()
    seen.keyboard.type(node.name)
    expect(seen.locator("#map-found")).to_contain_text(node.name)
    seen.keyboard.press("Enter")
    panel = seen.locator("#panel")
    expect(panel.get_by_role("heading", level=1)).to_contain_text(node.name)

    seen.locator("#map").focus()
    seen.keyboard.press("ArrowRight")
    expect(seen.locator("#map-said")).not_to_be_empty()
    seen.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    seen.keyboard.press("ArrowLeft")
    seen.keyboard.press("Enter")
    expect(panel).to_be_focused()
    seen.keyboard.press("Tab")
    seen.keyboard.press("Tab")
    assert seen.evaluate("document.querySelector('#panel').contains(document.activeElement)")
    seen.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    expect(seen.locator("#map")).to_be_focused()


def test_a_pair_that_is_clicked_tells_both_directions_and_what_would_mend_it(
    small: Served, sign_in: SignIn
) -> None:
    seen = sign_in(small.link())
    pair = next(each for each in small.source.now.pairs if each.there.rung == "relay")
    seen.goto(f"{small.address}/nodes/{pair.one}")

    seen.locator(f"[data-pair='{pair.one} {pair.other}']").click()

    expect(seen.get_by_text("Last probe of each rung")).to_be_visible()
    for words in ("Why not direct", "What would mend it", "symmetric", "1420 bytes", "in use"):
        expect(seen.get_by_text(words).first).to_be_visible()
    expect(seen.get_by_text("it has not reported since Tuesday")).to_be_visible()
    seen.screenshot(path=PICTURES / "pair.png")


def test_what_changes_is_shown_without_a_reload(small: Served, sign_in: SignIn) -> None:
    seen = sign_in(small.link())
    lists = sign_in(small.link())
    lists.goto(small.address + "/pairs")
    before = small.source.now
    at = next(i for i, each in enumerate(before.pairs) if each.there.reach is Reach.REACHED)
    lost = Way(reach=Reach.LOST, rung="tunnel")
    pair = replace(before.pairs[at], there=lost, back=lost)
    pairs = (*before.pairs[:at], pair, *before.pairs[at + 1 :])
    seen.evaluate("window.stays = true")

    small.source.now = replace(before, version="2", pairs=pairs)

    row = lists.locator(f"[id='pair-{pair.one}-{pair.other}']")
    expect(row).to_contain_text("lost")
    count = sum(each.there.reach is Reach.LOST for each in pairs)
    expect(seen.locator(".facts .rungs")).to_contain_text(f"{count} lost")
    assert seen.evaluate("window.stays")
    small.source.now = replace(before, version="3")
    expect(seen.locator(".facts .rungs")).to_contain_text(f"{count - 1} lost")


SAYS_WHEN_OPEN = """window.EventSource = class extends EventSource {
  constructor(...words) {
    super(...words);
    this.addEventListener("open", () => { window.opened_ = true; });
  }
}"""


def test_a_page_that_is_loaded_while_nobody_answers_says_so_until_somebody_does(
    sign_in: SignIn,
) -> None:
    source = PictureSource(world(6))
    with page(source) as (address, sessions):
        seen = sign_in(Served(source, address, sessions).link())
        live, trouble = seen.locator("#live"), seen.locator("#trouble")
        expect(live).to_contain_text("live")
        seen.add_init_script(SAYS_WHEN_OPEN)

        source.silent = "the agent does not answer"
        expect(live).to_contain_text("not answering")
        seen.reload()
        seen.wait_for_function("window.opened_")

        expect(live).to_contain_text("not answering")
        expect(trouble).to_have_text(source.silent)
        source.silent = ""
        expect(live).to_contain_text("live")
        expect(trouble).to_be_hidden()


def test_a_page_that_was_cut_off_says_what_is_so_when_it_is_back(browser: Browser) -> None:
    """Its stream is asked for as at first, so that it is told of what has changed since."""
    source = PictureSource(world(6))
    with page(source) as (address, sessions), browser.new_context() as context:
        seen = context.new_page()
        context.route("**/live?*", lambda route: route.abort("connectionreset"))
        seen.goto(Served(source, address, sessions).link())
        live, trouble = seen.locator("#live"), seen.locator("#trouble")
        expect(live).to_contain_text("not connected")
        source.now = replace(source.now, version="2")
        nodes = f"{address}/nodes"
        wait_until(lambda: 'data-version="2"' in context.request.get(nodes).text())
        source.silent = "the agent does not answer"
        wait_until(lambda: source.silent in context.request.get(nodes).text())

        context.unroute("**/live?*")

        expect(live).to_contain_text("not answering", timeout=PATIENCE_S * 1000)
        expect(trouble).to_have_text(source.silent)
        expect(seen.locator("body")).to_have_attribute("data-version", "2")
        source.silent = ""
        expect(live).to_contain_text("live")
        expect(trouble).to_be_hidden()


def test_a_page_that_the_browser_has_kept_hears_again_when_it_is_shown_again(
    browser: Browser,
) -> None:
    """As by the buttons for back and forward."""
    source = PictureSource(world(6))
    with page(source) as (address, sessions), browser.new_context() as context:
        seen = context.new_page()
        seen.goto(Served(source, address, sessions).link())
        expect(seen.locator("#map[data-drawn]")).to_be_visible()
        turn = "(what) => dispatchEvent(new PageTransitionEvent(what, { persisted: true }))"
        seen.evaluate(turn, "pagehide")
        source.now = replace(source.now, version="2")

        seen.evaluate(turn, "pageshow")

        expect(seen.locator("body")).to_have_attribute("data-version", "2")
        source.now = replace(source.now, version="3")
        expect(seen.locator("body")).to_have_attribute("data-version", "3")


def test_who_may_write_is_asked_and_then_it_is_done(small: Served, sign_in: SignIn) -> None:
    seen = sign_in(f"{small.address}/enter#write")
    node = small.source.now.nodes[5]
    seen.goto(f"{small.address}/nodes/{node.uid}")

    seen.get_by_label("Community").fill("line-7")
    seen.get_by_role("button", name="Put in").click()
    expect(seen.get_by_text(f"Put {node.name} into the community line-7?")).to_be_visible()
    assert small.source.acted == []
    seen.get_by_role("button", name="Yes, do it").click()

    expect(seen.get_by_text("Done.")).to_be_visible()
    (acted,) = small.source.acted
    assert acted[:2] == ("community.add", "page token bob")


def cpu_s() -> float:
    """Of this process, which serves, and of all that it has started and that still runs."""
    ticks = os.sysconf("SC_CLK_TCK")
    spent = (stat[11:13] for stat in own_processes().values())
    return sum(int(user) + int(system) for user, system in spent) / ticks


def test_what_is_panned_is_what_would_be_painted_there(large: Served, sign_in: SignIn) -> None:
    """It is painted once and then moved, also beyond what was painted around it."""
    seen = sign_in(large.link())
    seen.wait_for_selector("#map[data-drawn]")
    box = seen.locator("#map").bounding_box()
    assert box
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    read = (
        "(() => { const m = document.querySelector('#map'), c = document.createElement('canvas');"
        " [c.width, c.height] = [m.width, m.height];"
        " const of = c.getContext('2d', { willReadFrequently: true }); of.drawImage(m, 0, 0);"
        " return of.getImageData(0, 0, m.width, m.height).data; })()"
    )
    keep = f"() => {{ window.kept_ = {read}; }}"
    others = (  # edges of lines are softened by where they begin
        f"() => {{ const before = window.kept_, now = {read}; let n = 0;"
        " for (let i = 0; i < now.length; i += 4)"
        " if ([0, 1, 2].some(j => Math.abs(now[i + j] - before[i + j]) > 40)) n += 1;"
        " return n / (now.length / 4); }"
    )
    frame = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    seen.mouse.move(x, y)
    seen.mouse.down()
    for moved in (10, 40, 300):
        seen.evaluate(keep)
        seen.mouse.move(x + moved, y - moved / 2)
        seen.evaluate(frame)
        assert seen.evaluate(others) > 0.01, "it has moved"
        seen.evaluate(keep)
        seen.evaluate("() => dispatchEvent(new Event('limpet-theme'))")
        seen.evaluate(frame)
        assert seen.evaluate(others) < 0.004
    seen.mouse.up()


def test_a_thousand_nodes_are_drawn_within_two_seconds_and_panned_smoothly(
    large: Served, sign_in: SignIn
) -> None:
    """By the clock, without what a busy machine lets one wait, and by the time that all processors
    spend on it, page and server and browser together."""
    seen = sign_in(large.link())
    before_s, waited = cpu_s(), Waited([os.getpid()])
    seen.reload()
    seen.wait_for_selector("#map[data-drawn]")
    drawn_s, waited_s = cpu_s() - before_s, waited.most_s()
    wall_s = seen.evaluate("performance.getEntriesByName('limpet-drawn')[0].startTime") / 1000
    seen.wait_for_timeout(300)
    seen.screenshot(path=PICTURES / "thousand.png")

    box = seen.locator("#map").bounding_box()
    assert box
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    seen.mouse.move(x, y)
    seen.mouse.down()
    frames = 60
    seen.evaluate(
        "() => { window.frames_ = 0; const c = document.querySelector('#map').getContext('2d');"
        " const real = c.clearRect.bind(c); c.clearRect = (...a) => { frames_ += 1; real(...a); } }"
    )
    before_s = cpu_s()
    for at in range(frames):
        seen.mouse.move(x + 3 * at, y + at)
    panned_s = cpu_s() - before_s
    seen.mouse.up()
    painted = seen.evaluate("window.frames_")
    print(f"drawn in {wall_s:.2f} s, of it {waited_s:.2f} for a busy machine", end=", ")
    print(f"{drawn_s:.2f} s of processors; {painted} frames", end=" ")
    print(f"of {panned_s / max(1, painted) * 1000:.1f} ms")

    assert wall_s - waited_s < 2.0
    assert drawn_s < 2.0
    assert painted >= frames / 3
    assert panned_s / painted < 0.050


def test_of_a_thousand_nodes_one_is_found_on_the_map_and_in_the_table(
    large: Served, sign_in: SignIn
) -> None:
    seen = sign_in(large.link())
    node = next(each for each in large.source.now.nodes if each.state is NodeState.SILENT)

    seen.get_by_placeholder("Find a node or site").fill(node.name)
    seen.keyboard.press("Enter")
    expect(seen.locator("#panel h1")).to_contain_text(node.name)
    seen.goto(large.address + "/nodes")
    seen.get_by_placeholder("Find by name").fill(node.name)

    expect(seen.locator("#list tbody tr:not(.group)")).to_have_count(1)
    expect(seen.locator("#list")).to_contain_text("nothing was heard from it for 2 h")


def test_a_link_that_was_used_lets_nobody_in(small: Served, sign_in: SignIn) -> None:
    link = small.link()
    seen = sign_in(link, size=DESKTOP)
    cookies = seen.context.cookies()
    seen.context.clear_cookies()

    answer = seen.context.request.post(
        f"{small.address}/enter",
        form={"secret": link.partition("#")[2]},
        headers={"Origin": small.address},
    )

    assert answer.status == 403
    assert [each["httpOnly"] for each in cookies] == [True]
    assert [each["sameSite"] for each in cookies] == ["Strict"]


ASK_IN_VAIN = """(path) => {
  const asking = new AbortController();
  const asked = fetch(path, { signal: asking.signal }).catch(() => "");
  asking.abort();
  return asked;
}"""


def test_a_request_that_fails_is_a_failure_but_for_those_of_a_page_that_is_left(
    small: Served, browser: Browser
) -> None:
    """What every other test here holds at its end."""
    said: list[str] = []
    link = small.link()
    with browser.new_context() as context:
        page = context.new_page()
        Listening(page, link, said)
        page.goto(link)
        expect(page.locator("#live")).to_contain_text("live")
        page.goto(f"{small.address}/nodes")
        expect(page.locator("#live")).to_contain_text("live")
        assert said == []

        page.evaluate(ASK_IN_VAIN, f"{small.address}/pairs")

        wait_until(lambda: page.evaluate("1") and said, "it is noticed")
        page.goto(f"{small.address}/segments")
        assert said == [f"failed: GET {small.address}/pairs: net::ERR_ABORTED"]
