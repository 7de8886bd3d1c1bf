"""Files of a world, which other commands read while it runs: whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limpet.base.disk import write_durably

_MODE = 0o644


def write_text(path: Path, text: str) -> None:
    """Raises: StorageError."""
    write_durably(path, text.encode(), _MODE)


def write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """The configuration, in TOML, of one of Limpet's programs. Raises: StorageError."""
    write_text(path, "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
