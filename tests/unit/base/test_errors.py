"""Who does not get an answer is told why, and what to do."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from limpet.agent import client
from limpet.base.errors import LimpetError
from limpet.cli.names import ask_names
from limpet.controller.admin.client import call
from limpet.dns.status.answers import NamesStatus

ASK: list[Callable[[Path], object]] = [
    lambda path: client.call(path, "status"),
    lambda path: call(path, "node-list"),
    lambda path: ask_names(path.parent, {"ask": "status"}, NamesStatus),
]


@pytest.mark.parametrize("ask", ASK)
def test_where_nobody_listens_a_person_is_told_what_to_look_at(
    ask: Callable[[Path], object], tmp_path: Path
) -> None:
    with pytest.raises(
        LimpetError, match=r"No such file.*is it running\? systemctl status limpet-"
    ):
        ask(tmp_path / "socket")


@pytest.mark.parametrize("ask", ASK)
def test_who_may_not_ask_is_told_so(ask: Callable[[Path], object], tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    os.seteuid(65534)
    try:
        with pytest.raises(LimpetError, match=r"permission denied.*root") as refused:
            ask(tmp_path / "socket")
    finally:
        os.seteuid(0)
    assert "running" not in str(refused.value)
