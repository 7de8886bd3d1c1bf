"""Results on stdout, as a table or as JSON; talk on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec


class Output(StrEnum):
    """How a result is printed."""

    TABLE = "table"
    JSON = "json"


def put(text: str) -> None:
    """A line of the result."""
    sys.stdout.write(text + "\n")


def say(text: str) -> None:
    """A line that is no part of the result."""
    sys.stderr.write(text + "\n")


def put_json(document: Any) -> None:
    """`document`: of dicts, lists and structs."""
    put(json.dumps(msgspec.to_builtins(document), indent=2))


def show(answer: Any, output: Output, *lines: str) -> None:
    """The answer as JSON, or what it comes to in lines for a person."""
    if output is Output.JSON:
        put_json(answer)
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
) -> None:
    """The answer as JSON, or its rows as a table; `nothing` is said where there are none."""
    if output is Output.JSON:
        put_json(answer)
    elif rows:
        put_table(rows, columns)
    else:
        say(nothing)


def put_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> None:
    """Columns as wide as their widest cell, never cut: a line can be searched and copied.

    `columns`: those of the rows that are printed; by default all of them.
    """
    columns = columns or list(rows[0])
    table = [[column.upper().replace("_", " ") for column in columns]]
    table += [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[index]) for line in table) for index in range(len(columns))]
    for line in table:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        put("  ".join(cells).rstrip())


def _cell(value: Any) -> str:
    if isinstance(value, int):
        return count(value)
    return str(value) if value else "-"


def count(number: int) -> str:
    """As a person reads it: an IPv6 segment has more addresses than anybody counts."""
    return str(number) if number < 10**9 else f"{number:.1e}"


def off_by(ahead_s: float) -> str:
    """Of a clock: how far it is ahead, or behind."""
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
