"""What a person who looks at a node should hear of, whoever tells it there. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from limpet.base.text.few import few
from limpet.cluster.api import Code, name_problem
from limpet.cluster.kinds.grant import Grant
from limpet.controller.registry.refusal import RefusedError

_SEGMENTS = frozenset({Code.QUOTA, Code.EXHAUSTED, Code.RECOVERING})
_SEGMENTS_NAMED = 8


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that happened to one node, for a person."""

    node: str
    """Name of the node."""
    reason: str
    """One CamelCase word."""
    message: str
    """In words, with what to do."""
    is_warning: bool = False
    is_claimed: bool = False
    """Somebody says that they are this node, and showed nothing for it."""


def joined(grant: Grant, replaces: str) -> Happening:
    where = f", with {_segments(grant)}" if grant.segments else ""
    former = f" in place of the machine {replaces}, which was removed" if replaces else ""
    words = f"joined the pod network as {grant.uid}{former}{where}"
    return Happening(grant.name, "Joined", words)


def join_refused(name: str, error: RefusedError) -> Happening | None:
    """None: what was asked for is no name of a node."""
    if name_problem(name):
        return None
    words = f"somebody asked to join under this name and was refused: {error}"
    return Happening(name, "JoinRefused", words, is_warning=True, is_claimed=True)


def segments_granted(before: Grant | None, grant: Grant) -> Happening | None:
    """None: the node has no more than it had."""
    had = frozenset(before.segments) if before is not None else frozenset()
    more = [str(each) for each in grant.segments if each not in had]
    if not more:
        return None
    words = f"was granted {', '.join(more)}; it holds {_segments(grant)}"
    return Happening(grant.name, "SegmentsGranted", words)


def segments_refused(grant: Grant, error: RefusedError) -> Happening | None:
    """None: the node asks again by itself."""
    if error.refused.code not in _SEGMENTS:
        return None
    words = f"its addresses are used up, and it gets no more: {error}"
    return Happening(grant.name, "SegmentsRefused", words, is_warning=True)


def cidrs_refused(name: str, problem: str) -> Happening:
    return Happening(name, "PodCIDRsRefused", problem, is_warning=True)


def node_deleted(grant: Grant, removed_at: str) -> Happening:
    words = (
        f"its Node was deleted: {grant.uid} is removed from the pod network at {removed_at}, "
        f"unless the Node comes back (at once: limpet node remove {grant.name})"
    )
    return Happening(grant.name, "NodeDeleted", words, is_warning=True)


def node_back(grant: Grant) -> Happening:
    words = f"its Node is there again: {grant.uid} stays, with {_segments(grant)}"
    return Happening(grant.name, "NodeBack", words)


def removed(grant: Grant) -> Happening:
    words = (
        f"removed from the pod network for ever: {grant.uid}, with {_segments(grant)}, which rest "
        "before another node gets them (to come back it needs a new key and a new join)"
    )
    return Happening(grant.name, "Removed", words)


def cloned(grant: Grant, error: RefusedError) -> Happening:
    return Happening(grant.name, "IdentityCloned", str(error), is_warning=True)


def _segments(grant: Grant) -> str:
    return few(grant.segments, _SEGMENTS_NAMED) or "no segments"
