"""Who gets to see the page, and to change anything, over HTTP as it is."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape
from urllib.parse import urlencode, urlsplit

import pytest

from limpet.base.bounds.strangers import PAGE_SIGN_INS
from limpet.web.access.sessions import PageToken, Sessions, digest_of
from tests.beds.page import PictureSource, page
from tests.beds.pictured import LEFT_OUT, world

READER = PageToken(name="ann", digest=digest_of("read"), expires_at_s=1e12)
WRITER = PageToken(name="bob", digest=digest_of("write"), may_write=True, expires_at_s=1e12)
TOKENS = {each.digest: each for each in (READER, WRITER)}


@dataclass
class Answer:
    status: int
    headers: http.client.HTTPMessage
    text: str


@dataclass
class Browser:
    """Asks as a browser does, one connection for each request."""

    address: str
    cookie: str = ""

    def ask(self, method: str, path: str, body: str = "", **headers: str) -> Answer:
        host = urlsplit(self.address).netloc
        said = {"Host": host, "Accept": "text/html", "Cookie": self.cookie}
        if method == "POST":
            said["Origin"] = self.address
            said["Content-Type"] = "application/x-www-form-urlencoded"
        said.update({name.replace("_", "-"): value for name, value in headers.items()})
        connection = http.client.HTTPConnection(host, timeout=30)
        try:
            connection.putrequest(method, path, skip_host=True)
            for name, value in said.items():
                if value:
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body.encode())
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read().decode())
        finally:
            connection.close()

    def enter(self, secret: str) -> Answer:
        answer = self.ask("POST", "/enter", urlencode({"secret": secret}))
        self.cookie = (answer.headers.get("Set-Cookie") or "").partition(";")[0] or self.cookie
        return answer


@dataclass
class Served:
    source: PictureSource
    address: str
    sessions: Sessions

    def browser(self) -> Browser:
        return Browser(self.address)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    source = PictureSource(world(30), can_act=True)
    with page(source, lambda: TOKENS) as (address, sessions):
        yield Served(source, address, sessions)


PLACES = (
    *("/", "/nodes", "/pairs", "/segments", "/communities", "/relays", "/services", "/policies"),
    *("/findings", "/timeline", "/map.json"),
)


@pytest.mark.parametrize("path", [*PLACES, "/live", "/nodes/x", "/nothing"])
def test_who_has_not_signed_in_sees_nothing(served: Served, path: str) -> None:
    found = served.browser().ask("GET", path)

    assert (found.status, found.headers["Location"]) == (303, "/enter")
    assert served.browser().ask("GET", path, Accept="*/*").status == 401
    assert served.browser().ask("GET", path, HX_Request="true").headers["HX-Redirect"] == "/enter"


def test_a_link_works_once_and_its_cookie_is_kept_from_scripts_and_other_sites(
    served: Served,
) -> None:
    link, browser = served.sessions.new_link(), served.browser()

    entered = browser.enter(link)

    assert entered.status == 303
    cookie = entered.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert browser.ask("GET", "/").status == 200
    assert served.browser().enter(link).status == 403


@pytest.mark.parametrize("path", PLACES)
def test_every_page_is_there_and_has_the_headers(served: Served, path: str) -> None:
    browser = served.browser()
    browser.enter("read")

    found = browser.ask("GET", path)

    assert found.status == 200
    policy = found.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert found.headers["Cache-Control"] == "no-store"
    assert found.headers["X-Content-Type-Options"] == "nosniff"
    assert " style=" not in found.text
    assert "<style" not in found.text
    assert 'src="http' not in found.text
    assert 'href="http' not in found.text


def test_what_is_left_out_of_a_service_is_told_in_words_and_not_taken_for_markup(
    served: Served,
) -> None:
    browser = served.browser()
    browser.enter("read")

    found = browser.ask("GET", "/services")

    assert found.text.count("left out</span>") == 1
    assert LEFT_OUT in unescape(found.text)
    assert "<b>" not in found.text


def test_details_are_there_by_uid_and_by_name(served: Served) -> None:
    browser, picture = served.browser(), served.source.now
    browser.enter("read")
    one, other = picture.nodes[0], picture.nodes[1]

    for path in (
        f"/nodes/{one.uid}",
        f"/nodes/{one.name}",
        f"/pairs/{one.uid}/{other.uid}",
        f"/pairs/{other.name}/{one.name}",
        f"/sites/{one.site}",
    ):
        found = browser.ask("GET", path)
        assert found.status == 200
        part = browser.ask("GET", path, HX_Request="true")
        assert "<html" not in part.text
        assert one.name in part.text
    assert "What would mend it" in browser.ask("GET", f"/pairs/{one.uid}/{other.uid}").text
    assert browser.ask("GET", "/nodes/nosuch").status == 404
    assert browser.ask("GET", f"/pairs/{one.uid}/{one.uid}").status == 404


def test_why_a_pair_is_not_allowed_or_not_direct_is_told_with_what_would_mend_it(
    served: Served,
) -> None:
    browser, picture = served.browser(), served.source.now
    browser.enter("read")
    one, other = picture.nodes[0], picture.nodes[1]
    path = f"/pairs/{one.uid}/{other.uid}"

    relayed = unescape(browser.ask("GET", path).text)
    assert "Why not direct:</strong> both NATs give each destination another port" in relayed
    assert "<li>forward UDP port 51820 to this node at its gateway</li>" in relayed
    assert f"NAT of {one.name}</dt><dd>symmetric<" in relayed
    assert "not allowed" not in relayed
    served.source.apart = f"they share no community: {one.name} is in <b>line-1</b>"
    try:
        text = browser.ask("GET", path).text
    finally:
        served.source.apart = ""

    assert "not allowed</span> they share no community: " in text
    assert "<b>line-1</b>" not in text
    assert "<b>line-1</b>" in unescape(text)
    assert "Why not direct" not in text


def test_refusals_have_the_headers_too(served: Served) -> None:
    for found in (
        served.browser().ask("GET", "/enter", Host="evil.example"),
        served.browser().ask("GET", "/"),
        served.browser().enter("nothing-that-lets-in"),
    ):
        assert "default-src 'none'" in found.headers["Content-Security-Policy"]


def test_wrong_tokens_are_refused_and_after_some_are_told_to_wait() -> None:
    with page(PictureSource(world(5)), lambda: TOKENS) as (address, _):
        browser = Browser(address)
        for _ in range(PAGE_SIGN_INS.most):
            assert browser.enter("wrong").status == 403
        found = browser.enter("wrong")

        assert (found.status, found.headers["Retry-After"]) == (429, "60")
        assert browser.enter("read").status == 303, "a right one is none of the wrong ones"


@pytest.mark.parametrize("path", ["/enter", "/leave", "/act/remove"])
def test_a_form_in_parts_is_refused_before_any_of_it_is_read(served: Served, path: str) -> None:
    """No form of ours has parts; a MiB of empty lines before the first kept the page for a third of
    a second from all others."""
    browser = served.browser()
    if path != "/enter":
        browser.enter("write")

    found = browser.ask("POST", path, "\n", Content_Type="multipart/form-data; boundary=x")

    assert found.status == 415
    in_words_of_nobody = "application/x-www-form-urlencoded; charset=punycode"
    assert browser.ask("POST", path, "", Content_Type=in_words_of_nobody).status == 415
    assert "default-src 'none'" in found.headers["Content-Security-Policy"]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "192.0.2.1", "127.0.0.1.x"])
def test_another_name_that_leads_here_is_refused(served: Served, host: str) -> None:
    browser = served.browser()
    browser.enter("write")

    assert browser.ask("GET", "/map.json", Host=host).status == 421


def form(served: Served, browser: Browser, **fields: str) -> str:
    uid = served.source.now.nodes[4].uid
    proof = browser.ask("GET", f"/nodes/{uid}").text.partition('name="proof" value="')[2]
    return urlencode({"node": uid, "proof": proof.partition('"')[0], **fields})


def test_an_action_asks_again_and_then_is_done_in_the_name_of_who_did_it(served: Served) -> None:
    browser = served.browser()
    browser.enter("write")
    body = form(served, browser, community="line-9")

    asked = browser.ask("POST", "/act/join-community", body)
    assert "line-9" in asked.text
    assert served.source.acted == []
    done = browser.ask("POST", "/act/join-community", body + "&sure=yes")

    assert "Done" in done.text
    uid = served.source.now.nodes[4].uid
    assert served.source.acted.pop() == (
        "community.add",
        "page token bob",
        {"community": "line-9", "nodes": [uid]},
    )


def test_who_may_only_look_is_shown_no_action_and_may_do_none(served: Served) -> None:
    browser = served.browser()
    browser.enter("read")
    assert "/act/" not in browser.ask("GET", f"/nodes/{served.source.now.nodes[4].uid}").text

    for what in ("remove", "join-community", "leave-community", "label", "unlabel"):
        body = form(served, browser, community="line-9", key="k", value="v", sure="yes")
        assert browser.ask("POST", f"/act/{what}", body).status == 403
    assert served.source.acted == []


def test_a_form_of_another_page_or_session_does_nothing(served: Served) -> None:
    browser, other = served.browser(), served.browser()
    browser.enter("write")
    other.enter("write")
    own = form(served, browser, sure="yes")

    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": browser.address.replace("127.0.0.1", "localhost")},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ):
        assert browser.ask("POST", "/act/remove", own, **headers).status == 403
    theirs = form(served, other, sure="yes")
    assert browser.ask("POST", "/act/remove", theirs).status == 403
    assert browser.ask("POST", "/act/remove", own.replace("proof", "other")).status == 403
    assert browser.ask("GET", f"/act/remove?{own}").status == 405
    assert browser.ask("PUT", "/act/remove", own).status == 405
    assert served.source.acted == []


@pytest.mark.parametrize(
    ("what", "fields"),
    [("label", {"key": "no spaces"}), ("join-community", {"community": ""}), ("melt", {})],
)
def test_what_is_no_action_is_refused(served: Served, what: str, fields: dict[str, str]) -> None:
    browser = served.browser()
    browser.enter("write")

    found = browser.ask("POST", f"/act/{what}", form(served, browser, sure="yes", **fields))

    assert found.status in (400, 404)
    assert served.source.acted == []


def test_who_leaves_is_out(served: Served) -> None:
    browser = served.browser()
    browser.enter("read")
    body = form(served, browser)

    assert browser.ask("POST", "/leave", body).status == 303
    assert browser.ask("GET", "/").status == 303


def test_behind_a_proxy_that_speaks_tls_the_cookie_is_for_tls_alone(served: Served) -> None:
    origin = served.address.replace("http:", "https:")
    body = urlencode({"secret": "read"})

    entered = served.browser().ask("POST", "/enter", body, Origin=origin)

    assert entered.status == 303
    assert "Secure" in entered.headers["Set-Cookie"]
    assert "Secure" not in served.browser().enter("read").headers["Set-Cookie"]


def test_who_is_in_may_enter_as_another_and_is_then_no_more_who_it_was(served: Served) -> None:
    browser = served.browser()
    browser.enter("read")
    before = browser.cookie

    assert browser.enter("write").status == 303

    assert "/act/" in browser.ask("GET", f"/nodes/{served.source.now.nodes[4].uid}").text
    browser.cookie = before
    assert browser.ask("GET", "/").status == 303


def test_what_strangers_named_is_shown_and_never_run(served: Served) -> None:
    browser = served.browser()
    browser.enter("read")

    found = browser.ask("GET", "/nodes?q=%3Cscript%3Ealert(1)%3C/script%3E%22onfocus=x")

    assert found.status == 200
    assert "<script>alert" not in found.text
    assert '"onfocus' not in found.text
