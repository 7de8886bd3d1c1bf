"""Each block says what it is; commands say where they run, or which test plays them."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from pathlib import Path

import msgspec
import pytest
import yaml

from limpet.agent import settings as of_agents
from limpet.controller import settings as of_controllers
from limpet.lab.topology import parse_topology
from tests.docs.pages import CHECKOUT, Block, blocks, pages, prose

LANGUAGES = {"console", "text", "toml", "yaml", "json", "diff", "mermaid"}
WORLDS = {"plain", "lab", "node", "deb", "podman", "kube", "edge", "same", "skip"}
KUBES = {"empty", "manifest", "chart", "lab"}
FOR_USERS = [page for page in pages() if not page.startswith("docs/decisions/")]
ALL = [block for page in FOR_USERS for block in blocks(page)]
CONSOLES = [block for block in ALL if block.language == "console"]


@pytest.mark.parametrize("block", ALL, ids=str)
def test_each_block_says_what_it_is(block: Block) -> None:
    assert block.language in LANGUAGES, f"{block}: a fence names one of {sorted(LANGUAGES)}"
    if block.language != "console":
        assert not re.search(r"^(\$|limpet|kubectl|helm|make|systemctl) ", block.text, re.MULTILINE)


@pytest.mark.parametrize("block", CONSOLES, ids=str)
def test_each_block_of_commands_says_in_which_world_it_runs(block: Block) -> None:
    worlds = WORLDS & block.marker.keys()

    assert len(worlds) == 1, f"{block}: one of {sorted(WORLDS)}: {block.marker}"
    assert block.marker.keys() <= worlds | {*("at", "fails", "gives", "asks", "within", "stays")}, (
        f"{block}: {block.marker}"
    )
    assert block.marker.get("kube", "empty") in KUBES, f"{block}: kube: one of {sorted(KUBES)}"
    assert block.commands
    if "stays" in block.marker:
        assert block.commands[-1].shown, f"{block}: what stays is known by what it prints"


@pytest.mark.parametrize("block", [b for b in CONSOLES if "skip" in b.marker], ids=str)
def test_commands_that_are_not_run_here_name_the_test_that_plays_them(block: Block) -> None:
    path, _, name = block.marker["skip"].partition("::")
    file = CHECKOUT / path

    assert path.startswith("tests/"), block
    assert name, f"{block}: tests/…/test_….py::test_…"
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse(file.read_text(encoding="utf-8"))
    assert name in {each.name for each in ast.walk(tree) if isinstance(each, functions)}, block


PLAYED_BY_OTHER_WORDS = {
    "make test": "it is what runs the test",
    "systemctl stop limpet-agent": "a node of a namespace has no systemd: its agent gets a signal",
}
"""Commands that no test types, and why not."""


@pytest.mark.parametrize("block", [b for b in CONSOLES if "skip" in b.marker], ids=str)
def test_the_test_that_plays_commands_types_them(block: Block) -> None:
    """Or it reads them from the page. What stands for something of one's own (NODE, addresses,
    numbers) is left out."""
    said = _said_by(CHECKOUT / block.marker["skip"].partition("::")[0])
    if {block.page, Path(block.page).name} & said:
        return
    for command in block.commands:
        typed = (re.sub(r"=[A-Z]+$", "=", word) for word in _words(command.text))
        words = [word for word in typed if not re.search(r"[A-Z0-9*]", word)]
        unsaid = [word for word in words if word not in said]
        assert not unsaid or " ".join(words) in PLAYED_BY_OTHER_WORDS, (
            f"{block}: `{command.text}`: the test says nothing of {unsaid}"
        )


def _said_by(file: Path) -> set[str]:
    """Words of the texts, and names, in a file of tests and in those of tests that it imports
    from."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    beside = (
        CHECKOUT / f"{node.module.replace('.', '/')}.py"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tests.")
    )
    trees = (tree, *(ast.parse(each.read_text(encoding="utf-8")) for each in beside))
    return {word for each in trees for node in ast.walk(each) for word in _words_in(node)}


def _words_in(node: ast.AST) -> list[str]:
    match node:
        case ast.Constant(value=str(text)):
            return text.split()
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return [name]
        case _:
            return []


@pytest.mark.parametrize("block", [b for b in CONSOLES if "same" in b.marker], ids=str)
def test_commands_that_another_page_has_too_are_played_there(block: Block) -> None:
    """`same=PAGE`, several with a comma: each command, but for its comment, is typed there."""
    there = {
        _words(command.text)
        for page in block.marker["same"].split(",")
        for each in blocks(page)
        if each.language == "console" and not {"same", "skip"} & each.marker.keys()
        for command in each.commands
    }

    for command in block.commands:
        assert _words(command.text) in there, f"{block}: {command.text}"
        assert not command.shown, f"{block}: what it prints is looked at nowhere"


def _words(command: str) -> tuple[str, ...]:
    return tuple(shlex.split(command, comments=True))


@pytest.mark.parametrize("block", [b for b in ALL if b.language == "toml"], ids=str)
def test_settings_that_a_page_shows_are_read(block: Block) -> None:
    """`toml agent`, `toml controller` or `toml topology`: whose settings they are; with a world
    behind it, they are written there."""
    (whose,) = block.marker.keys() & {"agent", "controller", "topology"}
    if whose == "topology":
        parse_topology(block.text, "page", str(block))
    else:
        read = {"agent": of_agents, "controller": of_controllers}[whose].parse_settings
        read(tomllib.loads(block.text), str(block))


@pytest.mark.parametrize("block", [b for b in ALL if b.language in {"yaml", "json"}], ids=str)
def test_documents_that_a_page_shows_can_be_read(block: Block) -> None:
    if block.language == "json":
        msgspec.json.decode(block.text)
    else:
        assert all(isinstance(each, dict) for each in yaml.safe_load_all(block.text))


def _tells_what_to_do(page: str) -> bool:
    """A guide: it has commands or settings to be typed, and is no page of a reference."""
    if page.startswith(("docs/commands/", "docs/concepts/", "docs/reference/")):
        return False
    return page.startswith("docs/") and any(
        block.language == "console" or block.marker.keys() & {"agent", "controller"}
        for block in blocks(page)
    )


@pytest.mark.parametrize("page", [page for page in FOR_USERS if _tells_what_to_do(page)])
def test_a_page_that_tells_what_to_type_says_what_it_assumes_and_how_to_undo_it(page: str) -> None:
    if page == "docs/configuration.md":
        return  # a table of keys: whoever takes a line out again has undone it
    text = prose(page)

    assert re.search(r"\*\*(What it a|A)ssumes", text), f"{page}: no **Assumes**"
    assert re.search(r"\bUndo\b|What it leaves", text), f"{page}: no **Undo**"
