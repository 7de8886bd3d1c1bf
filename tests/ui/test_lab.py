"""The page of a node in a world of the lab: the real command, a real agent, links that die."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from limpet.base.decoding import convert
from limpet.lab.world.world import World
from limpet.picture.pair import Direction, PairDetail
from limpet.web.live.words import rung_words
from tests.beds.page import page_of_the_cloud
from tests.controller.machines import free_port
from tests.lab.bed import TWO_SITES, Pinging, a_world, findings, with_endpoint
from tests.ui.conftest import DESKTOP, PHONE, PICTURES, Links, SignIn, links_of, own_processes
from tests.ui.turning import TRIES, TURNS_S, cut, row_of, turned_s
from tests.ui.waited import Waited
from tests.waiting import PATIENCE_S, wait_until

LOST_IN_THE_CLOUD_S = 5.0
"""Three at the node, and what it takes to be told."""
NAMES = ("crane-1", "crane-2", "digger-1")
_PLACES = (
    *("/nodes", "/pairs", "/segments", "/communities", "/relays", "/services", "/policies"),
    *("/findings", "/timeline", "/nodes/crane-2", "/pairs/crane-1/digger-1"),
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with a_world(TWO_SITES, tmp_path_factory.mktemp("page")) as world:
        yield world


@pytest.fixture(scope="module")
def links(world: World) -> Iterator[Links]:
    """Of crane-1."""
    with links_of(world.machine("crane-1")) as links:
        yield links


def way_to(seen: Page, name: str) -> str:
    """What the table of pairs says of crane-1's way to that node."""
    row = row_of(seen, "crane-1", name)
    return row.inner_text() if row.count() else ""


def is_well(words: str) -> bool:
    return "VXLAN" in words and "lost" not in words


def test_a_world_is_drawn_and_a_link_that_dies_turns(
    world: World, links: Links, sign_in: SignIn
) -> None:
    """Of a link that nobody uses."""
    seen = sign_in(links.next())
    expect(seen.locator(".viewer")).to_contain_text("crane-1")
    wait_until(lambda: "plain route" in seen.locator(".facts .rungs").inner_text())
    seen.screenshot(path=PICTURES / "map.png")
    for name in NAMES:
        seen.get_by_placeholder("Find a node or site").fill(name)
        expect(seen.locator("#map-found")).to_contain_text(name)
    seen.goto(seen.url.rstrip("/") + "/pairs")
    expect(seen.locator("#live")).to_contain_text("live")
    wait_until(lambda: "VXLAN" in way_to(seen, "digger-1"))
    crane = world.machine("crane-1")
    took_s: list[float] = []
    while len(took_s) < TRIES and min(took_s, default=TURNS_S) >= TURNS_S:
        wait_until(lambda: is_well(way_to(seen, "digger-1")))
        with cut(world, "quarry") as cutting:
            took_s.append(turned_s(seen, crane, "digger-1", [crane.agent_pid, links.pid], cutting))

    assert min(took_s) < TURNS_S


def drawn(seen: Page) -> dict[str, int]:
    """How many pairs of each kind the canvas shows."""
    found: dict[str, int] = json.loads(seen.locator("#map").get_attribute("data-pairs") or "{}")
    return found


MIDDLE = """(names) => {
  const map = document.querySelector("#map"), tip = document.querySelector("#tip");
  const box = map.getBoundingClientRect();
  const over = (clientX, clientY) => map.dispatchEvent(
    new PointerEvent("pointermove", { clientX, clientY, bubbles: true }));
  const hits = [];
  for (let y = box.top + 1; y < box.bottom; y += 3) {
    for (let x = box.left + 1; x < box.right; x += 3) {
      over(x, y);
      const said = tip.hidden ? "" : tip.textContent;
      if (said.includes(" – ") && names.every((name) => said.includes(name))) hits.push([x, y]);
    }
  }
  over(box.left + 1, box.top + 1);
  return hits.length
    ? [0, 1].map((axis) => hits.reduce((sum, each) => sum + each[axis], 0) / hits.length) : null;
}"""
"""The middle of all points of the page at which the map says that the line between these nodes is
under the mouse; null: nowhere."""
NEAREST = """([x, y]) => {
  const map = document.querySelector("#map"), box = map.getBoundingClientRect();
  const scale = map.width / box.width, reach = 5, size = 2 * reach + 1;
  const corner = [(x - box.left) * scale - reach, (y - box.top) * scale - reach].map(Math.round);
  // A copy: Chromium warns of a canvas that is read twice.
  const copy = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  copy.drawImage(map, ...corner, size, size, 0, 0, size, size);
  const data = copy.getImageData(0, 0, size, size).data;
  const probe = document.body.appendChild(document.createElement("i"));
  const far = (kind) => {
    probe.style.color = `var(--${kind})`;
    const wanted = getComputedStyle(probe).color.match(/\\d+/g).map(Number);
    const away = (at) => data[at + 3] < 128 ? Infinity : Math.hypot(
      ...wanted.map((value, i) => value - data[at + i]));
    return Math.min(...Array.from({ length: size * size }, (_, i) => away(4 * i)));
  };
  const kinds = ["route", "vxlan", "tunnel", "relay", "relay-tls", "lost"].map(
    (kind) => [far(kind), kind]).sort((a, b) => a[0] - b[0]);
  probe.remove();
  return kinds[0][0] < 60 ? kinds[0][1] : "";
}"""
"""Of which kind's colour a pixel of the canvas within five of that point is, if any: a line is two
pixels wide, and what is under it shines through by 15 %."""


