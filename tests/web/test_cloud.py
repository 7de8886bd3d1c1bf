"""The page of the whole cluster: a real controller, the real command, TLS, tokens."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from http.client import HTTPMessage
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from limpet.cluster.api import Code
from tests.beds.page import page_of_the_cloud
from tests.controller.machines import Controller, Node, Refusal, free_port
from tests.waiting import wait_until


@dataclass
class Form:
    """As a browser has it that runs no scripts."""

    action: str = ""
    fields: dict[str, str] = field(default_factory=dict)
    button: str = ""


class Forms(HTMLParser):
    """The forms of a page, in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[Form] = []
        self._in_button = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        said = {name: value or "" for name, value in attributes}
        if tag == "form":
            self.found.append(Form(said["action"]))
        elif tag == "input":
            self.found[-1].fields[said["name"]] = said.get("value", "")
        self._in_button = tag == "button"

    def handle_data(self, data: str) -> None:
        if self._in_button and self.found:
            self.found[-1].button += data

    def handle_endtag(self, tag: str) -> None:
        self._in_button = False


@dataclass
class Page:
    """`limpet ui --controller` beside a controller, and a browser that trusts its certificate."""

    controller: Controller
    port: int
    certificate: Path
    log: Path
    cookie: str = ""

    def ask(
        self, method: str, path: str, body: str = "", origin: str = ""
    ) -> tuple[int, HTTPMessage, str]:
        """`origin`: of the page that has the browser ask; empty: of this one."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        connection = http.client.HTTPSConnection(
            "localhost", self.port, timeout=30, context=context
        )
        said = {"Accept": "text/html", "Cookie": self.cookie}
        if method == "POST":
            said["Origin"] = origin or f"https://localhost:{self.port}"
            said["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            connection.request(method, path, body, said)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        finally:
            connection.close()

    def enter(self, secret: str) -> tuple[int, str]:
        """Also in place of who was in before."""
        status, headers, _ = self.ask("POST", "/enter", urlencode({"secret": secret}))
        said = headers.get("Set-Cookie") or ""
        self.cookie = said.partition(";")[0] or self.cookie
        return status, said

    def make_token(self, *words: str) -> str:
        done = self.controller.command("ui", "token", "create", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def _proof(self, uid: str) -> str:
        page = self.ask("GET", f"/nodes/{uid}")[2]
        return page.partition('name="proof" value="')[2].partition('"')[0]

    def act(self, what: str, uid: str, **fields: str) -> tuple[int, str]:
        # A node that has just joined is in the picture from its next look on.
        proof = wait_until(lambda: self._proof(uid), "the node's page has a form")
        body = urlencode({"node": uid, "proof": proof, **fields})
        status, _, text = self.ask("POST", f"/act/{what}", body)
        return status, text

    def shown(self, uid: str, button: str) -> str:
        """The node's page, as soon as it has that button."""
        path = f"/nodes/{uid}"
        return wait_until(
            lambda: next((text for text in [self.ask("GET", path)[2]] if button in text), ""),
            f"{path} has the button {button!r}",
        )

    def press(self, shown: str, button: str, **typed: str) -> str:
        """What the page shows after that button of what it showed was pressed."""
        (form,) = [each for each in Forms(shown).found if each.button == button]
        assert typed.keys() <= form.fields.keys()
        status, _, text = self.ask("POST", form.action, urlencode({**form.fields, **typed}))
        assert status == 200, text
        return text


def joined(controller: Controller, name: str) -> str:
    """Uid of a node that has joined."""

    async def join() -> str:
        async with Node(controller.url, name) as node:
            await node.join(controller.token())
            return node.uid

    return asyncio.run(join())


def done(controller: Controller, words: str) -> dict[str, Any] | None:
    """What a person did, as the controller's timeline has it."""
    entries = controller.ask("events").get("entries", ())
    return next((e for e in entries if e["kind"] == "person" and words in e["words"]), None)


@contextmanager
def served(controller: Controller) -> Iterator[Page]:
    """As the systemd unit starts it: where, and by which name, say the controller's settings."""
    controller.start()
    port = int(str(controller.settings["page_listen"]).rpartition(":")[2])
    log = controller.folder / "page.log"
    with page_of_the_cloud(controller.config, log):
        certificate = Path(str(controller.settings["state_dir"])) / "page" / "page.crt"
        yield Page(controller, port, certificate, log)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    where = f"0.0.0.0:{free_port()}"
    controller = Controller(
        tmp_path_factory.mktemp("cloud"), page_listen=where, page_names=["Limpet.Example.org"]
    )
    try:
        with served(controller) as found:
            yield found
    finally:
        controller.stop()


