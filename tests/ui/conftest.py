"""A real browser, and who signs in with it. What a page says in its console is a failure."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Request, expect, sync_playwright

from limpet.lab.world.machine import Machine
from tests.waiting import PATIENCE_S

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
DESKTOP, PHONE = (1360, 860), (390, 844)
SignIn = Callable[..., Page]
expect.set_options(timeout=PATIENCE_S * 1000)
"""Playwright's own five seconds are shorter than a busy machine takes for a page."""


def own_processes() -> dict[int, list[str]]:
    """What the kernel says of this process and of all that it has started and that still run, by
    pid: the fields of `stat` behind the name."""
    own = os.getpid()
    found: dict[int, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            found[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()

    def is_ours(pid: int) -> bool:
        while pid in found and pid != own:
            pid = int(found[pid][1])
        return pid == own

    return {pid: fields for pid, fields in found.items() if is_ours(pid)}


class Links:
    """What `limpet ui` prints: each of them lets in once."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.pid = process.pid
        self._lines = process.stdout

    def next(self) -> str:
        return next(self._lines).strip()


@contextmanager
def links_of(machine: Machine) -> Iterator[Links]:
    """Of the page of that node, which is served within the block."""
    command = (sys.executable, "-m", "limpet", "ui", "--listen", "127.0.0.1:0", "--config")
    config = str(machine.config_path)
    with subprocess.Popen((*command, config), stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Links(process)
        finally:
            process.terminate()
            assert process.wait(PATIENCE_S) == 0


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    assert program, "no Chromium: scripts/fetch-chromium installs it"
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=program, args=list(_OPTIONS))
        yield found
        found.close()


@pytest.fixture
def sign_in(browser: Browser) -> Iterator[SignIn]:
    """`sign_in(link, size=DESKTOP, theme="light")` is a page that has entered by the link, and
    `sign_in(address, token=…)` one where somebody has typed a token and trusts the certificate."""
    said: list[str] = []
    with ExitStack() as undo:

        def enter(
            link: str, size: tuple[int, int] = DESKTOP, theme: str = "light", token: str = ""
        ) -> Page:
            context = browser.new_context(
                viewport={"width": size[0], "height": size[1]},
                color_scheme="dark" if theme == "dark" else "light",
                has_touch=size is PHONE,
                ignore_https_errors=bool(token),
            )
            undo.callback(context.close)
            page = context.new_page()
            page.set_default_timeout(60_000)
            undo.callback(Listening(page, link, said).leave)
            page.goto(link)
            if token:
                page.get_by_label("Token").fill(token)
                page.get_by_role("button", name="Sign in").click()
            page.wait_for_selector("#map[data-drawn]")
            return page

        yield enter
    assert said == []


class Listening:
    """From now on `said` has what is wrong with the page, which was entered by the link.

    Who leaves a page breaks off what it still asks for; that alone is not wrong.
    """

    def __init__(self, page: Page, link: str, said: list[str]) -> None:
        self._said = said
        self._is_leaving = False
        self._pages = 0
        """How many it has been so far."""
        self._begun: dict[Request, int] = {}
        """Which of them has asked."""
        page.on("console", lambda each: said.append(f"{each.type}: {each.text}"))
        page.on("pageerror", lambda each: said.append(f"error: {each}"))
        page.on("request", lambda each: _own(each.url, link, said))
        page.on("request", self._asks)
        page.on("requestfailed", self._fails)
        page.on("framenavigated", lambda frame: self._shows_another())

    def leave(self) -> None:
        """For good."""
        self._is_leaving = True

    def _asks(self, request: Request) -> None:
        self._begun[request] = self._pages
        self._is_leaving |= request.is_navigation_request()

    def _shows_another(self) -> None:
        self._pages += 1
        self._is_leaving = False

    def _fails(self, request: Request) -> None:
        is_left = self._is_leaving or self._begun.get(request, self._pages) < self._pages
        is_broken_off = (
            request.failure == "net::ERR_ABORTED" and not request.is_navigation_request()
        )
        if not (is_left and is_broken_off):
            self._said.append(f"failed: {request.method} {request.url}: {request.failure}")


def _own(url: str, link: str, said: list[str]) -> None:
    if not url.startswith(link.partition("/enter")[0]):
        said.append(f"another host: {url}")