def middle_of(seen: Page, *names: str) -> tuple[float, float]:
    """Of the line between two nodes."""
    x, y = wait_until(lambda: seen.evaluate(MIDDLE, names), f"a line between {names}")
    return x, y


def colour_of(seen: Page, *names: str) -> str:
    """The kind whose colour the line between two nodes has."""
    found: str = seen.evaluate(NEAREST, middle_of(seen, *names))
    return found


def test_the_map_draws_each_pair_by_its_kind_and_a_line_that_is_clicked_opens_it(
    world: World, links: Links, sign_in: SignIn
) -> None:
    seen = sign_in(links.next())
    wait_until(lambda: drawn(seen) == {"route": 1, "vxlan": 1})
    panel = seen.locator("#panel")
    wait_until(lambda: colour_of(seen, "crane-1", "digger-1") == "vxlan")

    seen.mouse.click(*middle_of(seen, "crane-1", "digger-1"))
    expect(panel.get_by_role("heading", level=1)).to_have_text(
        re.compile("crane-1 – digger-1|digger-1 – crane-1")
    )
    expect(panel).to_contain_text("VXLAN")
    panel.get_by_role("button", name="Close").click()
    expect(panel).to_be_hidden()

    world.cut("quarry")
    try:
        wait_until(lambda: drawn(seen) == {"route": 1, "lost": 1})
        # A node that answers no more is in no proven site, so it may stand elsewhere.
        wait_until(lambda: colour_of(seen, "crane-1", "digger-1") == "lost")
        seen.mouse.click(*middle_of(seen, "crane-1", "digger-1"))
        expect(panel).to_contain_text("lost")
    finally:
        world.restore("quarry")
    wait_until(lambda: drawn(seen) == {"route": 1, "vxlan": 1})


def test_a_pair_that_is_cut_is_lost_on_the_page_in_the_cloud(
    world: World, tmp_path: Path, sign_in: SignIn
) -> None:
    """By a token that is typed, over TLS. The pods talk, as else a path is asked seldom. The nodes
    tell the cloud what they know as it changes, and the page asks the controller each second."""
    port = free_port()
    words = ("--listen", f"0.0.0.0:{port}", "--name", "localhost")
    token = world.controller.command("ui", "token", "create", "ann").strip()
    machines = [world.machine(name) for name in ("crane-1", "digger-1")]
    (pod,), (far,) = (machine.pods.values() for machine in machines)
    with page_of_the_cloud(world.controller.config_path, tmp_path / "page.log", *words):
        seen = sign_in(f"https://localhost:{port}/enter", token=token)
        expect(seen.locator(".viewer")).to_contain_text("controller")
        wait_until(lambda: drawn(seen) == {"route": 1, "vxlan": 2})
        with Pinging(pod.netns, far.addresses[0].ip):
            cut_at_s, waited = time.time(), Waited(own_processes())
            world.cut("quarry")
            try:
                wait_until(lambda: drawn(seen).get("lost"))
                took_s, busy_s = time.time() - cut_at_s, waited.most_s()
                wait_until(lambda: colour_of(seen, "crane-1", "digger-1") == "lost")
                seen.goto(f"https://localhost:{port}/pairs")
                wait_until(lambda: "lost" in way_to(seen, "digger-1"))
            finally:
                world.restore("quarry")
        wait_until(lambda: is_well(way_to(seen, "digger-1")))
    print(f"lost {took_s:.2f} s after the cut, of it {busy_s:.2f} s for a busy machine")
    assert took_s - busy_s < LOST_IN_THE_CLOUD_S


