"""Whether a connection may begin, and by which policies: each of its ends is asked."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from limpet.base.addresses import Address
from limpet.policies.compiled import DIRECTIONS, RuleId
from limpet.policies.compiler import compile_sides
from limpet.policies.policy import Direction, Key, PolicyPod, PolicyWorld, Protocol


@dataclass(frozen=True, slots=True)
class Flow:
    """The first packet of a connection, behind a Service's translation."""

    source: Address
    target: Address
    protocol: Protocol | None = "tcp"
    """None: one without ports."""
    port: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one end says."""

    direction: Direction
    address: Address
    pod: Key | None
    """Pod whose address it is; None: no pod that is known."""
    isolated_by: tuple[Key, ...] = ()
    """Empty: it may do what it wants."""
    rules: tuple[RuleId, ...] = ()
    """Rules that allow it."""
    always: str = ""
    """Why no policy is asked."""
    closed: str = ""
    """Why no rule allows it, whatever rules say."""

    @property
    def allowed(self) -> bool:
        return bool(self.rules or self.always) or not self.isolated_by


NodeOf = Callable[[PolicyPod], Collection[Address]]
"""Addresses of the node that a pod is on."""


def judge(
    world: PolicyWorld, flow: Flow, node_of: NodeOf = lambda _: ()
) -> tuple[Verdict, Verdict]:
    """What is said of what leaves, and of what enters."""
    found = {direction: _end(world, flow, direction, node_of) for direction in DIRECTIONS}
    return found["egress"], found["ingress"]


def _end(world: PolicyWorld, flow: Flow, direction: Direction, node_of: NodeOf) -> Verdict:
    mine, peer = (flow.source, flow.target) if direction == "egress" else (flow.target, flow.source)
    pod = _pod_at(world, mine)
    key = None if pod is None else pod.key
    if mine == peer:
        return Verdict(direction, mine, key, always="a pod always reaches itself")
    if pod is None:
        return Verdict(direction, mine, None)
    if peer in node_of(pod):
        return Verdict(direction, mine, key, always="a node and its own pods always reach another")
    compiled = compile_sides(world, [pod])
    rules = compiled.allows(pod.key, direction, peer, flow.protocol, flow.port)
    if rules is None:
        return Verdict(direction, mine, key)
    isolating = (
        policy.key
        for policy in world.policies.values()
        if direction in policy.directions and policy.may_select(pod)
    )
    closed = compiled.sides[pod.key, direction].closed
    return Verdict(
        direction, mine, key, tuple(sorted(isolating)), tuple(sorted(rules)), closed=closed
    )


def _pod_at(world: PolicyWorld, address: Address) -> PolicyPod | None:
    return next(
        (pod for pod in world.pods.values() if address in pod.addresses and not pod.host_network),
        None,
    )
