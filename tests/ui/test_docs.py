"""The documentation's site in a real browser, from a disk: its search, and whom it asks."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Request, expect

CHECKOUT = Path(__file__).resolve().parents[2]
FOUND = {
    "kubeadm": "how-to/kubeadm.html",
    "gateway mode": "gateway.html",
    "bugreport": "commands/bugreport.html",
    "quarantine_s": "controller.html",
    "port_mapping": "configuration.html",
    "LimpetDiskNearlyFull": "alerts.html",
    "disk_free_bytes": "reference/metrics.html",
}
"""What a person types, and a page that has to be among those that are offered."""
OWN = ("file:", "data:", "blob:")


@pytest.fixture(scope="module")
def site() -> Path:
    """`make docs` makes it, with tools of its own."""
    subprocess.run([CHECKOUT / "scripts" / "build-docs"], check=True, stdout=subprocess.PIPE)
    return CHECKOUT / "build" / "site"


@pytest.fixture
def opened(browser: Browser, site: Path) -> Iterator[Page]:
    """The first page; what is asked of another host, or fails, is a failure."""
    said: list[str] = []
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.on("request", partial(_note_others, said))
    page.on("pageerror", lambda each: said.append(f"error: {each}"))
    page.on("requestfailed", partial(_note_failed, said))
    page.goto((site / "index.html").as_uri())
    yield page
    context.close()
    assert said == []


def _note_others(said: list[str], request: Request) -> None:
    if not request.url.startswith(OWN):
        said.append(f"another host: {request.url}")


def _note_failed(said: list[str], request: Request) -> None:
    if request.failure != "net::ERR_ABORTED":  # by whoever goes on to another page
        said.append(f"failed: {request.url}: {request.failure}")


def test_a_word_that_is_typed_finds_its_page(opened: Page) -> None:
    field = opened.locator("input.md-search__input")
    for word, page in FOUND.items():
        field.fill("")
        field.press_sequentially(word)  # it searches behind each key
        found = opened.locator(f"a.md-search-result__link[href*='{page}']")
        expect(found.first).to_be_visible(timeout=60_000)
    opened.locator("a.md-search-result__link[href*='reference/metrics.html']").first.click()
    expect(opened.get_by_role("heading", level=1)).to_contain_text("Figures for Prometheus")


def test_no_page_asks_another_host_or_has_an_error(opened: Page, site: Path) -> None:
    # 404.html is for a server, which knows where the site begins.
    for page in sorted(set(site.rglob("*.html")) - {site / "404.html"}):
        opened.goto(page.as_uri())
        expect(opened.get_by_role("heading", level=1).first).to_be_attached()
