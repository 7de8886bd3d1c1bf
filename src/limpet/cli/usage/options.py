"""docs/reference/commands.md: every command with its arguments and options, of `--help`."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from limpet.cli.usage.examples import EXAMPLES
from limpet.cli.usage.exit_codes import ONE, OTHERS
from limpet.cli.usage.schemas import ANSWERS, schema_file
from limpet.cli.usage.tree import CommandSpec, Parameter, all_commands


def commands_page() -> str:
    """docs/reference/commands.md."""
    return "".join(f"{line}\n" for line in _lines())


def _lines() -> Iterator[str]:
    yield from (
        "# Every command and option",
        "",
        "<!-- scripts/write-reference makes this page of the commands themselves -->",
        "",
        "What `--help` says, in one place. What the commands are for and what to make of what they",
        "answer is told [noun by noun](../commands/index.md).",
        "",
        "**Assumes** that you know which command you want. **Undo**: nothing to undo here; what a",
        "command changes, the page of its noun says how to change back.",
    )
    from limpet.cli.main import app  # it imports what this belongs to

    for spec in all_commands(typer.main.get_command(app)):
        if spec.words and (not spec.below or _options(spec)):
            yield from _command(spec)


def _command(spec: CommandSpec) -> Iterator[str]:
    yield from ("", f"## limpet {spec.words}", "", " ".join(spec.help.split()))
    arguments = [each for each in spec.arguments if each.help]
    for heading, rows in (("argument", arguments), ("option", _options(spec))):
        if rows:
            yield from ("", f"| {heading} | meaning |", "|---|---|")
            for each in rows:
                yield f"| {_form(each)} | {_cell(each.help)} |"
    if examples := EXAMPLES.get(spec.words, ()):
        yield ""
        yield from (f"- `{example}`: {meaning}" for example, meaning in examples)
    if spec.words in ONE:
        yield from ("", f"Exit code 1: {ONE[spec.words]}")
    if spec.words in OTHERS:
        yield from ("", f"Exit code: {OTHERS[spec.words]}")
    if spec.words in ANSWERS:
        name = schema_file(spec.words)
        yield from ("", f"Its answer as JSON: [{name}](schemas/{name}).")


def _options(spec: CommandSpec) -> list[Parameter]:
    return [each for each in spec.options if "--help" not in each.words]


def _form(parameter: Parameter) -> str:
    takes = parameter.choices or tuple(parameter.form.split("|") if parameter.form else ())
    words = ", ".join(f"`{word}`" for word in (*parameter.words, *parameter.negations))
    values = " or ".join(f"`{value}`" for value in takes)
    return f"{words} {values}".strip()


def _cell(text: str) -> str:
    """In a cell of Markdown nothing is a column, a tag or a link by mistake; code stays code."""
    parts = " ".join(text.split()).split("`")
    for at in range(0, len(parts), 2):
        for special in "\\|<>[]*_":
            parts[at] = parts[at].replace(special, f"\\{special}")
    return "`".join(parts)
