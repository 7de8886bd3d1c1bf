"""Pages of the documentation that are made of the code; scripts/write-reference writes them."""

from __future__ import annotations

from collections.abc import Iterator

from limpet.cli.usage.exit_codes import EVERYWHERE, ONE, OTHERS


def exit_codes_page() -> str:
    """docs/reference/exit-codes.md."""
    return "".join(f"{line}\n" for line in _exit_codes())


def _exit_codes() -> Iterator[str]:
    yield "# Exit codes"
    yield ""
    yield "<!-- scripts/write-reference makes this page of src/limpet/cli/usage/exit_codes.py -->"
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
