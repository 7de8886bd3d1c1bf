"""Files of a world, which other commands read while it runs: whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_whole(path: Path, text: str) -> None:
    """Whoever reads the file meanwhile finds what was in it before, or `text`."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """The configuration, in TOML, of one of Limpet's programs."""
    write_whole(path, "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
