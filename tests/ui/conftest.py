"""A real browser, and who signs in with it. What a page says in its console is a failure."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
DESKTOP, PHONE = (1360, 860), (390, 844)
SignIn = Callable[..., Page]


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
            page.on("console", lambda each: said.append(f"{each.type}: {each.text}"))
            page.on("pageerror", lambda each: said.append(f"error: {each}"))
            page.on("requestfailed", lambda each: said.append(f"failed: {each.url}"))
            page.on("request", lambda each: _own(each.url, link, said))
            page.goto(link)
            if token:
                page.get_by_label("Token").fill(token)
                page.get_by_role("button", name="Sign in").click()
            page.wait_for_selector("#map[data-drawn]")
            return page

        yield enter
    left = [each for each in said if "/live" not in each and not each.startswith("failed")]
    assert left == []


def _own(url: str, link: str, said: list[str]) -> None:
    if not url.startswith(link.partition("/enter")[0]):
        said.append(f"another host: {url}")
