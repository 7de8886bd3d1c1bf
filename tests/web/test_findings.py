"""What doctor finds, for several who look at once."""

from __future__ import annotations

import http.client
import threading
from urllib.parse import urlsplit

from limpet.base.process.threads import in_thread
from limpet.picture.said import Finding, Level
from tests.beds.page import PictureSource, page
from tests.beds.pictured import world
from tests.waiting import PATIENCE_S
from tests.web.test_access import TOKENS, Browser

FOUND = Finding(level=Level.WARN, what="the clock is behind")


class Looking(PictureSource):
    """Its doctor looks until a test lets it end."""

    def __init__(self) -> None:
        super().__init__(world(6))
        self.looks = 0
        self.begun = threading.Event()
        self.may_end = threading.Event()

    async def findings(self) -> tuple[Finding, ...] | None:
        self.looks += 1
        self.begun.set()
        await in_thread(lambda: self.may_end.wait(PATIENCE_S), "findings")
        return (FOUND,)


class FailingOnce(PictureSource):
    """Its doctor fails for a reason that nobody has thought of, and then no more."""

    looks = 0

    async def findings(self) -> tuple[Finding, ...] | None:
        self.looks += 1
        if self.looks == 1:
            raise RuntimeError("as nobody had thought")
        return (FOUND,)


def test_who_leaves_while_doctor_looks_takes_the_findings_from_nobody() -> None:
    source = Looking()
    with page(source, lambda: TOKENS) as (address, _):
        browser = Browser(address)
        browser.enter("read")
        leaving = http.client.HTTPConnection(urlsplit(address).netloc, timeout=PATIENCE_S)
        leaving.request("GET", "/findings", headers={"Cookie": browser.cookie})
        assert source.begun.wait(PATIENCE_S)
        leaving.close()
        # The loop that answers this has heard of the end before.
        assert browser.ask("GET", "/nodes").status == 200
        source.may_end.set()

        found = browser.ask("GET", "/findings")

    assert found.status == 200
    assert FOUND.what in found.text
    assert source.looks == 1


def test_after_a_look_that_failed_the_next_who_asks_has_doctor_look_again() -> None:
    source = FailingOnce(world(6))
    with page(source, lambda: TOKENS) as (address, _):
        browser = Browser(address)
        browser.enter("read")
        assert browser.ask("GET", "/findings").status == 500

        found = browser.ask("GET", "/findings")

    assert found.status == 200
    assert FOUND.what in found.text
