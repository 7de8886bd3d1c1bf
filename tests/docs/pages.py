"""Pages as they are written: blocks, commands with what they print, links, anchors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
DOCS = CHECKOUT / "docs"
_FENCE = re.compile(r"^( *)(`{3,})(.*)$")
_LINK = re.compile(r"(!?)\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Command:
    text: str
    """As a shell takes it; continued lines are joined by the shell itself."""
    shown: tuple[str, ...]
    """Lines that the page shows below it; none: nothing is said of what it prints."""


@dataclass(frozen=True, slots=True)
class Block:
    page: str
    """Path in the checkout."""
    line: int
    """Of the opening fence, from 1."""
    language: str
    marker: dict[str, str]
    """`lab=two-sites at=crane-1` as a dict; a word without `=` has an empty value."""
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> tuple[Command, ...]:
        """Each `$ ` begins one; a line that ends in a backslash goes on, in a here-document too."""
        found: list[tuple[list[str], list[str]]] = []
        lines = iter(self.text.splitlines())
        for line in lines:
            if not line.startswith("$ "):
                assert found, f"{self}: a console block begins with `$ `: {line!r}"
                found[-1][1].append(line)
                continue
            words = [line[2:]]
            while words[-1].endswith("\\"):
                words.append(next(lines))
            if here := re.search(r"<<'?(\w+)'?", words[-1]):
                while words[-1] != here.group(1):
                    words.append(next(lines))
            found.append((words, []))
        return tuple(Command("\n".join(w), tuple(s)) for w, s in found)


@cache
def pages() -> tuple[str, ...]:
    """Every page for people who use it, and those at the top of the checkout."""
    inside = (path for path in DOCS.rglob("*.md"))
    top = (CHECKOUT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"))
    return tuple(sorted(str(path.relative_to(CHECKOUT)) for path in (*inside, *top)))


@cache
def text_of(page: str) -> str:
    return (CHECKOUT / page).read_text(encoding="utf-8")


@cache
def blocks(page: str) -> tuple[Block, ...]:
    """Fenced blocks in order."""
    return tuple(_read_blocks(page))


def _read_blocks(page: str) -> Iterator[Block]:
    lines = enumerate(text_of(page).splitlines(), 1)
    for number, line in lines:
        if not (fence := _FENCE.match(line)):
            continue
        indent, ticks, info = fence.groups()
        language, *rest = info.split() or [""]
        marker = {k: v for k, _, v in (word.partition("=") for word in rest)}
        body = []
        for _, inner in lines:
            if inner.strip() == ticks:
                break
            body.append(inner.removeprefix(indent))
        yield Block(page, number, language, marker, "\n".join(body))


def printed_as_shown(shown: tuple[str, ...], said: str) -> str:
    """The first line that a page shows and a command has not printed; empty: it has printed all.

    Numbers and space are as they come, `…` stands for anything.
    """
    printed = [_alike(line) for line in said.splitlines()]
    for line in filter(str.strip, shown):
        pattern = ".*".join(re.escape(part.strip()) for part in _alike(line).split("…"))
        if not any(re.search(pattern, each) for each in printed):
            return line
    return ""


def _alike(line: str) -> str:
    return re.sub(r"[0-9]+", "0", " ".join(line.split()))


def prose(page: str) -> str:
    """The page without its fenced blocks."""
    kept, inside = [], False
    for line in text_of(page).splitlines():
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            kept.append(line)
    return "\n".join(kept)


def links(page: str) -> list[str]:
    """Targets of links and pictures; what stands in `code` is none."""
    text = re.sub(r"`[^`\n]*`(?!\])", "", re.sub(r"\[`[^`\n]*`\]", "[x]", prose(page)))
    return [target for _, target in _LINK.findall(text)]


@cache
def anchors(page: str) -> frozenset[str]:
    """Of headings, as GitHub and mkdocs both make them."""
    found: dict[str, int] = {}
    names = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", prose(page), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        name = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        count = found.get(name, 0)
        found[name] = count + 1
        names.add(f"{name}-{count}" if count else name)
    return frozenset(names)
