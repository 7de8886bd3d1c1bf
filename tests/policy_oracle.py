"""What a NetworkPolicy means, written down a second time from the text of its specification, over
documents as people write them: slowly, one question at a time, with nothing compiled.

Source: kubernetes.io/docs/concepts/services-networking/network-policies and the comments of
k8s.io/api/networking/v1/types.go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Someone:
    """Who sends or receives: a pod, or just an address."""

    address: str
    namespace: str = ""
    labels: Mapping[str, str] | None = None
    """None: it is no pod, or one with the node's network, which no selector chooses."""
    ports: tuple[tuple[str, str, int], ...] = ()
    """Name, protocol, number."""


@dataclass(frozen=True)
class Flow:
    """A new connection."""

    source: Someone
    target: Someone
    protocol: str
    """TCP, UDP, SCTP, or another one, which has no ports."""
    port: int


def is_allowed(
    policies: Sequence[Document], namespaces: Mapping[str, Mapping[str, str]], flow: Flow
) -> bool:
    """\"For a connection from a source pod to a destination pod to be allowed, both the egress
    policy on the source pod and the ingress policy on the destination pod need to allow it."""
    return leaves(policies, namespaces, flow) and enters(policies, namespaces, flow)


def leaves(
    policies: Sequence[Document], namespaces: Mapping[str, Mapping[str, str]], flow: Flow
) -> bool:
    return _side(policies, namespaces, flow, "Egress", flow.source, flow.target)


def enters(
    policies: Sequence[Document], namespaces: Mapping[str, Mapping[str, str]], flow: Flow
) -> bool:
    return _side(policies, namespaces, flow, "Ingress", flow.target, flow.source)


def _side(
    policies: Sequence[Document],
    namespaces: Mapping[str, Mapping[str, str]],
    flow: Flow,
    kind: str,
    subject: Someone,
    peer: Someone,
) -> bool:
    if flow.source.address == flow.target.address:
        return True  # "a Pod cannot block access to itself"
    applying = [
        policy
        for policy in policies
        if subject.labels is not None
        and policy["metadata"]["namespace"] == subject.namespace
        and _selects(policy["spec"].get("podSelector", {}), subject.labels)
        and kind in _types(policy["spec"])
    ]
    if not applying:
        return True  # "By default, a pod is non-isolated; all connections are allowed."
    rules = [
        (policy, rule)
        for policy in applying
        for rule in policy["spec"].get(kind.lower()) or []  # "those are combined additively"
    ]
    return any(
        _peers_match(policy, rule.get("from" if kind == "Ingress" else "to"), namespaces, peer)
        and _ports_match(rule.get("ports"), flow)
        for policy, rule in rules
    )


def _types(spec: Document) -> Sequence[str]:
    """\"If no policyTypes are specified [...] then by default Ingress will always be set and Egress
    will be set if the NetworkPolicy has any egress rules."""
    return spec.get("policyTypes") or ["Ingress", *(["Egress"] if spec.get("egress") else [])]


def _selects(selector: Document, labels: Mapping[str, str]) -> bool:
    for key, value in selector.get("matchLabels", {}).items():
        if key not in labels or labels[key] != value:
            return False
    for demand in selector.get("matchExpressions", []):
        key, values = demand["key"], demand.get("values", [])
        if demand["operator"] == "In" and not (key in labels and labels[key] in values):
            return False
        if demand["operator"] == "NotIn" and key in labels and labels[key] in values:
            return False
        if demand["operator"] == "Exists" and key not in labels:
            return False
        if demand["operator"] == "DoesNotExist" and key in labels:
            return False
    return True


def _peers_match(
    policy: Document,
    peers: Sequence[Document] | None,
    namespaces: Mapping[str, Mapping[str, str]],
    who: Someone,
) -> bool:
    if not peers:
        return True  # "If this field is empty or missing, this rule matches all sources"
    for peer in peers:
        if "ipBlock" in peer:
            address, block = ip_address(who.address), peer["ipBlock"]
            if address in ip_network(block["cidr"]) and not any(
                address in ip_network(each) for each in block.get("except", [])
            ):
                return True
            continue
        if who.labels is None:
            continue
        if "namespaceSelector" in peer:
            labels = {
                **namespaces.get(who.namespace, {}),
                "kubernetes.io/metadata.name": who.namespace,
            }
            if not _selects(peer["namespaceSelector"], labels):
                continue
        elif who.namespace != policy["metadata"]["namespace"]:
            continue
        if _selects(peer.get("podSelector", {}), who.labels):
            return True
    return False


def _ports_match(ports: Sequence[Document] | None, flow: Flow) -> bool:
    if not ports:
        return True  # "If this field is empty or missing, this rule matches all ports"
    for each in ports:
        if each.get("protocol", "TCP") != flow.protocol:
            continue
        if "port" not in each:
            return True
        if isinstance(each["port"], str):
            if (each["port"], flow.protocol, flow.port) in flow.target.ports:
                return True
        elif each["port"] <= flow.port <= each.get("endPort", each["port"]):
            return True
    return False
