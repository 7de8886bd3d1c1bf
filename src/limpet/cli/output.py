"""Results on stdout, as a table or as a document (JSON, YAML); talk on stderr.

All that a command prints goes through here, and nothing that others wrote gets through: a pod's
name, an error of a server or an answer of DNS moves no cursor, forges no line and hides no other.
Documents stay exact, in ASCII.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from math import log2
from typing import Any, TextIO

import msgspec

from limpet.base.bounds.words import CELL, LINE
from limpet.base.text.escaping import escaped, shortened

_WIDEST_COLUMN = 320
"""Characters. A cell that is wider sticks out of its own row, and widens no other."""
_YAML_WIDTH = 1 << 20
"""Characters. Text of others is not folded, so that a line can be searched for and copied."""


class Output(StrEnum):
    """How a result is printed."""

    TABLE = "table"
    WIDE = "wide"
    """A table with the columns that are left out of the other one."""
    JSON = "json"
    YAML = "yaml"

    @property
    def is_document(self) -> bool:
        """For a program: the whole answer, and nothing else on stdout."""
        return self in (Output.JSON, Output.YAML)


def put(text: str) -> None:
    """A line of the result."""
    sys.stdout.write(_line(text))


def put_at_once(text: str) -> None:
    """A line that somebody waits for, also a program, while the command goes on."""
    put(text)
    sys.stdout.flush()


def say(text: str) -> None:
    """A line that is no part of the result."""
    sys.stderr.write(_line(text))


def _line(text: str) -> str:
    return escaped(shortened(text, LINE.most)) + "\n"


def put_json(document: Any) -> None:
    """`document`: of dicts, lists and structs."""
    sys.stdout.write(json.dumps(msgspec.to_builtins(document), indent=2, ensure_ascii=True) + "\n")


def put_document(document: Any, output: Output) -> None:
    """As JSON or as YAML, both in ASCII; `document`: of dicts, lists and structs."""
    if output is not Output.YAML:
        put_json(document)
        return
    # Only here: few ask for it, and it takes longer to load than most commands to run.
    import yaml

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True  # a value that is there twice stands there twice, as in JSON

    plain = msgspec.to_builtins(document, str_keys=True)
    sys.stdout.write(
        yaml.dump(plain, Dumper=Plain, sort_keys=False, allow_unicode=False, width=_YAML_WIDTH)
    )


def put_script(text: str) -> None:
    """A program that we made, for a shell to read: printable lines.

    Raises: ValueError for one that a terminal could take for something else.
    """
    if escaped(text, keep="\n\t") != text:
        raise ValueError("print a script: not printable")
    sys.stdout.write(text)


def put_encoded(text: str) -> None:
    """A line for a program: JSON in ASCII, or base64.

    Raises: ValueError for one that a terminal could take for something else.
    """
    if not (text.isascii() and text.isprintable()):
        raise ValueError("print for a program: not printable ASCII")
    sys.stdout.write(text + "\n")


class Passage:
    """Text of another program as it comes in: its lines stay lines, and that is all it can do."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(escaped(text, keep="\n\t"))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def tame_stderr() -> Iterator[None]:
    """What typer says of a wrong argument, and Python of a crash, is escaped too."""
    before = sys.stderr
    with contextlib.redirect_stderr(Passage(before)):
        yield


def put_markdown(text: str) -> None:
    """A page of our own documentation: drawn on a terminal, as it is written elsewhere."""
    if not sys.stdout.isatty():
        for line in text.rstrip().split("\n"):
            put(line)
        return
    # Only here: it takes a tenth of a second to load.
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(escaped(text, keep="\n"), hyperlinks=False))


def show(answer: Any, output: Output, *lines: str) -> None:
    """The answer as a document, or what it comes to in lines for a person."""
    if output.is_document:
        put_document(answer, output)
    else:
        for line in lines:
            put(line)


def show_table(
    answer: Any,
    output: Output,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str] = (),
    *,
    nothing: str,
    wide: Collection[str] = (),
) -> None:
    """The answer as a document, or its rows as a table; `nothing` is said where there are none.

    `wide`: columns that only the wide table has.
    """
    if output.is_document:
        put_document(answer, output)
    elif rows:
        columns = columns or list(rows[0])
        is_wide = output is Output.WIDE
        put_table(rows, [each for each in columns if is_wide or each not in wide])
    else:
        say(nothing)


def put_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> None:
    """Columns as wide as their widest cell: a line can be searched and copied.

    `columns`: those of the rows that are printed; by default all of them.
    """
    columns = columns or list(rows[0])
    table = [[column.upper().replace("_", " ") for column in columns]]
    table += [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [
        min(_WIDEST_COLUMN, max(len(line[index]) for line in table))
        for index in range(len(columns))
    ]
    for line in table:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        put("  ".join(cells).rstrip())


def _cell(value: Any) -> str:
    if isinstance(value, int):
        return count(value)
    return escaped(shortened(str(value), CELL.most)) if value else "-"


def count(number: int) -> str:
    """As a person reads it: an IPv6 segment has more addresses than anybody counts."""
    return str(number) if number < 10**9 else f"2^{round(log2(number))}"


def counted(number: int, noun: str) -> str:
    """`1 pod`, `2 pods`, `2 addresses`."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{count(number)} {noun}{ending}"


def clear_screen() -> None:
    """Nothing where stdout is no terminal."""
    if sys.stdout.isatty():
        sys.stdout.write("\x1b[H\x1b[2J")


def off_by(ahead_s: float) -> str:
    """How far a clock is ahead, or behind."""
    return f"{duration(abs(ahead_s))} {'ahead' if ahead_s > 0 else 'behind'}"


def duration(seconds: float) -> str:
    """In the two largest units."""
    rest = int(seconds)
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])
