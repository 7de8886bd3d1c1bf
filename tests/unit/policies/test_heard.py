"""What an API server has told: kept whole, closed while in doubt."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.base.bounds.tenants import (
    POLICY_BYTES_OF_ONE,
    POLICY_PARTS_OF_ITSELF,
    POLICY_PARTS_OF_ONE,
)
from limpet.policies.compiler import compile_sides
from limpet.policies.heard import ReadPolicies, decode_heard, encode_kept
from limpet.policies.policy import Key, NamedPort, PolicyPod

WEB = PolicyPod(Key("shop", "web"), (ip_address("10.0.0.2"),), {})
"""As its interface tells."""
PEER = ip_address("10.0.0.9")


def document(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {"podSelector": {"matchLabels": {"app": "web"}}, **spec},
    }


def told() -> ReadPolicies:
    heard = ReadPolicies()
    heard.is_whole = True
    heard.namespaces["shop"] = {"team": "a"}
    heard.pods[WEB.key] = PolicyPod(WEB.key, (), {"app": "web"}, {NamedPort("tcp", "http"): 80})
    heard.put_policy(Key("shop", "web"), document(ingress=[{"ports": [{"port": "http"}]}]))
    return heard


def may(heard: ReadPolicies, port: int) -> bool:
    """Whether the pod gets a connection."""
    world = heard.world({WEB.key: WEB})
    by = compile_sides(world, [world.pods[WEB.key]]).allows(WEB.key, "ingress", PEER, "tcp", port)
    return by is None or bool(by)


NAMES = st.sampled_from("abc")
STEPS = st.one_of(
    st.tuples(st.just("put"), NAMES, NAMES, st.integers(0, 4)),
    st.tuples(st.sampled_from(("drop", "refuse", "unread", "close", "open")), NAMES, NAMES),
)


@given(st.lists(STEPS, max_size=30))
def test_what_is_counted_of_policies_is_what_is_kept_of_them(steps: list[tuple[Any, ...]]) -> None:
    """Else a share would shrink or grow with each change of a tenant's."""
    heard = ReadPolicies()
    for verb, namespace, name, *more in steps:
        key = Key(namespace, name)
        match verb:
            case "put":
                rules = [{"ports": [{"port": number} for number in range(1, 1 + more[0])]}]
                heard.put_policy(key, {**document(ingress=rules), "metadata": {"name": name}})
            case "drop":
                heard.drop_policy(key)
            case "refuse":
                heard.refuse_policy(key, "too many")
            case "unread":
                heard.put_unread(key, "nonsense")
            case "close":
                heard.close_namespace(namespace, "too many")
            case _:
                heard.open_namespace(namespace)
    kept = [heard.policies[key] for key in heard.kept_policies]
    assert heard._part_room.used == sum(policy.parts for policy in kept)
    assert heard._policy_room.used == sum(heard._size_bytes.values())
    assert heard._size_bytes.keys() == set(heard.kept_policies)


def test_a_pod_of_the_node_has_its_own_addresses_and_what_is_told_of_it() -> None:
    heard = told()
    assert heard.world({WEB.key: WEB}).pods[WEB.key].addresses == WEB.addresses
    assert may(heard, 80)
    assert not may(heard, 81)


def test_nothing_is_open_before_all_was_told_once() -> None:
    heard = told()
    heard.is_whole = False
    assert not may(heard, 80)
    assert not may(ReadPolicies(), 80)


def test_a_pod_that_nobody_has_told_of_is_closed_where_it_might_be_isolated() -> None:
    heard = told()
    del heard.pods[WEB.key]
    assert not may(heard, 80)
    heard.drop_policy(Key("shop", "web"))
    assert may(heard, 80)


def test_a_policy_that_nobody_understands_allows_what_it_did_or_nothing() -> None:
    heard = told()
    strange = document(ingress=[{"from": [{"moonPhase": "full"}]}])
    heard.put_policy(Key("shop", "web"), strange)
    assert may(heard, 80)
    assert "moonPhase: not known" in heard.problems[Key("shop", "web")]
    heard.drop_policy(Key("shop", "web"))
    assert not heard.problems
    heard.put_policy(Key("shop", "web"), strange)
    assert not may(heard, 80)
    heard.pods[WEB.key] = PolicyPod(WEB.key, (), {"app": "other"})
    assert may(heard, 80)


