"""How commands explain themselves."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

import limpet
from limpet.base.text.nearest import nearest
from limpet.cli.main import app, main
from limpet.cli.usage.examples import EXAMPLES
from limpet.cli.usage.exit_codes import EVERYWHERE, ONE, OTHERS
from limpet.cli.usage.groups import GROUPS
from limpet.cli.usage.manual import manual_pages
from limpet.cli.usage.reference import exit_codes_page
from limpet.cli.usage.tree import CommandSpec, Parameter, all_commands

ROOT_FOLDER = Path(__file__).resolve().parents[3]
ROOT: Any = typer.main.get_command(app)
LEANS = re.compile("(Of|That|With|Without|Beside|Also|In place|Instead|Even|Such as|As|Its|It) ")
"""How words begin that say nothing without the name above them."""
COMMANDS = {each.words: each for each in all_commands(ROOT)}


def words_of(example: str) -> list[str]:
    """What the shell gives to `limpet`."""
    inner = re.search(r"<\((.*)\)", example)
    words = shlex.split((inner[1] if inner else example).split(" >")[0])
    assert "limpet" in words[:2]
    return words[words.index("limpet") + 1 :]


def test_every_command_is_listed_under_one_heading() -> None:
    listed = [name for names in GROUPS.values() for name in names]
    assert sorted(listed) == sorted(ROOT.commands)


def test_every_command_and_noun_has_examples_and_no_example_is_of_another() -> None:
    assert set(EXAMPLES) == set(COMMANDS)
    for at, rows in EXAMPLES.items():
        assert rows, at
        for example, meaning in rows:
            assert " ".join(words_of(example)).startswith(at), example
            assert meaning.endswith((".", "?")), meaning


@pytest.mark.parametrize("example", [row[0] for rows in EXAMPLES.values() for row in rows])
def test_an_example_is_what_its_command_takes(example: str) -> None:
    command, words = ROOT, words_of(example)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    command.make_context("limpet", words)


@pytest.mark.parametrize(
    ("noun", "option"),
    [
        (each, option)
        for each in COMMANDS.values()
        if each.words and each.below
        for option in each.options
        if option.name != "help"
    ],
    ids=lambda value: value.words if isinstance(value.words, str) else value.name,
)
def test_what_is_said_before_a_nouns_command_is_refused_and_not_passed_over(
    noun: CommandSpec, option: Parameter, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was nobody's, and the cluster that is the default was asked."""
    said = [option.words[0], *(["x"] if option.form else [])]
    assert main([*noun.words.split(), *said, noun.below[0].split()[-1]]) == 2
    assert f"{option.words[0]}: say it behind the command" in capsys.readouterr().err


@pytest.mark.parametrize("words", COMMANDS)
def test_every_help_has_the_same_shape(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words.split(), "--help"]) == 0
    told = capsys.readouterr()
    headings = [each for each in told.out.split("\n") if each and not each.startswith(" ")]
    assert headings[0].startswith(f"Usage: limpet {words}".rstrip())
    assert headings[-1] == "Examples:"
    order = ["Arguments:", "Options:", "Whom it asks:"]
    assert [each for each in order if each in headings] == [e for e in headings if e in order]
    assert not re.search(r"<[a-z]", told.out), "an option that takes something names it"
    assert told.err == ""


@pytest.mark.parametrize("words", COMMANDS)
def test_every_sentence_of_help_is_one(words: str) -> None:
    command = COMMANDS[words]
    assert command.summary.endswith(".")
    assert command.summary[0].isupper()
    for each in command.parameters:
        told, what = each.help.strip().partition("  [")[0], f"{words} {each.name}"
        assert told.endswith("."), what
        assert told[0].isupper(), what
        assert len(told.split()) > 2 or told == "Print the version.", f"{what}: {told}"
        assert not LEANS.match(told), f"{what}: {told}"
        assert not re.search(r"-[A-Z]+- ", told), f"{what}: a name is cut in two: {told}"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["statsu"], "status"),
        (["ipam", "lst"], "list"),
        (["status", "--outptu", "json"], "--output"),
        (["status", "-o", "jso"], "json"),
        (["network", "set", "--encryption", "al"], "all"),
        (["lab", "fault", "reboto"], "reboot"),
        (["completion", "bsh"], "bash"),
    ],
)
def test_who_mistypes_hears_what_was_meant(
    typed: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed) == 2
    said = capsys.readouterr().err
    assert re.search(rf"Did you mean '?{meant}'?\?", said), said


def test_the_nearest_is_none_where_nothing_is_near() -> None:
    assert nearest("zzz", ["status", "path"]) == ""
    assert nearest("Crane-l", ["crane-1", "digger-1"]) == "crane-1"


PAGES = manual_pages(COMMANDS.values(), "1.2.3")


def test_every_command_and_option_is_in_a_manual_page() -> None:
    text = {name: page.replace("\\-", "-") for name, page in PAGES.items()}
    for words, command in COMMANDS.items():
        page = text[f"limpet-{words.split()[0]}.1" if words else "limpet.1"]
        if command.below and " " in words:
            continue  # its commands are there
        assert f"limpet {words}".rstrip() in page
        for each in command.options:
            assert all(word in page for word in each.words), f"{words} {each.words}"
        assert all(example in page.replace("\\(aq", "'") for example, _ in EXAMPLES[words])


@pytest.mark.parametrize("name", PAGES)
def test_a_manual_page_has_no_request_that_was_text(name: str) -> None:
    requests = {".TH", ".SH", ".SS", ".TP", ".PP", ".B"}
    for line in PAGES[name].splitlines():
        assert line.split()[0] in requests if line.startswith((".", "'")) else True, line
        assert line.isascii()
        assert line.isprintable()


def test_the_codes_with_a_meaning_of_their_own_are_of_commands_that_there_are() -> None:
    assert {*ONE, *OTHERS} <= set(COMMANDS)


def test_commands_end_with_codes_of_the_table_alone() -> None:
    """A number that is given to `typer.Exit`; what else is given there is another program's."""
    found = {
        each.args[0].value
        for path in Path(limpet.__file__).parent.joinpath("cli").rglob("*.py")
        for each in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(each, ast.Call)
        and ast.unparse(each.func) in ("typer.Exit", "sys.exit")
        and each.args
        and isinstance(each.args[0], ast.Constant)
    }
    assert found <= set(EVERYWHERE)


def test_the_table_of_exit_codes_is_the_commands() -> None:
    """`scripts/write-reference` writes it."""
    page = (ROOT_FOLDER / "docs" / "reference" / "exit-codes.md").read_text(encoding="utf-8")
    assert page == exit_codes_page()
