"""Figures that a page takes from another page, or from the code, are those that stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import CHECKOUT, links

SIZING = "docs/sizing.md"
_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?![\w])")
_MOST_OFF = 0.05
"""Of the lines of a folder: they change every week."""


def section(target: str) -> str:
    """What stands below a heading, from a link to it."""
    name, _, anchor = target.partition("#")
    text = (CHECKOUT / SIZING).parent.joinpath(name).read_text()
    for part in re.split(r"^(?=##+ )", text, flags=re.MULTILINE):
        heading = part.partition("\n")[0].lstrip("# ").lower()
        if re.sub(r"[^\w\s-]", "", heading).strip().replace(" ", "-") == anchor:
            return part
    raise AssertionError(f"{target}: no such heading")


def rounds_to(known: str, cited: str) -> bool:
    digits = len(cited.partition(".")[2])
    off = abs(float(known.replace(",", "")) - float(cited.replace(",", "")))
    return off <= 0.5000001 / float(10**digits)


def cited() -> list[tuple[str, str]]:
    """Figures of rows that name the section they come from, each with its row."""
    found = []
    for line in (CHECKOUT / SIZING).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and "benchmarks.md#" in cells[2]:
            found += [(number, line) for number in _NUMBER.findall(cells[1])]
    return found


@pytest.mark.parametrize(("number", "row"), cited())
def test_a_figure_of_sizing_stands_in_the_table_that_it_names(number: str, row: str) -> None:
    text = "".join(section(target) for target in re.findall(r"\(([\w-]+\.md#[\w-]+)\)", row))

    assert any(rounds_to(known, number) for known in _NUMBER.findall(text)), f"{number}: {row}"


def test_figures_are_looked_for() -> None:
    assert len(cited()) > 8
    assert any("benchmarks.md#" in target for target in links(SIZING))


def lines_below(folder: Path) -> int:
    return sum(len(path.read_bytes().splitlines()) for path in folder.rglob("*.py"))


def test_lines_of_each_folder_are_about_what_the_page_of_size_says() -> None:
    source = CHECKOUT / "src" / "limpet"
    page = (CHECKOUT / "docs/decisions/size.md").read_text()
    table = page[page.index("**Where it is now**") :]
    said = {
        name: int(lines.replace(",", ""))
        for name, lines in re.findall(r"`(\w+)` \| ([\d,]+)", table)
    }
    counted = {
        folder.name: lines_below(folder)
        for folder in source.iterdir()
        if folder.is_dir() and (folder / "__init__.py").exists()
    }

    assert said.keys() == counted.keys()
    off = {
        name: (lines, counted[name])
        for name, lines in said.items()
        if abs(lines - counted[name]) > _MOST_OFF * counted[name]
    }
    assert not off, f"said, counted: {off}"
    (whole,) = re.findall(r"\(([\d,]+) with `__main__.py`", table)
    assert abs(int(whole.replace(",", "")) - lines_below(source)) < _MOST_OFF * lines_below(source)
