"""What the controller will not do, and why."""

from __future__ import annotations

from limpet.base.errors import LimpetError
from limpet.cluster.api import Code, Refused
from limpet.cluster.documents import Sealed

AFTER_S = 1.0
"""When a node that was too quick asks again: what is new until then is told at once."""


class RefusedError(LimpetError):
    """Carries what the one who asked is told."""

    def __init__(
        self,
        code: Code,
        error: str,
        *,
        above: int | None = None,
        version: int | None = None,
        document: Sealed | None = None,
        after_s: float | None = None,
        roots: tuple[Sealed, ...] = (),
    ) -> None:
        super().__init__(error)
        self.refused = Refused(code, error, above, version, document, after_s, roots)
