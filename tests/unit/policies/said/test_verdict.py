"""What is said of a connection is what the specification says of both its ends."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator
from ipaddress import ip_address

from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.agent.policies.words import end_line, pod_policies
from limpet.base.bounds.tenants import POLICY_WINDOWS
from limpet.policies.compiler import compile_sides
from limpet.policies.labels import Selector
from limpet.policies.policy import (
    PROTOCOLS,
    Key,
    NamedPort,
    PodPeer,
    Policy,
    PolicyPod,
    PolicyRule,
    PolicyWorld,
    PortSpan,
)
from limpet.policies.said.verdict import Flow, judge
from tests.effort import examples
from tests.policy_cases import Case, addresses_of, cases, flows
from tests.policy_oracle import enters, leaves


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_both_ends_say_what_the_specification_says(data: st.DataObject) -> None:
    case = data.draw(cases())
    world = case.world()
    _, _, flow = data.draw(flows(case))
    protocol = next((each for each in PROTOCOLS if each == flow.protocol.lower()), None)
    asked = Flow(
        ip_address(flow.source.address), ip_address(flow.target.address), protocol, flow.port
    )
    out, into = judge(world, asked)
    assert out.allowed == leaves(case.policies, case.namespaces, flow)
    assert into.allowed == enters(case.policies, case.namespaces, flow)
    for each in (out, into):
        if each.rules:
            assert {rule.policy for rule in each.rules} <= set(each.isolated_by)


@settings(max_examples=30, deadline=None)
@given(cases())
def test_a_node_reaches_its_own_pods_whatever_the_policies(case: Case) -> None:
    node = ip_address("10.244.7.1")
    pod = ip_address(addresses_of(0)[4])
    world = case.world()
    for flow in (Flow(node, pod, "tcp", 80), Flow(pod, node, "tcp", 80)):
        assert all(each.allowed for each in judge(world, flow, lambda _: {node}))
    assert judge(world, Flow(node, pod))[1].pod == Key(case.pods[0].namespace, "p0")


def test_an_end_that_is_closed_since_its_rules_are_too_many_says_so() -> None:
    """A person who asks is told why rules that allow it do not."""
    rules = tuple(
        PolicyRule(ports=(PortSpan("tcp", n, n),)) for n in range(1, POLICY_WINDOWS.most + 2)
    )
    pod = PolicyPod(Key("shop", "web"), (ip_address("10.0.0.2"),), {})
    flow = Flow(ip_address("10.0.0.9"), pod.addresses[0], "tcp", 1)
    for held, allowed in ((rules[1:2], False), (rules[:1], True), (rules, False)):
        policy = Policy(Key("shop", "x"), Selector(), frozenset(["ingress"]), held)
        world = PolicyWorld({policy.key: policy}, {}, {pod.key: pod})
        into = judge(world, flow)[1]
        assert into.allowed == allowed
        is_closed = len(held) > POLICY_WINDOWS.most
        assert bool(into.closed) == is_closed
        why = end_line(into, here=True, is_known=True).why
        assert ("rules come to more than 8,192" in why) == is_closed
        told = pod_policies(world, pod, compile_sides(world, [pod])).sides[0]
        assert told.direction == "ingress"
        assert bool(told.rules) == (not is_closed)


class Walked(UserDict[Key, PolicyPod]):
    """Pods of a cluster, that know how often somebody went through all of them."""

    times = 0

    def __iter__(self) -> Iterator[Key]:
        self.times += 1
        return super().__iter__()


def test_of_each_rule_it_is_told_how_many_pods_it_means_and_all_pods_are_looked_at_once() -> None:
    """A tenant may have thousands of rules, and a cluster thousands of pods."""
    pods = Walked(
        (Key("shop", f"p{n}"), PolicyPod(Key("shop", f"p{n}"), (ip_address(f"10.0.0.{n}"),), {}))
        for n in range(1, 4)
    )
    db = PolicyPod(Key("shop", "db"), (ip_address("10.0.1.1"),), {"app": "db"})
    pods[db.key] = db
    others, dbs = PodPeer(), PodPeer(Selector((("app", "db"),)))
    named = (NamedPort("tcp", "http"),)  # which the pod has not
    rules = (
        *(PolicyRule((others,), (PortSpan("tcp", n, n),)) for n in range(1, 100)),
        PolicyRule((dbs,)),
        PolicyRule((others, dbs), named),
        PolicyRule((dbs,), named),
        PolicyRule(),
    )
    both = Policy(Key("shop", "x"), Selector(), frozenset(["ingress", "egress"]), rules, rules)
    world = PolicyWorld({both.key: both}, {}, pods)
    compiled = compile_sides(world, [db])
    before = pods.times

    sides = pod_policies(world, db, compiled).sides

    assert pods.times <= before + 1
    for side in sides:
        assert [each.addresses for each in side.rules] == [*[4] * 99, 1, 4, 1, None]