@pytest.mark.parametrize(("here", "there"), [("crane-1", "digger-1"), ("digger-1", "crane-1")])
def test_round_trip_and_loss_are_shown_of_every_pair_at_either_end_of_it(
    world: World, sign_in: SignIn, here: str, there: str
) -> None:
    """A node has measured its own direction alone, and one of the two ends has the higher uid."""
    with links_of(world.machine(here)) as links:
        seen = sign_in(links.next())
        home = seen.url.rstrip("/")
        seen.goto(home + "/pairs")
        rows = seen.locator("#list tbody tr")
        expect(rows).to_have_count(2)
        expect(rows.filter(has_text=there)).to_have_count(1)
        for row in rows.all():
            round_trip, loss, since = row.locator("td").all()[2:]
            expect(round_trip).to_have_text(re.compile(r"^[0-9.]+ ms$"))
            expect(loss).to_have_text(re.compile(r"^[0-9]+ %$"))
            expect(since).not_to_have_text("–")

        seen.goto(f"{home}/nodes/{here}")
        ways = seen.locator(".ways li")
        expect(ways).to_have_count(2)
        for way in ways.all():
            expect(way).to_have_text(re.compile(r"[0-9.]+ ms, [0-9]+ % lost$"))


@pytest.mark.parametrize(("here", "there"), [("crane-1", "digger-1"), ("digger-1", "crane-1")])
def test_a_pair_shows_where_its_packets_go_and_the_last_probe_of_each_rung(
    world: World, sign_in: SignIn, here: str, there: str
) -> None:
    machine = world.machine(here)
    uids = {each["name"]: each["uid"] for each in machine.ask("picture")["nodes"]}
    one, other = sorted((uids[here], uids[there]))

    def direction() -> Direction:
        detail = convert(machine.ask("pair", one=one, other=other), PairDetail)
        found = detail.there if detail.one == uids[here] else detail.back
        assert found is not None
        return found

    with links_of(machine) as links:
        seen = sign_in(links.next())
        seen.goto(f"{seen.url.rstrip('/')}/pairs/{here}/{there}")
        shown = seen.get_by_role("region", name=f"From {here} to {there}")

        def are_as_told() -> bool:
            """What the agent says changes from probe to probe."""
            seen.reload()
            return all(_is_shown(shown, words) for words in _words_of(direction()))

        wait_until(are_as_told, "the page shows what the agent tells")
        told = direction()
        assert {each.rung for each in told.probes} >= {"vxlan", "tunnel"}
        assert told.outward.mtu_bytes
        assert told.outward.underlay
        (used,) = {each.rung for each in told.probes if each.in_use}
        expect(shown.locator("tr.used").first).to_contain_text(rung_words()[used])


def _words_of(told: Direction) -> Iterator[tuple[str, ...]]:
    """What stands together in one place of the page."""
    yield "MTU", f"{told.outward.mtu_bytes} bytes"
    yield "Underlay", told.outward.underlay
    yield "Device", told.outward.device
    for probe in told.probes:
        answered = {None: "never asked", True: "yes", False: "no"}[probe.answered]
        tried = (rung_words()[probe.rung], probe.what, probe.to, probe.why)
        yield (*tried, answered, "–" if probe.rtt_ms is None else " ms")


def _is_shown(shown: Locator, words: tuple[str, ...]) -> bool:
    places = shown.locator("dl.about div, table.probes tbody tr").all_inner_texts()
    return any(all(word in place for word in words) for place in places)


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_page_that_is_open_says_that_the_cloud_is_cut_off_and_since_when_and_nothing_hangs(
    world: World, links: Links, sign_in: SignIn, size: tuple[int, int]
) -> None:
    crane = world.machine("crane-1")
    seen = sign_in(links.next(), size=size)
    said = seen.locator("#cloud")
    expect(said).to_be_hidden()
    seen.evaluate("window.stays = true")
    before = datetime.now(UTC).replace(second=0, microsecond=0)

    world.cut("cloud")
    try:
        expect(said).to_be_visible(timeout=PATIENCE_S * 1000)
        expect(said).to_contain_text("Cut off from the cloud: crane-1 does not hear the controller")
        since = re.search(r"since ([0-9-]{10} [0-9:]{5}) UTC", said.inner_text())
        assert since
        at = datetime.strptime(since[1], "%Y-%m-%d %H:%M").replace(tzinfo=UTC)
        assert before - timedelta(minutes=1) <= at <= datetime.now(UTC) + timedelta(minutes=1)
        assert seen.evaluate("window.stays"), "nobody had to load the page again"
        expect(seen.locator("#live")).to_have_attribute("data-state", "live")
        home = seen.url.rstrip("/")
        for path in _PLACES:
            answer = seen.goto(home + path)
            assert answer is not None
            assert answer.status == 200, path
            expect(said).to_be_visible()
        seen.goto(home + "/pairs")
        wait_until(lambda: is_well(way_to(seen, "digger-1")), "what it knows goes on")
        assert crane.ask("picture")["viewer"]["connected"] is False
    finally:
        world.restore("cloud")
    expect(said).to_be_hidden(timeout=PATIENCE_S * 1000)


