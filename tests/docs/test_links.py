"""Links lead somewhere: to a file of the checkout, and to a heading that it has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import CHECKOUT, anchors, links, pages

_OUTSIDE = re.compile(r"https://[a-z0-9.-]+\.[a-z]+(/[\w./#?=&%~+-]*)?")
"""Nobody asks whether it is there: the tests need no other host."""


@pytest.mark.parametrize("page", pages())
def test_each_link_leads_to_what_there_is(page: str) -> None:
    for target in links(page):
        if "://" in target or target.startswith("mailto:"):
            assert _OUTSIDE.fullmatch(target), f"{page}: {target}"
            continue
        path, _, anchor = target.partition("#")
        to = (CHECKOUT / page).parent.joinpath(path).resolve() if path else CHECKOUT / page
        assert to.exists(), f"{page}: {target}: there is no {to}"
        if anchor:
            has = anchors(str(to.relative_to(CHECKOUT)))
            assert anchor in has, f"{page}: {target}: its headings are {sorted(has)}"


def test_every_page_can_be_got_to_from_the_first_one() -> None:
    seen: set[Path] = set()
    ahead = [CHECKOUT / "docs" / "index.md"]
    while ahead:
        page = ahead.pop()
        if page in seen:
            continue
        seen.add(page)
        for target in links(str(page.relative_to(CHECKOUT))):
            to = page.parent.joinpath(target.partition("#")[0]).resolve()
            if to.suffix == ".md" and to.is_file():
                ahead.append(to)
    missing = {CHECKOUT / page for page in pages() if page.startswith("docs/")} - seen

    assert sorted(str(page.relative_to(CHECKOUT)) for page in missing) == []


def test_every_page_is_in_the_contents_of_the_site_and_nothing_else() -> None:
    text = (CHECKOUT / "mkdocs.yml").read_text()
    listed = re.findall(r"^ +- ([\w/-]+\.md)$", text, re.MULTILINE)

    assert len(listed) == len(set(listed))
    assert {f"docs/{name}" for name in listed} == {p for p in pages() if p.startswith("docs/")}
