"""How pages are read: what is a command, what it shows, and whether that was printed."""

from __future__ import annotations

import pytest

from tests.docs.pages import Block, printed_as_shown


def commands(*lines: str) -> list[tuple[str, tuple[str, ...]]]:
    block = Block("page.md", 1, "console", {}, "\n".join(lines))
    return [(command.text, command.shown) for command in block.commands]


def test_a_command_goes_on_behind_a_backslash_and_in_a_here_document() -> None:
    assert commands(
        "$ one \\", "  two", "said", "$ cat >f <<'END'", "$ text", "END", "$ three"
    ) == [
        ("one \\\n  two", ("said",)),
        ("cat >f <<'END'\n$ text\nEND", ()),
        ("three", ()),
    ]


def test_output_without_a_command_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"page\.md:1"):
        commands("limpet status")


@pytest.mark.parametrize(
    ("shown", "missing"),
    [
        ("crane-1  10.244.0.0/24", ""),
        ("… 10.244.9.0/24", ""),
        ("crane-1 … ready", ""),
        ("crane-1 … gone", "crane-1 … gone"),
        ("", ""),
    ],
)
def test_numbers_and_space_may_differ_words_may_not(shown: str, missing: str) -> None:
    assert printed_as_shown((shown,), "name\ncrane-2   10.244.7.0/28 is ready\n") == missing
