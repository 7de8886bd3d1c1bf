"""Policies as people write them, and words for what is wrong."""

from __future__ import annotations

import contextlib
from ipaddress import ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.policies.labels import Expression, Selector
from limpet.policies.parse import PolicyError, parse_namespace, parse_policy
from limpet.policies.policy import IpBlock, Key, NamedPort, PodPeer, PolicyRule, PortSpan


def document(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "web", "namespace": "shop", "uid": "x"},
        "spec": spec,
    }


def test_a_policy_with_everything_in_it() -> None:
    policy = parse_policy(
        document(
            podSelector={
                "matchLabels": {"app": "web"},
                "matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["test"]}],
            },
            policyTypes=["Ingress", "Egress"],
            ingress=[
                {
                    "from": [
                        {"podSelector": {}},
                        {"namespaceSelector": {}, "podSelector": {"matchLabels": {"a": "b"}}},
                        {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
                    ],
                    "ports": [
                        {"port": 80},
                        {"protocol": "UDP", "port": 8000, "endPort": 8999},
                        {"protocol": "SCTP"},
                        {"port": "http"},
                    ],
                }
            ],
            egress=[{}],
        )
    )
    assert policy.key == Key("shop", "web")
    assert policy.pods == Selector(
        (("app", "web"),), (Expression("tier", "NotIn", frozenset(["test"])),)
    )
    assert policy.directions == {"ingress", "egress"}
    (rule,) = policy.ingress
    assert rule.peers == (
        PodPeer(),
        PodPeer(Selector((("a", "b"),)), Selector()),
        IpBlock(ip_network("10.0.0.0/8"), (ip_network("10.1.0.0/16"),)),
    )
    assert rule.ports == (
        PortSpan("tcp", 80, 80),
        PortSpan("udp", 8000, 8999),
        PortSpan("sctp", 0, 65535),
        NamedPort("tcp", "http"),
    )
    assert policy.egress == (PolicyRule(),)


@pytest.mark.parametrize(
    ("spec", "directions"),
    [
        ({}, {"ingress"}),
        ({"ingress": []}, {"ingress"}),
        ({"egress": []}, {"ingress"}),
        ({"egress": [{}]}, {"ingress", "egress"}),
        ({"policyTypes": ["Egress"]}, {"egress"}),
        ({"policyTypes": [], "egress": [{}]}, {"ingress", "egress"}),
    ],
)
def test_policy_types_by_default(spec: dict[str, Any], directions: set[str]) -> None:
    assert parse_policy(document(podSelector={}, **spec)).directions == directions


PEER: dict[str, Any] = {"podSelector": {}}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"ingres": []}, "spec.ingres: not known (known here: podSelector, policyTypes"),
        ({"podSelector": []}, "spec.podSelector: [] is no mapping"),
        ({"podSelector": {"matchLabels": {"a": 1}}}, "matchLabels.a: 1 is no text (put it in"),
        ({"podSelector": {"matchLabels": {"-": "x"}}}, "'-' is no name of a label"),
        (
            {"podSelector": {"matchExpressions": [{"key": "a", "operator": "in"}]}},
            "matchExpressions[0].operator: 'in' is none of In, NotIn, Exists, DoesNotExist",
        ),
        (
            {"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
            "matchExpressions[0].values: In needs at least one value",
        ),
        ({"policyTypes": ["ingress"]}, "policyTypes[0]: 'ingress' is none of Ingress, Egress"),
        ({"ingress": [{"from": [{}]}]}, "ingress[0].from[0]: says neither podSelector nor"),
        ({"ingress": [{"to": [PEER]}]}, "ingress[0].to: not known (known here: from, ports)"),
        (
            {"ingress": [{"from": [{**PEER, "ipBlock": {"cidr": "::/0"}}]}]},
            "from[0]: an ipBlock stands alone",
        ),
        (
            {"ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.1"}}]}]},
            "ipBlock.cidr: '10.0.0.1' is no prefix such as",
        ),
        (
            {"ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["::/0"]}}]}]},
            "ipBlock.except[0]: '::/0' is not inside 10.0.0.0/8",
        ),
        ({"egress": [{"ports": [{"port": 0}]}]}, "ports[0].port: 0 is no port (1 to 65535)"),
        ({"egress": [{"ports": [{"port": True}]}]}, "ports[0].port: True is no port"),
        ({"egress": [{"ports": [{"port": "80"}]}]}, "ports[0].port: '80' is no name of a port"),
        ({"egress": [{"ports": [{"endPort": 9}]}]}, "endPort: there is no port that it goes with"),
        (
            {"egress": [{"ports": [{"port": 9, "endPort": 8}]}]},
            "ports[0].endPort: 8 is less than port 9",
        ),
        ({"egress": [{"ports": [{"protocol": "tcp"}]}]}, "'tcp' is none of TCP, UDP, SCTP"),
    ],
)
def test_words_for_what_is_wrong(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(PolicyError) as error:
        parse_policy(document(**spec))
    assert words in str(error.value)


@pytest.mark.parametrize(
    "change", [{"kind": "Pod"}, {"apiVersion": "v1"}, {"metadata": {"name": "A"}}, {"spec": 1}]
)
def test_what_is_no_policy_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(PolicyError):
        parse_policy({**document(), **change})


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)


@given(st.sampled_from(("spec", "metadata", "podSelector", "ingress", "egress")), json)
def test_nonsense_is_refused_in_words_or_means_something(where: str, value: object) -> None:
    whole = {**document(), where: value} if where in ("spec", "metadata") else document()
    if where not in whole:
        whole["spec"] = {where: value}
    with contextlib.suppress(PolicyError):
        assert parse_policy(whole).key.name


def test_a_namespace_has_labels() -> None:
    found = parse_namespace(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": "shop", "labels": {"team": "a"}},
        }
    )
    assert found == ("shop", {"team": "a"})
