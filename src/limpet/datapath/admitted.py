"""What parts that carry packets of peers have to know of a peer, whoever plans that."""

from __future__ import annotations

from typing import Protocol

from limpet.base.addresses import Prefix


class Admitted(Protocol):
    """One peer: the inner sources that are let in from it, on whatever rung."""

    @property
    def sources(self) -> tuple[Prefix, ...]: ...

    @property
    def refused(self) -> str:
        """Why nothing is sent to it; empty: something is."""
