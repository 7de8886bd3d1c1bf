"""All rows, by the party that sends: for the tests and the documentation."""

from __future__ import annotations

from limpet.base.bounds import (
    administrators,
    members,
    neighbours,
    servers,
    signers,
    strangers,
    tenants,
    visitors,
    words,
)
from limpet.base.bounds.bound import Bound


def _rows(module: object) -> dict[str, Bound]:
    return {name: row for name, row in vars(module).items() if isinstance(row, Bound)}


TABLE = {
    "members": _rows(members),
    "neighbours": _rows(neighbours),
    "signers": _rows(signers),
    "tenants": _rows(tenants),
    "strangers": _rows(strangers),
    "servers": _rows(servers),
    "visitors": _rows(visitors),
    "administrators": _rows(administrators),
    "anybody": _rows(words),
}
"""Party (the name of its module) to the name of each row and the row."""


def in_markdown() -> list[str]:
    """The lines of the table in docs/security.md, without its head."""
    return [
        f"| {party} | {row.what} | {row.most:,} {row.unit} | {row.above.value} |"
        for party, rows in TABLE.items()
        for row in rows.values()
    ]
