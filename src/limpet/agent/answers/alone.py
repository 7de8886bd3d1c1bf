"""`limpet path` at a node that is in no cluster: between its own pods, and to what is beyond it."""

from __future__ import annotations

from collections.abc import Iterable

from limpet.agent.answers.own_pods import OwnNodeWords, own_addresses
from limpet.agent.status.paths import Leg, PathAnswer, PathStatus
from limpet.base.addresses import Address, Prefix


def path_alone(
    words: OwnNodeWords, segments: Iterable[Prefix], origin: str, target: str
) -> PathAnswer:
    """Ends are addresses, or pods of this node. Raises: LimpetError for another word."""
    own = tuple(segments)
    ends = {each: own_addresses("path", each, words) for each in (origin, target)}
    pairs = [
        (one, other)
        for one in ends[origin]
        for other in ends[target]
        if one.version == other.version
    ] or [(ends[origin][0], ends[target][0])]
    return PathAnswer(
        paths=[_path(one, other, words, own) for one, other in pairs], probes=[], nat={}, failed=[]
    )


def _path(
    origin: Address, target: Address, words: OwnNodeWords, segments: tuple[Prefix, ...]
) -> PathStatus:
    there, back = _leg(origin, target, words, segments), _leg(target, origin, words, segments)
    notes = []
    for each in (origin, target):
        segment = next((prefix for prefix in segments if each in prefix), None)
        pod = next((pod for pod in words.pods if pod.address == each), None)
        if segment is None or each == segment[1]:
            continue
        if pod is None:
            notes.append(f"{each} belongs to no pod of this node now")
        elif not pod.attached:
            notes.append(f"{each} is kept for pod {pod}, which is not attached now")
    reachable = not there.reason if there.known else None
    return PathStatus(
        version=origin.version,
        reachable=reachable,
        there=there,
        back=back,
        peer_uid="",
        notes=notes,
    )


def _leg(
    origin: Address, target: Address, words: OwnNodeWords, segments: tuple[Prefix, ...]
) -> Leg:
    named = {pod.address: str(pod) for pod in words.pods}
    here = {each: any(each in prefix for prefix in segments) for each in (origin, target)}
    reason, known = "", True
    if origin.version != target.version:
        reason = f"{origin} and {target} are not of the same IP version"
    elif not all(here.values()):
        outside = target if here[origin] else origin
        reason = (
            f"{outside} is in no segment of this node, which is in no cluster: the node's own "
            "routes lead there"
        )
        known = False
    is_local = known and not reason
    return Leg(
        origin=str(origin),
        origin_pod=named.get(origin, ""),
        origin_node="",
        target=str(target),
        target_pod=named.get(target, ""),
        target_node="",
        rung="local" if is_local else "",
        device=words.bridge if is_local else "",
        mtu_bytes=words.mtu_bytes if is_local else None,
        known=known,
        reason=reason,
        let_in=None,
    )
