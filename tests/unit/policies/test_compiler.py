"""What is compiled after changes is what would be compiled from nothing."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.base.bounds.tenants import POLICY_ELEMENTS_OF_ONE
from limpet.datapath.policy.peer_sets import Planned
from limpet.datapath.policy.ruleset import LocalPort, plan_tables
from limpet.policies.compiler import Compiler, compile_sides
from limpet.policies.labels import Selector
from limpet.policies.parse import parse_policy
from limpet.policies.policy import (
    IpBlock,
    Key,
    NamedPort,
    PodPeer,
    Policy,
    PolicyPod,
    PolicyRule,
    PolicyWorld,
    PortSpan,
)
from tests.effort import examples
from tests.fuzz.proportion import lines_of
from tests.policy_cases import cases

K = TypeVar("K")
V = TypeVar("V")


@st.composite
def worlds(draw: st.DrawFn) -> list[PolicyWorld]:
    """Each with some of what the ones before it have: the same values, others, or none."""
    one, other = draw(cases()).world(), draw(cases()).world()
    found = [one]
    for _ in range(draw(st.integers(1, 4))):
        found.append(
            PolicyWorld(
                mixed(draw, one.policies, other.policies),
                mixed(draw, one.namespaces, other.namespaces),
                mixed(draw, one.pods, other.pods),
            )
        )
    return found


def mixed(draw: Callable[..., int], one: Mapping[K, V], other: Mapping[K, V]) -> dict[K, V]:
    found = {}
    for key in [*one, *(each for each in other if each not in one)]:
        source = (one, other, {})[draw(st.integers(0, 2))]
        if key in source:
            found[key] = source[key]
    return found


def ports_of(world: PolicyWorld) -> list[LocalPort]:
    return [
        LocalPort(pod.key, f"lim{number}", f"0a:58:00:00:00:{number:02x}", "0e:58:00:00:00:01",
                  pod.addresses)
        for number, pod in enumerate(world.pods.values())
    ]  # fmt: skip


@settings(max_examples=examples(150), deadline=None)
@given(worlds())
def test_changes_lead_to_what_is_made_from_nothing(found: list[PolicyWorld]) -> None:
    compiler, planned = Compiler(), Planned()
    for world in found:
        whole = compile_sides(world, world.pods.values())
        compiled = compiler.compile(world, world.pods.values())
        assert compiled == whole
        ports = ports_of(world)
        assert plan_tables(compiled, ports, planned) == plan_tables(whole, ports)


SELECTING = parse_policy(
    {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {
            "podSelector": {},
            "ingress": [
                {"from": [{"podSelector": {"matchLabels": {"app": "a"}}}], "ports": [{"port": 1}]},
                {"from": [{"podSelector": {"matchLabels": {"app": "b"}}}], "ports": [{"port": 2}]},
            ],
        },
    }
)


def test_of_one_changed_pod_only_what_selects_it_is_made_anew() -> None:
    pods = {
        key: PolicyPod(key, (ip_address(f"10.0.0.{number}"),), {"app": name})
        for number, name in enumerate("ab", 2)
        for key in [Key("shop", name)]
    }
    world = PolicyWorld({SELECTING.key: SELECTING}, {}, pods)
    compiler, planned = Compiler(), Planned()
    before = compiler.compile(world, pods.values())
    tables = plan_tables(before, ports_of(world), planned)
    another = PolicyPod(Key("shop", "c"), (ip_address("10.0.0.9"),), {"app": "b"})
    after = compiler.compile(replace(world, pods={**pods, another.key: another}), pods.values())
    same = [rule for rule in after.peers if after.peers[rule] is before.peers[rule]]
    assert [rule.number for rule in same] == [0]
    then = plan_tables(after, ports_of(world), planned)
    kept = [name for name, each in then.inet.sets.items() if each is tables.inet.sets.get(name)]
    assert len([name for name in kept if name.startswith("pods4_")]) == 1


EVERYWHERE = Selector()


def choosing(count: int, namespaces: Selector | None = None) -> Policy:
    """A policy of one rule, of which each peer is pods with another value of a label."""
    peers = tuple(PodPeer(Selector((("app", str(n)),)), namespaces) for n in range(count))
    return Policy(
        Key("shop", "many"),
        Selector(),
        frozenset(["ingress"]),
        (PolicyRule(peers),) if peers else (),
    )


def labelled(count: int, namespace: str = "shop") -> dict[Key, PolicyPod]:
    """Pods of which each has another value of the label."""
    return {
        key: PolicyPod(key, (ip_address(f"10.0.{n >> 8}.{n & 255}"),), {"app": str(n)})
        for n in range(count)
        for key in [Key(namespace, f"p{n}")]
    }


def test_selectors_are_not_compared_with_pods_of_other_labels() -> None:
    """Selectors and pods, and not all the selectors for each of the pods."""

    def lines(count: int) -> int:
        policy, pods = choosing(count, EVERYWHERE), labelled(count)
        world = PolicyWorld({policy.key: policy}, {}, pods)
        return lines_of(lambda: compile_sides(world, [pods[Key("shop", "p0")]]))

    assert lines(400) < 3 * lines(200)


def test_a_changed_pod_of_another_namespace_costs_nothing_by_selectors_that_cannot_see_it() -> None:
    def lines(count: int) -> int:
        policy, pods = choosing(count), labelled(8)
        compiler = Compiler()
        world = PolicyWorld({policy.key: policy}, {}, pods)
        compiler.compile(world, [pods[Key("shop", "p0")]])
        after = replace(world, pods={**pods, **labelled(4, "other")})
        return lines_of(lambda: compiler.compile(after, [pods[Key("shop", "p0")]]))

    assert lines(400) == lines(200)


HTTP = NamedPort("tcp", "http")


@pytest.mark.parametrize("kind", ["pods", "blocks"])
def test_rules_with_names_of_ports_cost_what_they_mean_and_not_all_pods_with_the_name(
    kind: str,
) -> None:
    """Thousands of others' pods may have a port of that name, and each change of one counts."""

    def costs(count: int) -> tuple[int, int]:
        peers: list[PodPeer | IpBlock] = [
            PodPeer(Selector((("app", str(n)),)))
            if kind == "pods"
            else IpBlock(ip_network(f"10.0.{n >> 8}.{n & 255}/32"))
            for n in range(count)
        ]
        rules = tuple(PolicyRule((each,), (HTTP,)) for each in peers)
        policy = Policy(Key("shop", "x"), Selector(), frozenset(["egress"]), egress=rules)
        pods = {k: replace(pod, ports={HTTP: 80}) for k, pod in labelled(count).items()}
        compiler, world = Compiler(), PolicyWorld({policy.key: policy}, {}, pods)
        local = [pods[Key("shop", "p0")]]
        first = lines_of(lambda: compiler.compile(world, local))
        more = PolicyPod(Key("other", "p"), (ip_address("10.9.0.1"),), {}, {HTTP: 80})
        after = replace(world, pods={**pods, more.key: more})
        return first, lines_of(lambda: compiler.compile(after, local))

    few, many = costs(200), costs(400)
    assert many[0] < 3 * few[0]
    assert many[1] < 3 * few[1]


