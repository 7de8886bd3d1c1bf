"""What is said of a Kubernetes' policies before they were heard, and after."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from limpet.agent.answers.picture.workloads import Named, policies_on_pair, why_no_policies
from limpet.agent.policies import keeper
from limpet.agent.policies.of_kubernetes import KubernetesPolicies, heard_before
from limpet.agent.policies.said import Judged
from limpet.agent.policies.said import Policies as SaidPolicies
from limpet.base.bounds.words import FILE
from limpet.base.settings import SourceSettings
from limpet.policies.heard import ReadPolicies
from limpet.policies.policy import Key, PolicyPod

UNHEARD = "policies were not heard yet: this node's pods are closed"
CLOSED = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"namespace": "shop", "name": "closed"},
    "spec": {"podSelector": {}},
}
FLOW = {"pairs": [("10.244.1.2", "10.244.2.7")], "protocol": "tcp", "port": 80}


class Part:
    """A part of the datapath that has no kernel."""

    def __init__(self, *_arguments: object) -> None:
        pass

    def wake(self, _why: str) -> None:
        pass

    def dropped_packets(self) -> int:
        return 0

    def own_addresses(self) -> frozenset[str]:
        return frozenset()


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "policies-of-kubernetes.jsonl"


@pytest.fixture
def make(kept: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes those of a node without pods."""
    monkeypatch.setattr(keeper, "PolicyPart", Part)
    loop = cast(Any, SimpleNamespace(add=lambda _part: None))
    return lambda: KubernetesPolicies(loop, kept, [], str, SourceSettings(), random=lambda: 0.5)


def ask(policies: KubernetesPolicies, verb: str, **asked: Any) -> Any:
    return asyncio.run(policies.answer(verb, asked))


def test_what_was_not_heard_yet_is_told_and_nothing_is_said_of_other_nodes_pods(make: Any) -> None:
    policies = make()
    listed: SaidPolicies = ask(policies, "policy.list")
    judged: Judged = ask(policies, "policy.judge", **FLOW)

    assert listed.policies == []
    assert UNHEARD in listed.problems
    assert why_no_policies(listed) == UNHEARD
    (flow,) = judged.flows
    assert flow.allowed is None
    assert [end.why for end in flow.ends if "no pod" in end.why and end.allowed] == []
    found, words = policies_on_pair(policies, [], Named("1", "crane"), Named("2", "digger"))
    assert found == ()
    assert words == (UNHEARD,)


@pytest.mark.parametrize(
    ("policies", "pods", "allowed", "words"),
    [
        (False, False, True, "no pod that a policy selects has the address"),
        (True, False, None, "a pod of another node is held to that one's policies"),
        (True, True, True, "no pod that a policy selects has the address"),
    ],
    ids=["no policy, so pods are not asked for", "pods are not heard yet", "all is heard"],
)
def test_of_an_address_that_is_no_known_pods_no_more_is_said_than_is_known(
    make: Any, kept: Path, policies: bool, pods: bool, allowed: bool | None, words: str
) -> None:
    heard = ReadPolicies()
    heard.is_whole = True
    if policies:
        heard.put_policy(Key("shop", "closed"), CLOSED)
    if pods:
        key = Key("shop", "db-0")
        heard.pods[key] = PolicyPod(key, (ip_address("10.244.3.3"),), {})
    kept.write_bytes(heard.encode())
    found = make()
    listed: SaidPolicies = ask(found, "policy.list")
    judged: Judged = ask(found, "policy.judge", **FLOW)

    assert UNHEARD not in listed.problems
    (flow,) = judged.flows
    assert flow.allowed is allowed
    assert all(words in end.why for end in flow.ends)


def test_an_agent_begins_with_what_it_kept_of_however_many_pods(kept: Path) -> None:
    """Of 60,000; an agent that refused it could not start again on any node."""
    heard = ReadPolicies()
    heard.is_whole = True
    for number in range(17_000):
        key = Key("shop", f"web-{number}")
        heard.pods[key] = PolicyPod(key, (ip_address("10.1.0.1"),), {"app": "x" * 1000})
    kept.write_bytes(heard.encode())

    assert kept.stat().st_size > FILE.most
    assert len(heard_before(kept).pods) == len(heard.pods)
