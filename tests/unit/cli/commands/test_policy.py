"""What a person reads of a node's policies."""

from __future__ import annotations

import pytest

from limpet.agent.policies.said import Policies
from limpet.cli.commands.serving.policy import show_policies
from limpet.cli.output import Output

NOTHING = "there is no policy, so all pods may do what they want"


@pytest.mark.parametrize("problems", [[], ["policies were not heard yet"]])
def test_that_all_pods_may_do_what_they_want_is_said_only_where_nothing_is_wrong(
    problems: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = Policies(source="Kubernetes", policies=[], problems=problems, dropped_packets=0)

    show_policies(said, Output.TABLE)

    printed = capsys.readouterr()
    assert (printed.out + printed.err).splitlines() == (problems or [NOTHING])
