"""What is said of a connection is what the specification says of both its ends."""

from __future__ import annotations

from ipaddress import ip_address

from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.policies.policy import PROTOCOLS, Key
from limpet.policies.verdict import Flow, judge
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
        assert all(each.allowed for each in judge(world, flow, {node}))
    assert judge(world, Flow(node, pod))[1].pod == Key(case.pods[0].namespace, "p0")
