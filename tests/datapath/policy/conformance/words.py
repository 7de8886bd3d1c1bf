"""How policies and rows are written in the table, and the names of what they are about."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network
from typing import Any

from tests.beds.policies.policy_matrix import LINK, NODES, Situation, address_of
from tests.datapath.policy.conformance.asks import Ask, Moment, Row

Spec = dict[str, Any]

ALL: Spec = {}


def pod(*names: str) -> Spec:
    return _by("pod", names)


def ns(*names: str) -> Spec:
    return _by("ns", names)


def _by(key: str, names: tuple[str, ...]) -> Spec:
    if len(names) == 1:
        return {"matchLabels": {key: names[0]}}
    return {"matchExpressions": [{"key": key, "operator": "In", "values": [*names]}]}


def but(key: str, *names: str) -> Spec:
    return {"matchExpressions": [{"key": key, "operator": "NotIn", "values": [*names]}]}


def of(pods: Spec | None = None, namespaces: Spec | None = None) -> Spec:
    found = {} if pods is None else {"podSelector": pods}
    return found if namespaces is None else {**found, "namespaceSelector": namespaces}


def block(cidr: str, *excepted: str) -> Spec:
    return {"ipBlock": {"cidr": cidr, **({"except": [*excepted]} if excepted else {})}}


def at(port: int | str | None = None, protocol: str = "TCP", end: int | None = None) -> Spec:
    found: Spec = {"protocol": protocol}
    if port is not None:
        found["port"] = port
    return found if end is None else {**found, "endPort": end}


def rule(*peers: Spec, ports: tuple[Spec, ...] = (), side: str = "from") -> Spec:
    found: Spec = {side: [*peers]} if peers else {}
    return {**found, "ports": [*ports]} if ports else found


def ingress(target: Spec, *rules: Spec, at_ns: str = "x", name: str = "in") -> Mapping[str, Any]:
    return policy(
        {"podSelector": target, "policyTypes": ["Ingress"], "ingress": [*rules]}, at_ns, name
    )


def egress(source: Spec, *rules: Spec, at_ns: str = "x", name: str = "out") -> Mapping[str, Any]:
    turned = [{("to" if key == "from" else key): each for key, each in r.items()} for r in rules]
    return policy({"podSelector": source, "policyTypes": ["Egress"], "egress": turned}, at_ns, name)


def policy(spec: Spec, at_ns: str = "x", name: str = "policy") -> Mapping[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": at_ns},
        "spec": spec,
    }


def row(name: str, *policies: Mapping[str, Any], asks: tuple[Ask, ...] = (), **ask: Any) -> Row:
    """Of one moment."""
    return Row(name, (Moment(Situation(policies), asks or (Ask(**ask),)),))


def rows(name: str, *moments: tuple[Situation, Ask]) -> Row:
    """One that goes on."""
    return Row(name, tuple(Moment(now, (ask,)) for now, ask in moments))


def block_of(name: str) -> tuple[Spec, ...]:
    """ipBlocks of one pod's addresses."""
    return tuple(block(str(ip_network(address_of(name, version)))) for version in (4, 6))


X_A = block_of("x/a")
Y_B = block_of("y/b")
Z_B = block_of("z/b")
NODE_A, NODE_B = (tuple(block(n) for n in NODES[name]) for name in ("A", "B"))
NOT_Z_B = (
    block(NODES["B"][0], "10.244.8.5/32"),
    block(NODES["B"][1], "fd00:8::5/128"),
)
LINK_OF_A, LINK_OF_B = ((block(f"{a}/32"), block(f"{b}/128")) for a, b in (LINK["A"], LINK["B"]))

FROM_X_B = rule(of(pod("b")))
TO_X_A = ("* > x/a",)
