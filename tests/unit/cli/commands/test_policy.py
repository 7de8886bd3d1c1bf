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


def test_a_node_that_does_not_look_at_kubernetes_policies_does_not_say_that_there_are_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = Policies(source="the cluster", policies=[], problems=[], dropped_packets=0)

    show_policies(said, Output.TABLE, looks_away=True)

    printed = capsys.readouterr()
    assert (printed.out + printed.err).splitlines() == [
        'this node does not look at NetworkPolicies of Kubernetes (policies = "off"), and has no '
        "others, so all pods may do what they want"
    ]
