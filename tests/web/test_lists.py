"""What the lists of the page say, beside the picture that they are made of."""

from __future__ import annotations

import re
from html import unescape

from msgspec.structs import replace

from limpet.picture.picture import Picture
from limpet.picture.workloads import Endpoint, Service, Workloads
from tests.beds.page import PictureSource, page
from tests.beds.pictured import world
from tests.web.test_access import TOKENS, Browser


def text_of(picture: Picture, path: str) -> str:
    """What a person reads at that place of a page that shows the picture."""
    with page(PictureSource(picture), lambda: TOKENS) as (address, _):
        browser = Browser(address)
        browser.enter("read")
        found = browser.ask("GET", path)
    assert found.status == 200
    main = found.text.partition('<main id="main"')[2].partition("</main>")[0]
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", main.partition(">")[2])).split())


def test_of_a_service_with_many_endpoints_all_are_counted_and_the_first_are_listed() -> None:
    listed = tuple(
        Endpoint(address=f"10.8.0.{each + 1}:8080", in_rotation=False) for each in range(32)
    )
    service = Service(
        name="shop/web", endpoints=listed, endpoints_in_rotation=60, endpoints_total=100
    )

    text = text_of(replace(world(5), workloads=Workloads(services=(service,))), "/services")

    assert "60 of 100 endpoints in rotation" in text
    assert "10.8.0.20:8080" in text
    assert "10.8.0.21:8080" not in text
    assert "and 80 more: the first 20 are listed, those out of rotation before the others" in text