def test_of_labels_and_names_of_ports_that_pods_had_before_nothing_is_kept() -> None:
    """Whoever changes its pods on and on would fill the memory of each node of the cluster."""
    policy = choosing(1)
    compiler = Compiler()

    def change(number: int) -> None:
        labels = {f"label-{n}": f"{number}-{'x' * 50}" for n in range(200)}
        ports = {NamedPort("tcp", f"{number}-{n}"): 80 for n in range(2000)}
        pod = PolicyPod(Key("shop", "p"), (ip_address("10.0.0.1"),), labels, ports)
        compiler.compile(PolicyWorld({policy.key: policy}, {}, {pod.key: pod}), [pod])

    tracemalloc.start()
    try:
        change(0)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for number in range(1, 11):
            change(number)
        gc.collect()
        more = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert more < 100_000, "as much as one of the changes takes"


def test_a_rule_of_very_many_sets_is_looked_at_once() -> None:
    """Ports of rules may lie within each other's, so that each rule is in as many sets."""

    def lines(count: int) -> int:
        rules = tuple(
            PolicyRule(
                (PodPeer(Selector((("app", str(n)),))),), (PortSpan("tcp", 1 + n, 9_000 - n),)
            )
            for n in range(count)
        )
        policy, pods = choosing(1), labelled(count)
        policy = replace(policy, ingress=rules)
        compiler, world = Compiler(), PolicyWorld({policy.key: policy}, {}, pods)
        local = [pods[Key("shop", "p0")]]
        compiler.compile(world, local)
        return lines_of(lambda: compiler.compile(world, local))

    assert lines(100) < 3 * lines(50)