def test_signing_in_over_tls_looks_and_what_a_reader_may_not_do(page: Page) -> None:
    uid = joined(page.controller, "crane")
    assert page.ask("GET", "/nodes")[0] == 303
    status, cookie = page.enter(page.make_token("ann"))

    assert status == 303
    assert cookie.startswith("__Host-limpet=")
    for flag in ("Secure", "HttpOnly", "SameSite=Strict", "Path=/"):
        assert flag in cookie
    status, headers, text = page.ask("GET", "/nodes")
    assert (status, "crane" in text) == (200, True)
    assert headers["Strict-Transport-Security"]
    assert "/act/" not in page.ask("GET", f"/nodes/{uid}")[2]
    assert page.act("label", uid, key="k", value="v", sure="yes")[0] == 403
    assert page.controller.ask("node.show", node="crane")["labels"] == {}


def test_an_act_asks_again_and_the_timeline_says_who_did_it_and_when(page: Page) -> None:
    uid = joined(page.controller, "digger")
    page.enter(page.make_token("bob", "--write"))

    status, text = page.act("label", uid, key="line", value="7")
    assert (status, "Set the label line=7 of digger?" in text) == (200, True), text
    assert page.controller.ask("node.show", node="digger")["labels"] == {}
    status, text = page.act("label", uid, key="line", value="7", sure="yes")

    assert (status, "Done" in text) == (200, True)
    assert page.controller.ask("node.show", node="digger")["labels"] == {"line": "7"}
    entry = wait_until(lambda: done(page.controller, "node label")) or {}
    assert entry["who"] == "page token bob"
    assert entry["at_s"] > 1.7e9
    assert "page token bob" in page.log.read_text()


def test_a_label_is_set_and_taken_off_by_what_the_page_of_the_node_shows(page: Page) -> None:
    began_at_s = time.time()
    uid = joined(page.controller, "dredger")
    page.enter(page.make_token("fay", "--write"))

    asked = page.press(page.shown(uid, "Set"), "Set", key="example.org/line", value="7")
    assert "Done" in page.press(asked, "Yes, do it")
    asked = page.press(
        page.shown(uid, "Take off label example.org/line"), "Take off label example.org/line"
    )
    assert "Take the label example.org/line from dredger?" in asked
    assert page.controller.ask("node.show", node=uid)["labels"] == {"example.org/line": "7"}
    assert "Done" in page.press(asked, "Yes, do it")

    assert page.controller.ask("node.show", node=uid)["labels"] == {}
    told = Act("fay", uid, "node.label", began_at_s)
    assert_told(page, told, f"node label: node dredger ({uid}), add example.org/line=7")
    assert_told(page, told, f"node label: node dredger ({uid}), drop example.org/line")


def nodes_of(controller: Controller, community: str) -> set[str]:
    found = controller.ask("community.show", community=community)
    return {each["name"] for each in found["nodes"]}


@dataclass(frozen=True)
class Act:
    """What somebody who signed in by the token `who` did to a node."""

    who: str
    uid: str
    verb: str
    began_at_s: float


def assert_told(page: Page, act: Act, words: str) -> None:
    """Who did it and when: in the timeline, as the page has it too, and in both logs."""
    by = f"page token {act.who}"
    entry = wait_until(lambda: done(page.controller, words), f"the timeline has {words!r}") or {}
    assert entry["who"] == by
    assert act.began_at_s <= entry["at_s"] <= time.time()
    text = page.ask("GET", "/timeline")[2]
    assert words in text
    assert by in text
    for log in (page.log, page.controller.log):
        lines = log.read_text().splitlines()
        assert any(act.verb in line and act.uid in line and by in line for line in lines)


