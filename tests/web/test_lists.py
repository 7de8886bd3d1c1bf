"""What the lists of the page say, beside the picture that they are made of."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import parse_qs

import pytest
from msgspec.structs import replace

from limpet.picture.picture import Also, Community, LeftOut, Picture
from limpet.picture.workloads import Endpoint, Policy, Service, Workloads
from tests.beds.page import PictureSource, page
from tests.beds.pictured import world
from tests.web.test_access import TOKENS, Browser


def text_of(picture: Picture, path: str) -> str:
    """What a person reads at that place of a page that shows the picture."""
    with page(PictureSource(picture), lambda: TOKENS) as (address, _):
        browser = Browser(address)
        browser.enter("read")
        return read(browser, path)


def read(browser: Browser, path: str) -> str:
    """What a person reads there, without what stands around the place."""
    found = browser.ask("GET", path)
    assert found.status == 200
    main = found.text.partition('<main id="main"')[2].partition("</main>")[0]
    text = " ".join(unescape(re.sub(r"<[^>]*>", " ", main.partition(">")[2])).split())
    return re.sub(r" (?=[,.])", "", text)


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


@pytest.mark.parametrize(
    ("left_out", "path", "words"),
    [
        (LeftOut(services=1), "/services", "1 further Service is not shown."),
        (LeftOut(services=40), "/services", "40 further Services are not shown."),
        (LeftOut(policies=1), "/policies", "1 further policy is not shown."),
        (LeftOut(policies=40), "/policies", "40 further policies are not shown."),
        (LeftOut(pairs=40), "/pairs", "40 further pairs, which are well, are not shown."),
    ],
)
def test_what_a_picture_leaves_out_is_said_where_it_would_be(
    left_out: LeftOut, path: str, words: str
) -> None:
    assert words in text_of(replace(world(5), also=Also(left_out=left_out)), path)
    assert "not shown" not in text_of(world(5), path)


def test_a_list_of_several_pages_counts_its_rows_in_the_plural() -> None:
    policies = tuple(Policy(name=f"shop/policy-{number}") for number in range(201))
    communities = tuple(Community(name=f"line-{number}") for number in range(101))
    picture = replace(world(5), workloads=Workloads(policies=policies), communities=communities)

    assert "1 of 3, 201 policies" in text_of(picture, "/policies")
    assert "1 of 3, 101 communities" in text_of(picture, "/communities")


def test_whoever_turns_the_pages_of_a_nodes_pairs_or_searches_them_keeps_to_that_node() -> None:
    picture = world(300)
    node = next(each for each in picture.nodes if "cloud" in each.roles)  # in pairs with all
    with page(PictureSource(picture), lambda: TOKENS) as (address, _):
        browser = Browser(address)
        browser.enter("read")
        first = browser.ask("GET", f"/pairs?node={node.uid}&q=e").text
        further = unescape(first.partition('rel="next" href="')[2].partition('"')[0])
        second = browser.ask("GET", f"/pairs{further}").text
        back = unescape(second.partition('rel="prev" href="')[2].partition('"')[0])

    assert parse_qs(further.removeprefix("?")) == {"page": ["2"], "q": ["e"], "node": [node.uid]}
    assert parse_qs(back.removeprefix("?")) == {"page": ["1"], "q": ["e"], "node": [node.uid]}
    pairs = re.findall(r'<tr id="pair-(\w+)-(\w+)">', second)
    assert pairs
    assert all(node.uid in pair for pair in pairs)
    for shown in (first, second):
        form = shown.partition('<form class="search"')[2].partition("</form>")[0]
        assert f'<input type="hidden" name="node" value="{node.uid}">' in form
        assert f"Of {node.name} (of all)." in re.sub(r"<[^>]*>", "", shown)


def test_where_nobody_relays_the_advice_leaves_a_node_the_roles_that_it_has() -> None:
    text = text_of(replace(world(5), relays=()), "/relays")

    assert "(limpet node set NODE --add-role relay)" in text
