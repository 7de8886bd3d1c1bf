"""Policies in words, for people."""

from __future__ import annotations

from collections.abc import Sequence

from limpet.base.text.few import few
from limpet.policies.policy import (
    Direction,
    IpBlock,
    NamedPort,
    PodPeer,
    Policy,
    PolicyRule,
    PortSpan,
)

_MOST_RULES = 8
"""In one sentence."""
LETS = {"ingress": "lets in", "egress": "lets out"}


def peer_words(peer: PodPeer | IpBlock) -> str:
    if isinstance(peer, IpBlock):
        but = f" but {', '.join(map(str, peer.excepted))}" if peer.excepted else ""
        return f"{peer.prefix}{but}"
    where = "" if peer.namespaces is None else f" of namespaces {peer.namespaces}"
    return f"pods {peer.pods}{where}"


def port_words(port: PortSpan | NamedPort) -> str:
    if isinstance(port, NamedPort):
        return f"{port.protocol} {port.name}"
    if (port.first, port.last) == (0, 65535):
        return port.protocol
    span = str(port.first) if port.first == port.last else f"{port.first}-{port.last}"
    return f"{port.protocol} {span}"


def ports_words(rule: PolicyRule) -> str:
    return ", ".join(map(port_words, rule.ports)) or "all"


def policy_words(policy: Policy) -> str:
    """Whom it selects, and what it lets in and out."""
    said = [f"selects pods {policy.pods} of namespace {policy.key.namespace}"]
    for direction in ("ingress", "egress"):
        if direction in policy.directions:
            said.append(_direction_words(direction, policy.rules(direction)))
    return "; ".join(said)


def _direction_words(direction: Direction, rules: Sequence[PolicyRule]) -> str:
    lets = LETS[direction]
    if not rules:
        return f"{lets} nothing"
    way = "from" if direction == "ingress" else "to"

    def say(rule: PolicyRule) -> str:
        peers = " and ".join(map(peer_words, rule.peers)) if rule.peers else "everybody"
        return f"{ports_words(rule)} {way} {peers}"

    return f"{lets} {few(rules, _MOST_RULES, last=', and ', say=say)}"
