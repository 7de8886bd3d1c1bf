"""Manual pages, made of what commands say of themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from limpet.cli.usage.examples import EXAMPLES
from limpet.cli.usage.exit_codes import ONE, exit_codes_of
from limpet.cli.usage.groups import GROUPS
from limpet.cli.usage.tree import CommandSpec, Parameter

_FILES = (
    ("/etc/limpet/agent.toml", "settings of the agent; LIMPET_CONFIG names another file"),
    (
        "/etc/limpet/controller.toml",
        "settings of the controller; LIMPET_CONTROLLER_CONFIG names another file",
    ),
    ("/run/limpet/agent.sock", "where the agent answers"),
)


def manual_pages(commands: Iterable[CommandSpec], version: str) -> dict[str, str]:
    """Text of each page in roff by the name of its file: `limpet.1`, and one for each noun and for
    each command that is under none. `version`: of Limpet, in their heads."""
    page = partial(_page, version)
    found = {each.words: each for each in commands}
    root = found[""]
    pages = {"limpet.1": page("limpet", root.summary, _overview(root, found))}
    for name in root.below:
        lines = _noun(found[name], found) if found[name].below else _command(found[name])
        pages[f"limpet-{name}.1"] = page(f"limpet-{name}", found[name].summary, lines)
    return pages


def _page(version: str, name: str, summary: str, lines: Iterable[str]) -> str:
    words = summary.rstrip(".")
    head = [
        f'.TH {name.upper()} 1 "" "limpet {version}" "Limpet"',
        ".SH NAME",
        f"{_text(name)} \\- {_text(words[0].lower() + words[1:])}",
    ]
    see = ".SH SEE ALSO\n" + ("limpet\\-help(1)" if name == "limpet" else "limpet(1)")
    return "\n".join([*head, *lines, see]) + "\n"


def _overview(root: CommandSpec, found: dict[str, CommandSpec]) -> Iterator[str]:
    yield ".SH SYNOPSIS"
    yield ".B limpet"
    yield "\\fICOMMAND\\fR [\\fIARGUMENTS\\fR]"
    yield ".SH DESCRIPTION"
    yield _text(root.help)
    for heading, names in GROUPS.items():
        yield f".SS {_text(heading)}"
        for name in names:
            yield from _item(f"\\fBlimpet\\-{_text(name)}\\fR(1)", found[name].summary)
    yield from _options(root.options)
    yield ".SH EXIT STATUS"
    yield from _exit_codes("")
    yield ".SH FILES"
    for path, meaning in _FILES:
        yield from _item(f"\\fI{_text(path)}\\fR", meaning)
    yield ".SH EXAMPLES"
    yield from _examples("")


def _noun(noun: CommandSpec, found: dict[str, CommandSpec]) -> Iterator[str]:
    yield ".SH SYNOPSIS"
    yield f".B limpet {_text(noun.words)}"
    yield "\\fICOMMAND\\fR [\\fIARGUMENTS\\fR]"
    yield ".SH DESCRIPTION"
    yield _text(noun.help)
    yield from _options(noun.options)
    yield ".SH COMMANDS"
    yield from _parts(noun, found)
    yield ".SH EXIT STATUS"
    yield from _exit_codes("")
    yield ".SH EXAMPLES"
    yield from _examples(noun.words)


def _command(command: CommandSpec) -> Iterator[str]:
    yield ".SH SYNOPSIS"
    yield from _usage(command)
    yield ".SH DESCRIPTION"
    yield _text(" ".join(command.help.split()))
    if command.arguments:
        yield ".SH ARGUMENTS"
        yield from _arguments(command)
    yield from _options(command.options)
    yield ".SH EXIT STATUS"
    yield from _exit_codes(command.words)
    yield ".SH EXAMPLES"
    yield from _examples(command.words)


def _parts(noun: CommandSpec, found: dict[str, CommandSpec]) -> Iterator[str]:
    for name in noun.below:
        below = found[f"{noun.words} {name}"]
        yield from _parts(below, found) if below.below else _part(below)


def _part(command: CommandSpec) -> Iterator[str]:
    """A command under its noun."""
    yield f".SS limpet {_text(command.words)}"
    yield from _usage(command)
    yield ".PP"
    yield _text(" ".join(command.help.split()))
    yield from _arguments(command)
    for option in command.options:
        yield from _option(option)
    if command.words in ONE:
        yield from _item("Exit status 1", ONE[command.words])
    yield from _examples(command.words)


def _usage(command: CommandSpec) -> Iterator[str]:
    yield f".B limpet {_text(command.words)}"
    yield " ".join(["[\\fIOPTIONS\\fR]", *(f"\\fI{_text(x.form)}\\fR" for x in command.arguments)])


def _arguments(command: CommandSpec) -> Iterator[str]:
    for each in command.arguments:
        yield from _item(f"\\fI{_text(each.form)}\\fR", each.help)


def _options(options: Sequence[Parameter]) -> Iterator[str]:
    if options:
        yield ".SH OPTIONS"
    for each in options:
        yield from _option(each)


def _option(option: Parameter) -> Iterator[str]:
    words = ", ".join(f"\\fB{_text(word)}\\fR" for word in option.words)
    yield from _item(f"{words} \\fI{_text(option.form)}\\fR" if option.form else words, option.help)


def _exit_codes(words: str) -> Iterator[str]:
    for code, meaning in exit_codes_of(words).items():
        yield from _item(f"\\fB{code}\\fR", meaning)


def _examples(words: str) -> Iterator[str]:
    for example, meaning in EXAMPLES[words]:
        yield from _item(f"\\fB{_text(example)}\\fR", meaning)


def _item(words: str, meaning: str) -> Iterator[str]:
    yield ".TP"
    yield words
    yield _text(meaning)


def _text(text: str) -> str:
    """As roff takes it for text; line by line, so that no line is a request."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    escaped = escaped.replace("`", "\\(ga").replace("…", "...").replace("−", "\\-")
    return "\n".join(
        re.sub(r"^\.", "\\\\&.", each.strip()) for each in escaped.splitlines() if each
    )
