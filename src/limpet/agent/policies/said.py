"""What the agent says of network policies to the command line; both import it."""

from __future__ import annotations

from limpet.agent.status.said import Said


class PolicyLine(Said, frozen=True, kw_only=True):
    """A policy, as `limpet policy list` tells it."""

    namespace: str
    name: str
    pods: str
    """Whom it selects."""
    types: list[str]
    selected: list[str]
    """Pods of this node."""
    words: str
    """What it says, in a sentence."""


class Policies(Said, frozen=True, kw_only=True):
    """All that the node knows of."""

    source: str
    """Who told them."""
    policies: list[PolicyLine]
    problems: list[str]
    """Objects that mean nothing."""
    dropped_packets: int


class RuleLine(Said, frozen=True, kw_only=True):
    """Something that a pod may receive, or send."""

    policy: str
    peers: list[str]
    """In words; empty: everybody."""
    ports: list[str]
    """Empty: all."""
    addresses: int | None
    """Number of pods' addresses that are meant now; None: everybody."""


class SideLine(Said, frozen=True, kw_only=True):
    """What a pod may receive, or send."""

    direction: str
    isolated: bool
    policies: list[str]
    """By which it is isolated."""
    rules: list[RuleLine]


class PodPolicies(Said, frozen=True, kw_only=True):
    """Of one pod of this node."""

    pod: str
    addresses: list[str]
    labels: dict[str, str] | None
    """None: nobody has told them, so it is closed wherever a policy might select it."""
    sides: list[SideLine]


class EndLine(Said, frozen=True, kw_only=True):
    """What one end of a connection says."""

    direction: str
    """`egress`: where it leaves; `ingress`: where it enters."""
    address: str
    pod: str
    """Empty: of no pod that is known here."""
    here: bool
    """It is a pod of this node."""
    allowed: bool | None
    """None: only the other node knows."""
    why: str


class FlowLine(Said, frozen=True, kw_only=True):
    """Whether a connection between two addresses may begin."""

    source: str
    target: str
    protocol: str
    """Empty: one without ports."""
    port: int
    """Where the target is asked: of a Service's its endpoint's, which rules of policies name."""
    allowed: bool | None
    """None: only the other node knows."""
    ends: list[EndLine]


class Judged(Said, frozen=True, kw_only=True):
    """What policies say of connections."""

    flows: list[FlowLine]


class Applied(Said, frozen=True, kw_only=True):
    """What was changed, as KIND NAME."""

    changed: list[str]


class PodLabels(Said, frozen=True, kw_only=True):
    """The labels that a pod has now."""

    pod: str
    labels: dict[str, str]
