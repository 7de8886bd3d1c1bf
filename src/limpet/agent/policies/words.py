"""Policies as a person reads them."""

from __future__ import annotations

from collections.abc import Iterable

from limpet.agent.policies.said import EndLine, PodPolicies, PolicyLine, RuleLine, SideLine
from limpet.policies.compiled import DIRECTIONS, Compiled
from limpet.policies.compiler import compile_sides
from limpet.policies.policy import Direction, Policy, PolicyPod, PolicyWorld
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
    return PodPolicies(
        pod=str(pod.key),
        addresses=[str(each) for each in pod.addresses],
        labels=None if pod.labels is None else dict(pod.labels),
        sides=[_side(world, pod, direction, compiled) for direction in DIRECTIONS],
    )


def _side(world: PolicyWorld, pod: PolicyPod, direction: Direction, compiled: Compiled) -> SideLine:
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
        else [line for policy in found for line in _rules(world, policy, direction)],
    )


def _rules(world: PolicyWorld, policy: Policy, direction: Direction) -> Iterable[RuleLine]:
    for rule in policy.rules(direction):
        alone = Policy(policy.key, policy.pods, policy.directions, (rule,), (rule,))
        only = PolicyWorld({policy.key: alone}, world.namespaces, world.pods)
        meant = compile_sides(only, world.pods.values()).peers.values()
        yield RuleLine(
            policy=str(policy.key),
            peers=[peer_words(each) for each in rule.peers],
            ports=[port_words(each) for each in rule.ports],
            addresses=None
            if not rule.peers
            else max((len(each.addresses) for each in meant), default=0),
        )