def test_an_agent_that_is_gone_is_told_and_the_last_that_it_said_stays(
    world: World, links: Links, sign_in: SignIn
) -> None:
    seen = sign_in(links.next())
    crane = world.machine("crane-1")

    world.kill_agents([crane])
    try:
        expect(seen.locator("#trouble")).to_contain_text("agent")
        expect(seen.locator("#live")).to_contain_text("not answering")
    finally:
        world.start_agents([crane])

    expect(seen.locator("#trouble")).to_be_hidden()
    expect(seen.locator("#live")).to_contain_text("live")


def test_every_place_of_a_real_node_is_there(world: World, links: Links, sign_in: SignIn) -> None:
    seen = sign_in(links.next())
    home = seen.url.rstrip("/")
    for path in _PLACES:
        answer = seen.goto(home + path)
        assert answer is not None
        assert answer.status == 200, path
        expect(seen.locator("main h1")).to_be_visible()
    seen.goto(home + "/timeline")
    expect(seen.locator(".timeline")).to_contain_text("digger-1")


def test_policies_are_told_of_a_pair_by_its_nodes_and_by_the_controller(
    world: World, links: Links, sign_in: SignIn
) -> None:
    (pod,) = world.machine("digger-1").pods.values()
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"namespace": pod.namespace, "name": "closed"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
    }
    seen = sign_in(links.next())
    home = seen.url.rstrip("/")

    seen.goto(home + "/pairs/crane-1/digger-1")
    expect(seen.locator("main")).to_contain_text("Policies on it")
    expect(seen.locator("main")).to_contain_text("no policy holds on crane-1")
    world.controller.ask("policy.apply", documents=[policy])
    wait_until(lambda: world.machine("crane-1").ask("policy.list")["policies"])
    wait_until(lambda: "of digger-1 receive is held to policies" in told(seen))
    assert f"{pod.namespace}/closed" in told(seen)
    assert "selects 1 pod: lets in, from pods of crane-1, nothing" in told(seen)
    seen.goto(home + "/policies")
    expect(seen.locator("main")).to_contain_text("lets in nothing")

    nodes = {each["name"]: each["uid"] for each in world.controller.ask("picture")["nodes"]}
    one, other = nodes["crane-1"], nodes["digger-1"]
    (said,) = world.controller.ask("pair", one=one, other=other)["policies"]
    assert (said["name"], said["direction"]) == (f"{pod.namespace}/closed", "ingress")
    assert "lets in nothing" in said["words"]


def told(seen: Page) -> str:
    """Of what is shown now."""
    seen.reload()
    shown: str = seen.locator("main").inner_text()
    return shown


def test_a_fault_of_the_node_is_among_the_findings_until_it_is_mended(
    world: World, links: Links, sign_in: SignIn
) -> None:
    """A person has written one endpoint down for two nodes."""
    seen = sign_in(links.next())
    seen.goto(seen.url.rstrip("/") + "/findings")
    one, other = world.machine("crane-1"), world.machine("crane-2")
    assert "endpoint-shared" not in findings(one)

    with with_endpoint(one, "203.0.113.77:7471"), with_endpoint(other, "203.0.113.77:7471"):
        said = wait_until(lambda: findings(one).get("endpoint-shared", ""))
        wait_until(lambda: said in asked(seen))
        seen.reload()
        finding = seen.locator(".finding").filter(has_text=said)
        expect(finding.get_by_role("heading", level=2)).to_contain_text("warn")
        expect(finding).to_contain_text("What to do:")
        expect(finding).to_contain_text("limpet help endpoint-shared")
    wait_until(lambda: said not in asked(seen))


def asked(seen: Page) -> str:
    """The text of the same place, asked for beside the browser's page: a page that is loaded
    again and again opens more connections than one browser is granted."""
    return unescape(seen.context.request.get(seen.url).text())
