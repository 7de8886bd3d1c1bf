"""Policies as a person reads them."""

from __future__ import annotations

from collections.abc import Iterable

from limpet.agent.policies.said import EndLine, PodPolicies, PolicyLine, RuleLine, SideLine
from limpet.policies.choices import Choices
from limpet.policies.compiled import DIRECTIONS, Compiled, RuleId
from limpet.policies.policy import (
    Direction,
    PodPeer,
    Policy,
    PolicyPod,
    PolicyRule,
    PolicyWorld,
)
from limpet.policies.said.verdict import Verdict
from limpet.policies.said.words import peer_words, policy_words, port_words

UNHEARD = "policies were not heard yet: this node's pods are closed"


def end_line(verdict: Verdict, *, here: bool, is_known: bool) -> EndLine:
    """`is_known`: no policy holds at an address that is no known pod's."""
    pod = "" if verdict.pod is None else str(verdict.pod)
    allowed: bool | None = verdict.allowed
    if verdict.always:
        why = verdict.always
    elif verdict.pod is None:
        allowed = True if is_known else None
        why = (
            "no pod that a policy selects has the address"
            if is_known
            else "no pod of this node has it; a pod of another node is held to that one's policies "
            "(ask there)"
        )
    elif not verdict.isolated_by:
        why = f"no policy isolates the pod for {verdict.direction}"
    elif verdict.closed:
        why = verdict.closed
    elif verdict.rules:
        why = f"by {', '.join(f'{rule.policy} (rule {rule.number + 1})' for rule in verdict.rules)}"
    else:
        why = f"isolated by {', '.join(map(str, verdict.isolated_by))}, and no rule allows it"
    return EndLine(
        direction=verdict.direction,
        address=str(verdict.address),
        pod=pod,
        here=here,
        allowed=allowed,
        why=why,
    )


def policy_line(policy: Policy, pods: Iterable[PolicyPod]) -> PolicyLine:
    """`pods`: of this node."""
    return PolicyLine(
        namespace=policy.key.namespace,
        name=policy.key.name,
        pods=str(policy.pods),
        types=[each for each in DIRECTIONS if each in policy.directions],
        selected=sorted(str(pod.key) for pod in pods if policy.may_select(pod)),
        words=policy_words(policy),
    )


def pod_policies(world: PolicyWorld, pod: PolicyPod, compiled: Compiled) -> PodPolicies:
    """`compiled`: of the pod."""
    meant = _Meant(world, compiled)
    return PodPolicies(
        pod=str(pod.key),
        addresses=[str(each) for each in pod.addresses],
        labels=None if pod.labels is None else dict(pod.labels),
        sides=[_side(meant, pod, direction) for direction in DIRECTIONS],
    )


class _Meant:
    """How many pods' addresses rules mean: all pods are looked at once, however many rules."""

    def __init__(self, world: PolicyWorld, compiled: Compiled) -> None:
        self.world = world
        self.compiled = compiled
        self._choices: Choices | None = None

    def count(self, rule_id: RuleId, rule: PolicyRule) -> int | None:
        """None: everybody."""
        if not rule.peers:
            return None
        if rule_id in self.compiled.peers:
            return len(self.compiled.peers[rule_id].addresses)
        # Its ports are none of the pod's.
        if self._choices is None:
            self._choices = Choices()
            self._choices.set_namespaces(self.world.namespaces)
            for pod in self.world.pods.values():
                self._choices.move(None, pod)
        pods = (peer for peer in rule.peers if isinstance(peer, PodPeer))
        # Not given back: rules with the same peers are counted once.
        return len(self._choices.addresses(self._choices.take(rule_id.policy.namespace, pods)))


def _side(meant: _Meant, pod: PolicyPod, direction: Direction) -> SideLine:
    world, compiled = meant.world, meant.compiled
    found = [
        policy
        for _, policy in sorted(world.policies.items())
        if direction in policy.directions and policy.may_select(pod)
    ]
    side = compiled.sides.get((pod.key, direction))
    is_closed = pod.labels is None or (side is not None and bool(side.closed))
    return SideLine(
        direction=direction,
        isolated=side is not None,
        policies=[str(policy.key) for policy in found],
        rules=[]
        if is_closed
        else [line for policy in found for line in _rules(meant, policy, direction)],
    )


def _rules(meant: _Meant, policy: Policy, direction: Direction) -> Iterable[RuleLine]:
    for number, rule in enumerate(policy.rules(direction)):
        yield RuleLine(
            policy=str(policy.key),
            peers=[peer_words(each) for each in rule.peers],
            ports=[port_words(each) for each in rule.ports],
            addresses=meant.count(RuleId(policy.key, direction, number), rule),
        )
