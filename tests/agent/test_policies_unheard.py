"""What is said of a Kubernetes' policies before they were heard, and after."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from limpet.agent.answers.picture.workloads import Named, policies_on_pair, why_no_policies
from limpet.agent.policies.of_kubernetes import KubernetesPolicies
from limpet.agent.policies.said import Judged
from limpet.agent.policies.said import Policies as SaidPolicies
from limpet.base.settings import SourceSettings
from limpet.datapath.loop import Loop
from limpet.policies.compiled import Compiled, DirectionRules
from limpet.policies.heard import ReadPolicies, encode_kept
from limpet.policies.policy import Key, PolicyPod
from tests.beds.namespaces import NetnsFactory

Make = Callable[[], KubernetesPolicies]

UNHEARD = "policies were not heard yet: this node's pods are closed"
CLOSED = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"namespace": "shop", "name": "closed"},
    "spec": {"podSelector": {}},
}
BOTH_CLOSED = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
NODES = {
    "here": (ip_network("127.0.1.0/24"),),
    "other": (ip_network("10.244.2.0/24"), ip_network("10.244.9.0/24")),
    "third": (ip_network("10.244.3.0/24"),),
}
FLOW = {"pairs": [("10.244.1.2", "10.244.2.7")], "protocol": "tcp", "port": 80}


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "policies-of-kubernetes.jsonl"


@pytest.fixture
def make(kept: Path, make_netns: NetnsFactory) -> Iterator[Make]:
    """Makes those of a node without pods."""
    with make_netns("node").entered(), ExitStack() as undo:

        def made() -> KubernetesPolicies:
            loop = Loop()
            undo.callback(loop.close)
            found = KubernetesPolicies(
                loop,
                kept,
                [],
                str,
                SourceSettings(),
                node_segments=lambda: NODES,
                random=lambda: 0.5,
            )
            undo.callback(found.close)
            return found

        yield made


def ask(policies: KubernetesPolicies, verb: str, **asked: Any) -> Any:
    return asyncio.run(policies.answer(verb, asked))


def test_what_was_not_heard_yet_is_told_and_nothing_is_said_of_other_nodes_pods(make: Make) -> None:
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


def test_an_agent_begins_where_what_it_kept_is_damaged(make: Make, kept: Path) -> None:
    kept.write_bytes(bytes(4096))

    policies = make()

    assert policies.unheard == UNHEARD
    assert any("was damaged" in each for each in ask(policies, "policy.list").problems)


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
    make: Make, kept: Path, policies: bool, pods: bool, allowed: bool | None, words: str
) -> None:
    heard = ReadPolicies()
    heard.is_whole = True
    if policies:
        heard.put_policy(Key("shop", "closed"), CLOSED)
    if pods:
        key = Key("shop", "db-0")
        heard.pods[key] = PolicyPod(key, (ip_address("10.244.3.3"),), {})
    kept.write_bytes(encode_kept(heard.kept()))
    found = make()
    listed: SaidPolicies = ask(found, "policy.list")
    judged: Judged = ask(found, "policy.judge", **FLOW)

    assert UNHEARD not in listed.problems
    is_told = any("pods of other nodes were not heard" in each for each in listed.problems)
    assert is_told is (allowed is None)
    (flow,) = judged.flows
    assert flow.allowed is allowed
    assert all(words in end.why for end in flow.ends)


@pytest.mark.parametrize(
    ("node", "allowed"),
    [("127.0.0.1", False), ("10.244.3.1", False), ("10.244.2.1", True), ("10.244.9.1", True)],
    ids=["this node", "a third node", "its own node", "its own node, in another segment"],
)
def test_a_pod_of_another_node_is_always_reached_by_that_node_alone(
    make: Make, kept: Path, node: str, allowed: bool
) -> None:
    heard = ReadPolicies()
    heard.put_policy(Key("shop", "closed"), {**CLOSED, "spec": BOTH_CLOSED})
    heard.namespaces["shop"] = {}
    key = Key("shop", "web-0")
    heard.pods[key] = PolicyPod(key, (ip_address("10.244.2.7"),), {})
    kept.write_bytes(encode_kept(heard.kept()))
    policies = make()

    for pair in ((node, "10.244.2.7"), ("10.244.2.7", node)):
        judged: Judged = ask(policies, "policy.judge", **{**FLOW, "pairs": [pair]})
        (end,) = (end for flow in judged.flows for end in flow.ends if end.pod)
        assert end.allowed is allowed
        assert ("its own pods" in end.why) is allowed


def test_what_is_closed_since_its_rules_are_too_many_is_told(make: Make) -> None:
    policies = make()
    closed = DirectionRules(closed="ingress of pods of shop is closed")
    keys = [Key("shop", "one"), Key("shop", "two")]
    policies.part.compiled = Compiled({(key, "ingress"): closed for key in keys})

    listed: SaidPolicies = ask(policies, "policy.list")

    assert listed.problems.count(closed.closed) == 1
    assert closed.closed in policies.problems
