"""What an agent tells of the gateway of its site."""

from __future__ import annotations

from msgspec import Struct


class PortMappingStatus(Struct, frozen=True, kw_only=True):
    """What a gateway was asked for."""

    by: str | None
    gateway: str | None
    problem: str