@pytest.mark.parametrize(
    "change",
    [
        {"podSelector": {}},
        {"podSelector": {"matchExpressions": [{"key": "app", "operator": "Like"}]}},
        {"policyTypes": ["Ingress", "Egress"]},
        {"policyTypes": ["Midday"]},
    ],
    ids=str,
)
def test_a_policy_that_nobody_understands_isolates_all_that_it_might(
    change: dict[str, Any],
) -> None:
    """It may be for more than it was: what it allowed is no measure then."""
    heard = told()
    assert may(heard, 80)
    strange = document(ingress=[{"from": [{"moonPhase": "full"}]}], **change)
    heard.put_policy(Key("shop", "web"), strange)

    for each in (heard, decode_heard(encode_kept(heard.kept()))):
        assert not may(each, 80)
        world = each.world({WEB.key: WEB})
        sides = compile_sides(world, [world.pods[WEB.key]]).sides
        assert {way for _, way in sides} == {"ingress", "egress"}


def test_a_policy_that_cannot_be_read_opens_nothing() -> None:
    heard = told()
    heard.put_unread(Key("shop", "web"), "labels")
    assert (may(heard, 80), may(heard, 81)) == (True, False)
    assert "goes on as it was" in heard.problems[Key("shop", "web")]
    heard.drop_policy(Key("shop", "web"))
    assert may(heard, 81)

    heard.put_unread(Key("shop", "other"), "labels")
    assert not may(heard, 81)
    assert "all pods of shop are closed" in heard.problems[Key("shop", "other")]
    assert not may(decode_heard(encode_kept(heard.kept())), 81)
    heard.drop_policy(Key("shop", "other"))
    assert may(heard, 81)
    assert not heard.problems


def test_it_is_read_back_as_it_was_kept() -> None:
    heard = told()
    read = decode_heard(encode_kept(heard.kept()))
    assert read.world({}) == heard.world({})
    assert encode_kept(read.kept()) == encode_kept(heard.kept())


@pytest.mark.parametrize("text", [b"", b"{}", b"[]\n", b'{"end": 1}\n', b"x"])
def test_what_is_cut_off_or_no_such_file_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_heard(text)
    with pytest.raises(ValueError, match="cut off"):
        decode_heard(b"".join(encode_kept(told().kept()).splitlines(keepends=True)[1:]))


def test_of_too_many_policies_a_namespace_is_closed_and_no_other_also_after_a_restart() -> None:
    heard = told()
    filler = document(x="x" * (1 << 20))
    refusals = [
        heard.put_policy(Key("shop", f"more-{number}"), filler)
        for number in range(POLICY_BYTES_OF_ONE.most >> 20)
    ]

    assert [bool(each) for each in refusals[:-1]] == [False] * (len(refusals) - 1)
    assert refusals[-1] == "namespace shop has more than 16,777,216 bytes"
    assert heard.put_policy(Key("other", "door"), filler) == ""
    for number in range(len(refusals)):
        heard.drop_policy(Key("shop", f"more-{number}"))
    assert heard.closed_namespaces == ["shop"]
    heard.drop_policy(Key("shop", "web"))  # what it allows, no other policy could close
    for each in (heard, decode_heard(encode_kept(heard.kept()))):
        assert not may(each, 80)
        assert "all pods of shop are closed" in each.problems[Key("shop", "*")]

    heard.open_namespace("shop")
    assert may(heard, 80)
    assert heard.put_policy(Key("shop", "more"), filler) == "", "what went has left its room"


def test_a_pod_without_room_is_nobody_that_a_policy_names() -> None:
    heard = told()
    peer = PolicyPod(Key("shop", "peer"), (PEER,), {"app": "peer"})
    named = [{"podSelector": {"matchLabels": {"app": "peer"}}}]
    heard.put_policy(Key("shop", "web"), document(ingress=[{"from": named}]))
    assert heard.put_pod(peer) == ""
    assert may(heard, 80)

    labels = {f"l{number}": "x" for number in range(1000)}
    many = (PolicyPod(Key("shop", f"p{number}"), (), labels) for number in range(2000))
    assert any(heard.put_pod(each) for each in many)

    assert heard.put_pod(replace(peer, labels={**labels, "app": "peer"})).startswith("namespace")
    assert not may(heard, 80), "what was known of it is old"


def test_labels_that_a_namespace_without_room_might_have_open_nothing() -> None:
    heard = told()
    heard.put_pod(PolicyPod(Key("others", "peer"), (PEER,), {}))
    lacks = {"matchExpressions": [{"key": "bad", "operator": "DoesNotExist"}]}
    rule = {"from": [{"namespaceSelector": lacks}]}
    heard.put_policy(Key("shop", "web"), document(ingress=[rule]))
    heard.put_namespace("others", {"bad": "yes"})
    assert not may(heard, 80)

    labels = {f"l{number}": "x" for number in range(1000)}
    assert any(heard.put_namespace(f"n{number}", labels) for number in range(300))
    assert heard.put_namespace("others", {"bad": "yes", **labels})

    for each in (heard, decode_heard(encode_kept(heard.kept()))):
        assert each.passes_over_namespaces
        assert not may(each, 80)