def test_a_node_is_taken_out_of_a_community_when_that_was_asked_again(page: Page) -> None:
    began_at_s = time.time()
    uid = joined(page.controller, "barge")
    joined(page.controller, "ferry")
    page.controller.ask("community.create", community="harbour", nodes=["barge", "ferry"])
    page.enter(page.make_token("cleo", "--write"))

    asked = page.press(page.shown(uid, "Take out of harbour"), "Take out of harbour")
    assert "Take barge out of the community harbour?" in asked
    assert "Pairs that share no other are cut off" in asked
    assert nodes_of(page.controller, "harbour") == {"barge", "ferry"}
    assert "Done" in page.press(asked, "Yes, do it")

    assert nodes_of(page.controller, "harbour") == {"ferry"}
    wait_until(lambda: "Take out of harbour" not in page.ask("GET", f"/nodes/{uid}")[2])
    told = Act("cleo", uid, "community.take-out", began_at_s)
    words = f"community take-out: community harbour, nodes barge ({uid})"
    assert_told(page, told, words)
    assert (done(page.controller, words) or {})["names"] == ["barge"]
    assert words in page.ask("GET", f"/timeline?node={uid}")[2]
    made = "community create: community harbour, nodes barge ferry"
    for name in ("barge", "ferry"):
        assert made in page.ask("GET", f"/timeline?node={name}")[2]
    assert words not in page.ask("GET", "/timeline?node=ferry")[2]
    found = page.controller.command("events", "barge", "--cluster").stdout
    assert words in found


def test_a_node_is_removed_when_that_was_asked_again_and_is_then_told_so(page: Page) -> None:
    began_at_s = time.time()
    controller = page.controller

    async def body() -> None:
        async with Node(controller.url, "tender") as node:
            await node.join(controller.token())
            page.enter(page.make_token("dan", "--write"))
            shown = page.shown(node.uid, "Remove this node")

            asked = page.press(shown, "Remove this node")
            assert "Remove tender from the pod network for ever?" in asked
            await node.hello()
            assert segments_of(controller, "tender") == {"held"}
            assert "Done" in page.press(asked, "Yes, do it")

            assert segments_of(controller, "tender") == {"resting"}
            assert controller.ask("node.show", node=node.uid)["state"] == "removed"
            with pytest.raises(Refusal) as refusal:
                await node.hello()
            assert refusal.value.code is Code.REMOVED
            path = f"/nodes/{node.uid}"
            wait_until(lambda: page.ask("GET", path)[0] == 404, "the page has it no more")
            told = Act("dan", node.uid, "node.remove", began_at_s)
            assert_told(page, told, f"node remove: node tender ({node.uid})")

    asyncio.run(body())


def segments_of(controller: Controller, node: str) -> set[str]:
    """What has become of those that it was given."""
    found = controller.ask("segment.list")["segments"]
    return {each["state"] for each in found if each["node"] == node}


def test_a_token_that_is_taken_back_puts_out_who_came_by_it(page: Page) -> None:
    assert page.enter(page.make_token("eve"))[0] == 303
    assert page.ask("GET", "/")[0] == 200
    listed = json.loads(page.controller.command("ui", "token", "list", "-o", "json").stdout)
    (told,) = [each for each in listed["tokens"] if each["name"] == "eve"]
    assert told["may_write"] is False
    assert "digest" not in told

    assert page.controller.command("ui", "token", "remove", "eve").returncode == 0

    assert page.ask("GET", "/")[0] == 303


def test_wrong_tokens_are_counted_and_a_right_one_gets_in_all_the_same(page: Page) -> None:
    token = page.make_token("may")
    assert page.enter("wrong")[0] == 403
    # More than a slow machine is given again meanwhile.
    wait_until(lambda: page.enter("wrong")[0] == 429)
    assert page.enter(token)[0] == 303


def test_no_secret_is_in_the_logs_or_the_file(page: Page) -> None:
    token = page.make_token("joe")
    page.enter(token)
    kept = Path(str(page.controller.settings["state_dir"])) / "page-tokens.json"

    assert kept.stat().st_mode & 0o777 == 0o600
    for path in (kept, page.log, page.controller.log):
        assert token.encode() not in path.read_bytes()
    assert "fingerprint" in page.log.read_text()


def test_refusals_do_not_fill_the_log(page: Page) -> None:
    """Whoever gets to the page may try tokens, and have a browser ask from a page elsewhere; who
    may only look may try to act."""

    def lines(event: str) -> int:
        return sum(f"event={event}" in line for line in page.log.read_text().splitlines())

    uid = joined(page.controller, "skiff")
    page.enter(page.make_token("gus"))
    before = lines("refused"), lines('"sign-in refused"')
    for _ in range(100):
        assert page.enter("wrong")[0] in (403, 429)
        assert page.ask("POST", "/enter", origin="https://elsewhere.example")[0] == 403
        status, said = page.act("remove", uid, sure="yes")
        assert (status, said) == (403, "this session may look, and change nothing\n")

    assert 0 < lines("refused") - before[0] < 50
    assert 0 < lines('"sign-in refused"') - before[1] < 50
