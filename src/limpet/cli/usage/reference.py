"""Pages of the documentation that are made of the code; scripts/write-reference writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator

from limpet.cli.usage.exit_codes import EVERYWHERE, ONE, OTHERS
from limpet.cli.usage.schemas import ANSWERS, schema_file, schema_of


def exit_codes_page() -> str:
    """docs/reference/exit-codes.md."""
    return "".join(f"{line}\n" for line in _exit_codes())


def json_page() -> str:
    """docs/reference/json.md."""
    rows = [
        f"| `limpet {words}` | [{schema_file(words)}](schemas/{schema_file(words)}) |\n"
        for words in sorted(ANSWERS)
    ]
    return _JSON + "".join(rows)


def schemas() -> dict[str, str]:
    """Text of each file of docs/reference/schemas, by its name."""
    return {
        schema_file(words): json.dumps(schema_of(words), indent=1, sort_keys=True) + "\n"
        for words in ANSWERS
    }


_JSON = """\
# JSON

<!-- scripts/write-reference makes this page and the schemas of what commands answer with -->

With `-o json` or `-o yaml` a command puts one document on stdout, whole, also where its exit code
is 1 because something is wrong; talk is on stderr. An error leaves stdout empty. Text is escaped to
ASCII and otherwise exact. Moments (`…_at_s`) are seconds since 1970 by the clock of whoever says
them, lengths of time end in `_s` or `_ms`, sizes in `_bytes`.

**Assumes** a program of yours that reads what commands answer. **Undo**: nothing to undo; `-o`
changes how an answer is written, never what a command does.

Keys keep their names and meanings; later versions may have more, so leave alone those that you do
not know. What each command answers, as JSON Schema:

| command | schema |
|---|---|
"""


def _exit_codes() -> Iterator[str]:
    yield "# Exit codes"
    yield ""
    yield "<!-- scripts/write-reference makes this page of src/limpet/cli/usage/exit_codes.py -->"
    yield ""
    yield "**Assumes** a script that asks how a command ended. **Undo**: nothing to undo; what"
    yield "a command has done when it ends with 1, its own [page](../commands/index.md) says."
    yield ""
    yield "| code | meaning |"
    yield "|---|---|"
    for code, meaning in EVERYWHERE.items():
        yield f"| {code} | {meaning} |"
    yield ""
    yield "Where 1 means something of its own:"
    yield ""
    yield "| command | 1 |"
    yield "|---|---|"
    for words, meaning in sorted(ONE.items()):
        yield f"| `limpet {words}` | {meaning} |"
    yield ""
    yield "Where the code is another program's:"
    yield ""
    yield "| command | code |"
    yield "|---|---|"
    for words, meaning in sorted(OTHERS.items()):
        yield f"| `limpet {words}` | {meaning} |"
