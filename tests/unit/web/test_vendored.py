"""What is vendored is what was published."""

from __future__ import annotations

import hashlib
from pathlib import Path

import limpet.web

VENDOR = Path(limpet.web.__file__).parent / "static" / "vendor"


def test_htmx_is_the_file_that_the_script_has_verified() -> None:
    lines = (VENDOR / "htmx.sha256").read_text(encoding="ascii").splitlines()

    said = {name: digest for digest, name in (line.split() for line in lines)}
    found = {name: hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() for name in said}
    assert found == said
    assert set(said) == {"htmx.min.js", "htmx.LICENSE"}
