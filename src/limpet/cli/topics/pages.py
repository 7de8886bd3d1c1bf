"""Pages of the documentation that are on this machine, and what a person may ask of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import limpet
from limpet.base.errors import LimpetError, StorageError
from limpet.cli.doctor.catalogue import KINDS

_HEADING = re.compile(r"^(#{1,6}) +(.+?) *$", re.MULTILINE)
_FENCE = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.MULTILINE | re.DOTALL)
_MARKED = re.compile(r"^(```\w+)[^\n]*$", re.MULTILINE)
_ROW = "| `{}` |"
_FINDINGS = "doctor"
"""The page that lists doctor's findings."""


@dataclass(frozen=True, slots=True)
class TopicPage:
    """A file of the documentation."""

    name: str
    """Its path without the ending: `install`, `commands/ipam`."""
    text: str

    @property
    def title(self) -> str:
        heading = _HEADING.search(self.text)
        return heading[2].replace("`", "") if heading else self.name


def find_docs() -> Path:
    """The folder of the documentation: in the package, or in the checkout that it runs from.

    Raises: StorageError.
    """
    package = Path(limpet.__file__).parent
    for folder in (package / "docs", package.parents[1] / "docs"):
        if (folder / "install.md").is_file():
            return folder
    raise StorageError(
        "find the documentation", str(package / "docs"), "not there", hint="install Limpet again"
    )


def read_pages(folder: Path) -> dict[str, TopicPage]:
    """All of them by name, those of the first folder first. Raises: StorageError."""
    try:
        paths = sorted(folder.rglob("*.md"), key=lambda each: (len(each.parts), each))
        names = [str(path.relative_to(folder).with_suffix("")) for path in paths]
        return {
            name: TopicPage(name, path.read_text(encoding="utf-8"))
            for name, path in zip(names, paths, strict=True)
        }
    except OSError as error:
        raise StorageError("read the documentation", str(folder), str(error)) from error


def slug(heading: str) -> str:
    """What a link to a heading is called, as on GitHub."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def sections(text: str) -> Iterator[tuple[str, int, int, int]]:
    """Each heading's link, its level, where its section begins and where it ends. Pure."""
    fences = [match.span() for match in _FENCE.finditer(text)]
    found = [
        match
        for match in _HEADING.finditer(text)
        if not any(first <= match.start() < last for first, last in fences)
    ]
    for number, match in enumerate(found):
        level = len(match[1])
        after = (each for each in found[number + 1 :] if len(each[1]) <= level)
        end = next((each.start() for each in after), len(text))
        yield slug(match[2]), level, match.start(), end


def section(page: TopicPage, link: str) -> str | None:
    """The text below the heading with it; None: the page has no such heading. Pure."""
    for found, _, first, last in sections(page.text):
        if found == link:
            return page.text[first:last].rstrip() + "\n"
    return None


def look_up(pages: dict[str, TopicPage], words: str) -> str:
    """What the documentation says of a topic, as Markdown.

    `words`: a page, PAGE#SECTION, a command without `limpet`, or the id of a finding of doctor.

    Raises: LimpetError with the nearest topic.
    """
    # What stands behind a fence's language is for the tests that run the block.
    return _MARKED.sub(r"\1", _text_of(pages, words))


def _text_of(pages: dict[str, TopicPage], words: str) -> str:
    words = words.strip().removeprefix("limpet ").removesuffix(".md")
    name, _, link = words.partition("#")
    if name in pages:
        text = section(pages[name], link) if link else pages[name].text
        if text is not None:
            return text
    if words in KINDS:
        return _finding(pages, words)
    for page in pages.values():
        if page.name.startswith("commands/"):
            text = section(page, slug(f"limpet {words}"))
            if text is not None:
                return text
    if f"commands/{words}" in pages:
        return pages[f"commands/{words}"].text
    raise LimpetError(f"help: no topic {words!r}{_nearest(words, names(pages))}")


def _finding(pages: dict[str, TopicPage], id: str) -> str:
    """Its line of the list of findings, and where to read on."""
    kind = KINDS[id]
    row = _ROW.format(id)
    lines = pages[_FINDINGS].text.splitlines() if _FINDINGS in pages else []
    cells = next((line.split(" | ") for line in lines if line.startswith(row)), [])
    said = cells[1].strip(" |") if len(cells) > 1 else ""
    return f"# {id}\n\n{said}\n\n- harm: {kind.harm.value}\n- more: `limpet help {kind.topic}`\n"


def names(pages: dict[str, TopicPage]) -> list[str]:
    """All that may be asked for: pages, commands, findings."""
    commands = [
        link.removeprefix("limpet-").replace("-", " ")
        for page in pages.values()
        if page.name.startswith("commands/")
        for link, level, *_ in sections(page.text)
        if level == 2 and link.startswith("limpet-")
    ]
    return list(dict.fromkeys([*pages, *commands, *KINDS]))


def _nearest(words: str, known: Iterable[str]) -> str:
    near = get_close_matches(words.lower(), list(known), n=3, cutoff=0.6)
    if not near:
        return " (limpet help lists all)"
    return f"; did you mean {' or '.join(map(repr, near))}? (limpet help lists all)"