def test_pods_that_are_told_before_their_namespace_is_are_nobodys_peers() -> None:
    heard = told()
    lacks = {"matchExpressions": [{"key": "bad", "operator": "DoesNotExist"}]}
    heard.put_policy(
        Key("shop", "web"), document(ingress=[{"from": [{"namespaceSelector": lacks}]}])
    )
    heard.put_pod(PolicyPod(Key("others", "peer"), (PEER,), {}))
    assert not may(heard, 80)

    heard.put_namespace("others", {})
    assert may(heard, 80)
    heard.put_namespace("others", {"bad": "yes"})
    assert not may(heard, 80)
    heard.drop_namespace("others")
    assert not may(heard, 80)


def test_what_a_policy_allowed_before_it_had_no_room_is_closed() -> None:
    """Others may have come to rely on its larger form, which may allow less."""
    heard = told()
    assert may(heard, 80)

    huge = document(ingress=[], x="x" * POLICY_BYTES_OF_ONE.most)

    assert heard.put_policy(Key("shop", "web"), huge)
    assert not may(heard, 80)
    assert not may(decode_heard(encode_kept(heard.kept())), 80)


def ports(count: int) -> list[dict[str, Any]]:
    return [{"ports": [{"port": 80}] * count}]


def test_a_policy_of_too_many_parts_is_refused_in_words_and_closes_what_it_selects() -> None:
    heard = told()
    key = Key("shop", "web")
    most = POLICY_PARTS_OF_ITSELF.most - 2  # the rule, and the label that its pods have
    assert heard.put_policy(key, document(ingress=ports(most))) == ""
    assert may(heard, 80)

    assert heard.put_policy(key, document(ingress=ports(most + 1))) == ""

    for each in (heard, decode_heard(encode_kept(heard.kept()))):
        assert not may(each, 80)
        assert "more than 8,192 rules, ports of theirs and demands" in each.problems[key]
    more = {**document(ingress=ports(1)), "metadata": {"namespace": "shop", "name": "more"}}
    heard.put_policy(Key("shop", "more"), more)
    assert may(heard, 80), "what another one allows is allowed"
    heard.pods[WEB.key] = PolicyPod(WEB.key, (), {"app": "other"})
    assert may(heard, 81), "no other pod is closed"


def test_of_policies_with_too_many_parts_a_namespace_is_closed() -> None:
    heard = told()
    each = POLICY_PARTS_OF_ITSELF.most
    count = POLICY_PARTS_OF_ONE.most // each
    full = document(ingress=ports(each - 2))
    refusals = [heard.put_policy(Key("shop", f"more-{n}"), full) for n in range(count)]

    assert [bool(refusal) for refusal in refusals] == [False] * (count - 1) + [True]
    assert refusals[-1] == "namespace shop has more than 32,768 parts"
    assert heard.closed_namespaces == ["shop"]
    heard.drop_policy(Key("shop", "more-0"))
    assert heard.put_policy(Key("shop", "again"), full) == "", "what went has left its room"


def test_demands_with_which_every_pod_is_compared_count_sixteen_times() -> None:
    heard = told()
    key = Key("shop", "web")
    lacks = {"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}
    each = 1 + 16
    count = (POLICY_PARTS_OF_ITSELF.most - 2) // each  # the rule, and the label that its pods have
    peers = [{"podSelector": lacks}] * (count + 1)
    heard.put_policy(key, document(ingress=[{"from": peers[1:]}]))
    assert key not in heard.problems
    heard.put_policy(key, document(ingress=[{"from": peers}]))
    assert "more than 8,192" in heard.problems[key]


def test_each_value_of_a_demand_counts_since_pods_are_looked_up_by_it() -> None:
    heard, key = told(), Key("shop", "web")

    def of_values(count: int) -> None:
        one = {"key": "x", "operator": "In", "values": [str(n) for n in range(count)]}
        chosen = {"podSelector": {"matchExpressions": [one]}}
        heard.put_policy(key, document(ingress=[{"from": [chosen]}]))

    most = POLICY_PARTS_OF_ITSELF.most - 3  # the rule, the peer, and the label that its pods have
    of_values(most)
    assert key not in heard.problems
    of_values(most + 1)
    assert "more than 8,192" in heard.problems[key]
