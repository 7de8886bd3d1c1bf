"""What a page that is open is told first."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from tests.beds.page import PictureSource, page
from tests.beds.pictured import world
from tests.waiting import PATIENCE_S, wait_until
from tests.web.test_access import TOKENS, Browser

SILENT = "the agent does not answer"


def first(browser: Browser, version: str) -> dict[str, Any]:
    """What the stream says at its beginning to a page of that version of the picture."""
    connection = http.client.HTTPConnection(urlsplit(browser.address).netloc, timeout=PATIENCE_S)
    try:
        connection.request("GET", f"/live?version={version}", headers={"Cookie": browser.cookie})
        line = connection.getresponse().readline()
    finally:
        connection.close()
    found: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
    return found


@pytest.mark.parametrize(
    ("known", "more"), [("1", {}), ("0", {"reload": True})], ids=["as it is", "older"]
)
@pytest.mark.parametrize("silent", ["", SILENT], ids=["answers", "silent"])
def test_a_stream_begins_with_what_is_so_now(
    known: str, more: dict[str, bool], silent: str
) -> None:
    picture = world(6)
    viewer = replace(picture.viewer, name="crane-1", connected=False, cloud="hears nobody")
    source = PictureSource(replace(picture, version="1", viewer=viewer))
    with page(source, lambda: TOKENS) as (address, _):
        browser = Browser(address)
        browser.enter("read")
        assert browser.ask("GET", "/nodes").status == 200
        source.silent = silent
        wait_until(lambda: silent in browser.ask("GET", "/nodes").text)

        told = first(browser, known)

    cloud = "Cut off from the cloud: crane-1 hears nobody"
    assert told == {"version": "1", "trouble": silent, "cloud": cloud, **more}
