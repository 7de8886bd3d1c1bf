"""`limpet help`: pages on the node."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest

from limpet.cli.main import main
from limpet.cli.topics.pages import TopicPage, find_docs, look_up, names, read_pages, section

SOURCE = Path(__file__).parents[4] / "src"
NAMED = re.compile(r"`limpet help ([a-z0-9/#-]+)")


def test_the_list_has_every_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "--output", "json"]) == 0
    listed = {each["topic"] for each in json.loads(capsys.readouterr().out)["topics"]}
    docs = find_docs()

    assert listed == {str(p.relative_to(docs).with_suffix("")) for p in docs.rglob("*.md")}
    assert main(["help"]) == 0
    assert "install " in capsys.readouterr().out


@pytest.mark.parametrize("topic", ["install", "ipam list", "controller#back-up", "agent-silent"])
def test_a_page_a_command_a_section_and_a_finding_are_topics(
    topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["help", *topic.split()]) == 0
    assert capsys.readouterr().out.startswith("#")


@pytest.mark.parametrize(
    ("typo", "meant"),
    [("instal", "install"), ("agent-silnt", "agent-silent"), ("ipam lst", "ipam list")],
)
def test_a_typo_hears_of_the_nearest(
    typo: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["help", *typo.split()]) == 1
    assert repr(meant) in capsys.readouterr().err


def test_on_a_terminal_a_page_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    assert main(["help", "doctor"]) == 0
    assert "| `agent-silent` |" not in screen.getvalue()
    assert "agent-silent" in screen.getvalue()


def test_a_comment_of_a_shell_in_a_code_block_is_no_heading() -> None:
    page = TopicPage("x", "# X\n\n## one\n\n```\n# not one\n```\nlast\n\n## two\n")

    assert section(page, "not-one") is None
    assert section(page, "one") == "## one\n\n```\n# not one\n```\nlast\n"


def test_marks_for_tests_are_not_shown() -> None:
    page = TopicPage("x", "# X\n\n```console skip=tests/x.py::test\n$ limpet help\n```\n")

    assert look_up({"x": page}, "x") == "# X\n\n```console\n$ limpet help\n```\n"


def test_every_topic_that_is_named_anywhere_exists() -> None:
    pages = read_pages(find_docs())
    files = [*SOURCE.rglob("*.py"), *find_docs().rglob("*.md")]
    named = {
        (str(path), match[1])
        for path in files
        for match in NAMED.finditer(path.read_text(encoding="utf-8"))
    }

    assert named
    for _, topic in named:
        assert look_up(pages, topic)


def test_names_have_each_command() -> None:
    assert {"ipam list", "status", "doctor", "help"} <= set(names(read_pages(find_docs())))
