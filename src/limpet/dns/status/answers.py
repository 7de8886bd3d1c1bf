"""What the process that answers names says to commands, as JSON output has it."""

from __future__ import annotations

from msgspec import Struct


class NamesSaid(Struct, frozen=True, kw_only=True):
    """Something that the process that answers names says."""


class NameAnswered(NamesSaid, frozen=True, kw_only=True):
    """`limpet dns query`."""

    name: str
    type: str
    code: str
    """NOERROR, NXDOMAIN and so on."""
    records: list[str]
    because: str


class Upstream(NamesSaid, frozen=True, kw_only=True):
    """Who is asked for names that are not the cluster's."""

    address: str
    state: str


class NamesKept(NamesSaid, frozen=True, kw_only=True):
    """What the process that answers names knows."""

    services: int | None
    """None: of none was ever heard."""
    silent: int
    """Nodes whose endpoints are left out."""
    gone: int
    """Pods that are."""
    kept: int
    """Answers of upstreams."""
    kept_bytes: int


class NamesStatus(NamesKept, frozen=True, kw_only=True):
    """`limpet dns status`."""

    version: str
    pid: int
    pod: str
    trouble: str
    questions: dict[str, int]
    upstreams: list[Upstream]
