"""Of TOML, as of JSON, whatever is wrong is one error."""

from __future__ import annotations

from pathlib import Path

import pytest

from limpet.base.configuration import parse_toml
from limpet.base.errors import ConfigError
from limpet.controller.settings import load_settings


@pytest.mark.parametrize(
    "text", ["a = ", f"a = {'9' * 5000}", f"a = {'[' * 5000}", "a = 2026-99-99", "a.b = 1\na = 2"]
)
def test_what_is_wrong_with_toml_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_toml(text)


@pytest.mark.parametrize("text", [f"vxlan_id = {'9' * 5000}", f"listen = {'[' * 5000}"])
def test_settings_that_no_program_wrote_are_refused_with_their_file(
    text: str, tmp_path: Path
) -> None:
    path = tmp_path / "controller.toml"
    path.write_text(text)

    with pytest.raises(ConfigError, match=r"controller\.toml"):
        load_settings(path)