def test_rules_that_choose_the_same_pods_by_the_same_words_share_what_is_found() -> None:
    pods = labelled(50)
    peers = (PodPeer(Selector(), EVERYWHERE), PodPeer(Selector((("app", "1"),)), EVERYWHERE))
    rules = tuple(PolicyRule(peers) for _ in range(20))
    policy = Policy(Key("shop", "same"), Selector(), frozenset(["ingress"]), rules)
    compiler = Compiler()
    world = PolicyWorld({policy.key: policy}, {}, pods)
    compiler.compile(world, [pods[Key("shop", "p0")]])
    more = PolicyPod(Key("shop", "more"), (ip_address("10.9.0.1"),), {"app": "1"})
    after = compiler.compile(
        replace(world, pods={**pods, more.key: more}), [pods[Key("shop", "p0")]]
    )
    assert len({id(each.addresses) for each in after.peers.values()}) == 1
    assert {len(each.addresses) for each in after.peers.values()} == {51}


def test_pods_that_the_same_policies_select_have_one_side() -> None:
    policy, pods = choosing(3), labelled(10)
    world = PolicyWorld({policy.key: policy}, {}, pods)
    sides = compile_sides(world, pods.values()).sides
    assert len({id(side) for side in sides.values()}) == 1
    assert len(sides) == 10


def test_rules_that_mean_too_much_close_their_namespace_and_no_other() -> None:
    """Few words may mean all pods of a cluster, in set after set."""
    keys = [Key("all", f"p{number}") for number in range(4096)]
    pods = {key: PolicyPod(key, (ip_address("10.0.0.1") + n,), {}) for n, key in enumerate(keys)}
    everybody = (PodPeer(Selector(), Selector()),)

    def policy(namespace: str, count: int) -> Policy:
        ports = (PortSpan("tcp", number, number) for number in range(1, count + 1))
        rules = tuple(PolicyRule(everybody, (each,)) for each in ports)
        return Policy(Key(namespace, "x"), Selector(), frozenset(("ingress",)), rules)

    local = [PolicyPod(Key(namespace, "x"), (), {}) for namespace in ("large", "small")]
    most = POLICY_ELEMENTS_OF_ONE.most // len(keys)

    def world(count: int) -> PolicyWorld:
        found = (policy("large", count), policy("small", 2))
        return PolicyWorld({each.key: each for each in found}, {"all": {}}, pods)

    compiler = Compiler()
    assert compiler.compile(world(most), local).closed == []
    compiled = compiler.compile(world(most + 1), local)
    (why,) = compiled.closed
    assert why == (
        "ingress of pods of large, such as x, is closed: namespace large has more than 1,048,576 "
        "addresses and ranges"
    )
    peer = pods[keys[0]].addresses[0]
    assert compiled.allows(Key("large", "x"), "ingress", peer, "tcp", 1) == frozenset()
    assert compiled.allows(Key("small", "x"), "ingress", peer, "tcp", 1)
    closed = world(most + 1)
    assert compiler.compile(closed, local).closed == [why]
    made = dict(compiler._made)
    compiler.compile(closed, local)
    assert all(compiler._made[rule] is each for rule, each in made.items()), "nothing is made anew"
    assert len(made) > most
    assert compiler.compile(world(most), local).closed == [], "what went has left its room"
