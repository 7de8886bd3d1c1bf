"""What a person reads of a node's policies."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from limpet.agent.policies.said import Policies
from limpet.agent.settings import Settings
from limpet.cli.commands.serving import policy as command
from limpet.cli.main import app

NOTHING = "there is no policy, so all pods may do what they want"


@pytest.mark.parametrize("problems", [[], ["policies were not heard yet"]])
def test_that_all_pods_may_do_what_they_want_is_said_only_where_nothing_is_wrong(
    problems: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = Policies(source="Kubernetes", policies=[], problems=problems, dropped_packets=0)

    def ask(*_arguments: object, **_named: Any) -> Policies:
        return said

    monkeypatch.setattr(command, "ask", ask)
    monkeypatch.setattr(command, "load_settings", lambda _config: Settings())

    typer.main.get_command(app)(["policy", "list"], standalone_mode=False)

    printed = capsys.readouterr()
    assert (printed.out + printed.err).splitlines() == (problems or [NOTHING])
