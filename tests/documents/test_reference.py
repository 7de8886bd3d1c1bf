"""What a person may write or read has a line in the documentation: keys, codes, figures."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from limpet.agent.settings import Settings
from limpet.agent.settings import parse_settings as parse_agent
from limpet.base.configuration import configuration_keys
from limpet.base.errors import CniCode, CniError
from limpet.cni.protocol import conf, ipam
from limpet.controller.settings import ControllerSettings
from limpet.controller.settings import parse_settings as parse_controller

DOCS = Path(__file__).resolve().parents[2] / "docs"
_OF_THE_SPECIFICATION = 100
"""Codes below are CNI's own."""


def _first_cells(page: str, section: str) -> set[str]:
    """Every `word` in the first column of the section's tables."""
    text = (DOCS / page).read_text(encoding="utf-8")
    part = text.split(f"\n## {section}", 1)[1].split("\n## ", 1)[0] if section else text
    rows = [line.split("|")[1] for line in part.splitlines() if line.startswith("| ")]
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row)}


@pytest.mark.parametrize(
    ("kind", "page", "section"),
    [
        (Settings, "configuration.md", "The agent"),
        (ControllerSettings, "controller.md", ""),
    ],
)
def test_the_documentation_has_every_key_of_a_configuration(
    kind: type[Settings | ControllerSettings], page: str, section: str
) -> None:
    assert set(configuration_keys(kind)) - _first_cells(page, section) == set()


def test_the_documentation_has_every_key_of_a_cni_network() -> None:
    kinds = (conf._TOP, conf.DNS, conf.BANDWIDTH, ipam.IPAM, ipam._RANGE, ipam.ROUTE)
    known = {key for kind in kinds for key in kind.values()}

    assert known - _first_cells("configuration.md", "A CNI network") == set()


def _is_refused(key: str) -> bool:
    """Whether a network is refused that asks for something by this key."""
    network = {"cniVersion": "1.1.0", "name": "n", "type": "limpet", "ipam": {"type": "limpet"}}
    for asked in (True, ["10.0.0.0/8"]):
        try:
            conf.parse_static_conf(json.dumps({**network, key: asked}).encode(), strict=True)
        except CniError as error:
            if error.code == CniCode.UNSUPPORTED_FIELD:
                return True
    return False


def test_it_says_of_each_key_of_a_cni_network_that_is_refused_that_it_is() -> None:
    text = (DOCS / "configuration.md").read_text(encoding="utf-8")
    refused = {key for key in conf._TOP.values() if _is_refused(key)}

    [row] = [line for line in text.splitlines() if "| are refused" in line]
    assert set(re.findall(r"`([^`]+)`", row.split("|")[1])) == refused
    [sentence] = re.findall(r"Not served, and refused [^:]*: ([^.]*)\.", text)
    assert set(re.findall(r"`([^`]+)`", sentence)) == refused


def test_it_has_no_key_of_the_agent_that_there_is_not() -> None:
    assert _first_cells("configuration.md", "The agent") == set(configuration_keys(Settings))


@pytest.mark.parametrize(
    ("read", "page"),
    [(parse_agent, "configuration.md"), (parse_controller, "controller.md")],
)
def test_who_writes_the_default_that_it_tells_changes_nothing(
    read: Callable[[dict[str, Any], str], Struct], page: str
) -> None:
    """Where the second column is a value and not words about it."""
    text = (DOCS / page).read_text(encoding="utf-8")
    told = re.findall(r"^\| `([a-z_]+)` \| `([^`|]+)` \|", text, re.MULTILINE)
    keys = set(configuration_keys(type(read({}, page))))
    tried = 0
    for key, written in told:
        if key in keys:
            value = written if written.startswith("/") else tomllib.loads(f"it = {written}")["it"]
            assert read({key: value}, page) == read({}, page), f"{page}: {key}"
            tried += 1

    assert tried > 5


def test_it_has_every_error_code_that_is_ours() -> None:
    text = (DOCS / "configuration.md").read_text(encoding="utf-8")
    told = text.split("\n### Errors\n", 1)[1]
    ours = {each.value for each in CniCode if each >= _OF_THE_SPECIFICATION}
    assert {int(each) for each in re.findall(r"\b1[0-9]{2}\b", told)} == ours
