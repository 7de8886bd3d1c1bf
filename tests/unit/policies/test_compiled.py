"""What is compiled means what the specification's text says, whatever the policies."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.base.bounds.tenants import POLICY_WINDOWS
from limpet.policies.compiled import AddressRange, Compiled, Window, ranges_of
from limpet.policies.compiler import compile_sides
from limpet.policies.labels import Expression, Selector
from limpet.policies.policy import (
    Direction,
    IpBlock,
    Key,
    NamedPort,
    Policy,
    PolicyPod,
    PolicyRule,
    PolicyWorld,
    PortSpan,
)
from tests.effort import examples
from tests.fuzz.proportion import lines_of
from tests.policy_cases import Case, cases, flows
from tests.policy_oracle import Flow, enters, leaves

WEB = PolicyPod(Key("alpha", "web"), (ip_address("10.0.0.2"),), {"app": "web"})


def allowed(compiled: Compiled, case: Case, number: int, direction: Direction, flow: Flow) -> bool:
    if number < 0 or flow.source.address == flow.target.address:
        return True
    peer = flow.target if direction == "egress" else flow.source
    protocol = None if flow.protocol == "ICMP" else flow.protocol.lower()
    by = compiled.allows(
        case.pod(number).key,
        direction,
        ip_address(peer.address),
        protocol,  # type: ignore[arg-type]
        flow.port,
    )
    return by is None or bool(by)


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_compiled_sides_allow_what_the_specification_says(data: st.DataObject) -> None:
    case = data.draw(cases())
    world = case.world()
    compiled = compile_sides(world, world.pods.values())
    for source, target, flow in data.draw(st.lists(flows(case), min_size=1, max_size=8)):
        out = allowed(compiled, case, source, "egress", flow)
        assert out == leaves(case.policies, case.namespaces, flow)
        into = allowed(compiled, case, target, "ingress", flow)
        assert into == enters(case.policies, case.namespaces, flow)


@settings(max_examples=examples(60), deadline=None)
@given(cases())
def test_windows_of_a_side_are_in_order_and_do_not_overlap(case: Case) -> None:
    world = case.world()
    for side in compile_sides(world, world.pods.values()).sides.values():
        for one, other in zip(side.windows, side.windows[1:], strict=False):
            if one.span.protocol == other.span.protocol:
                assert one.span.last < other.span.first
                touch = one.span.last + 1 == other.span.first
                assert not (touch and one.rules == other.rules)
        assert not any(window.rules & side.always for window in side.windows)


def compile_one(policy: Policy, *pods: PolicyPod, local: PolicyPod = WEB) -> Compiled:
    world = PolicyWorld({policy.key: policy}, {}, {each.key: each for each in (local, *pods)})
    return compile_sides(world, [local])


def test_a_pod_whose_labels_nobody_has_told_is_closed_where_it_might_be_isolated() -> None:
    policy = Policy(
        Key("alpha", "x"), Selector((("app", "db"),)), frozenset(["ingress"]), (PolicyRule(),)
    )
    unknown = PolicyPod(Key("alpha", "new"), (ip_address("10.0.0.3"),), None)
    elsewhere = PolicyPod(Key("beta", "new"), (ip_address("10.0.0.4"),), None)
    compiled = compile_one(policy, local=unknown)
    peer = ip_address("10.0.0.9")
    assert compiled.allows(unknown.key, "ingress", peer, "tcp", 80) == frozenset()
    assert compiled.allows(unknown.key, "egress", peer, "tcp", 80) is None
    assert compile_one(policy, local=elsewhere).sides == {}


def test_a_pod_with_the_nodes_network_is_neither_isolated_nor_chosen() -> None:
    everybody = Policy(Key("alpha", "x"), Selector(), frozenset(["ingress"]), (PolicyRule(),))
    host = PolicyPod(Key("alpha", "host"), (ip_address("192.0.2.1"),), {}, host_network=True)
    assert compile_one(everybody, local=host).sides == {}


def test_a_named_port_is_that_of_the_pod_that_receives() -> None:
    name = NamedPort("tcp", "http")
    policy = Policy(
        Key("alpha", "x"), Selector(), frozenset(["ingress"]), (PolicyRule(ports=(name,)),)
    )
    one = PolicyPod(Key("alpha", "one"), (ip_address("10.0.0.3"),), {}, {name: 8080})
    two = PolicyPod(Key("alpha", "two"), (ip_address("10.0.0.4"),), {}, {name: 9090})
    none = PolicyPod(Key("alpha", "none"), (ip_address("10.0.0.5"),), {})
    world = PolicyWorld({policy.key: policy}, {}, {each.key: each for each in (one, two, none)})
    sides = compile_sides(world, world.pods.values()).sides
    spans = {key.name: [w.span for w in side.windows] for (key, _), side in sides.items()}
    assert spans == {
        "one": [PortSpan("tcp", 8080, 8080)],
        "two": [PortSpan("tcp", 9090, 9090)],
        "none": [],
    }


def test_rules_at_the_same_ports_are_one_window() -> None:
    rules = tuple(
        PolicyRule(ports=(PortSpan("tcp", first, last),)) for first, last in ((1, 5), (3, 9))
    )
    policy = Policy(Key("alpha", "x"), Selector(), frozenset(["ingress"]), rules)
    (side,) = compile_one(policy).sides.values()
    assert [(w.span.first, w.span.last, len(w.rules)) for w in side.windows] == [
        (1, 2, 1),
        (3, 5, 2),
        (6, 9, 1),
    ]
    assert isinstance(side.windows[0], Window)


def of_ports(*spans: tuple[int, int], for_all: int = 0) -> Policy:
    """A policy of a rule for each, and so many rules for all ports."""
    rules = [PolicyRule(ports=(PortSpan("tcp", first, last),)) for first, last in spans]
    everything = [PolicyRule((IpBlock(ip_network(f"10.9.{n >> 8}.{n & 255}/32")),))
                  for n in range(for_all)]  # fmt: skip
    return Policy(Key("alpha", "x"), Selector(), frozenset(["ingress"]), (*rules, *everything))


def test_rules_for_all_ports_are_not_told_again_at_each_port() -> None:
    policy = of_ports(*((port, port) for port in range(1, 1001)), for_all=1000)
    (side,) = compile_one(policy).sides.values()
    assert len(side.always) == len(side.windows) == 1000
    assert sum(len(window.rules) for window in side.windows) == 1000


def test_rules_that_hold_together_at_many_ports_are_told_once() -> None:
    spans = [(port, port) for port in range(1, 2000, 2)]
    rule = PolicyRule(ports=tuple(PortSpan("tcp", *each) for each in spans))
    policy = Policy(Key("alpha", "x"), Selector(), frozenset(["ingress"]), (rule,) * 20)
    compiled = compile_one(policy)
    (side,) = compiled.sides.values()
    assert [len(each) for each in side.sets_of_rules] == [20]
    assert compiled.allows(WEB.key, "ingress", ip_address("10.0.0.9"), "tcp", 1999)


def test_rules_that_overlap_cost_in_proportion() -> None:
    """As many as there are, and not each once more for each port at which another begins."""

    def lines(count: int) -> int:
        policy = of_ports(*((port, 65535) for port in range(1, count + 1)))
        return lines_of(lambda: compile_one(policy))

    assert lines(800) < 3 * lines(400)


def test_a_pod_whose_rules_differ_at_too_many_ports_is_closed_that_way_and_it_is_said() -> None:
    most = POLICY_WINDOWS.most
    count = next(n for n in range(most) if n * (n + 1) // 2 > most)
    policy = of_ports(*((port, 65535) for port in range(1, count + 1)))
    peer = ip_address("10.0.0.9")
    for rules, by in ((policy.ingress[1:], True), (policy.ingress, False)):
        few = Policy(policy.key, policy.pods, policy.directions, rules)
        compiled = compile_one(few)
        assert bool(compiled.allows(WEB.key, "ingress", peer, "tcp", count)) == by
        assert compiled.allows(WEB.key, "egress", peer, "tcp", count) is None
        assert bool(compiled.closed) == (not by)
    assert "ingress of pods of alpha" in compiled.closed[0]


def test_blocks_are_merged_without_what_is_excepted() -> None:
    blocks = [
        IpBlock(ip_network("10.0.0.0/30"), (ip_network("10.0.0.1/32"),)),
        IpBlock(ip_network("10.0.0.4/30")),
    ]
    first = int(ip_address("10.0.0.0"))
    assert ranges_of(blocks) == (
        AddressRange(4, first, first),
        AddressRange(4, first + 2, first + 7),
    )


def test_notin_holds_where_the_label_is_not_there() -> None:
    assert Expression("app", "NotIn", frozenset(["web"])).holds({})
    assert not Expression("app", "In", frozenset([""])).holds({})
