"""What a report is made of."""

from __future__ import annotations

import re
from pathlib import Path

import limpet.cli.install.units
from limpet.agent.settings import parse_settings
from limpet.cli.bugreport.pieces import pieces

UNITS = Path(limpet.cli.install.units.__file__).parent


def test_the_log_of_every_unit_that_is_installed_is_in_it(tmp_path: Path) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in UNITS.glob("*.py"))
    units = set(re.findall(r'"(limpet-[a-z]+)\.service"', text))
    assert {"limpet-agent", "limpet-page"} <= units

    found = pieces(parse_settings({}, "test"), tmp_path / "agent.toml", tmp_path, None)

    assert {f"logs/{unit}.txt" for unit in units} <= {each.name for each in found}
