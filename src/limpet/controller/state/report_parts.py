"""Addresses of a node's pods, dealt out to parts, so that what changes is written and not all of
it. Pure, chance passed in.

A pod is in the part that a hash of its key says. There are as many parts as the pods need, a power
of two; a report that makes them too full or too empty deals out all of them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from zlib import crc32

from limpet.base.bounds import members
from limpet.cluster.api import Code, InterfaceAddresses, PodReport
from limpet.cluster.reported_pods import PodKey, checked_pod, pod_key, record_bytes
from limpet.controller.registry.records import PartMark, ReportPart, ReportRecord
from limpet.controller.registry.refusal import RefusedError

_GOOD, _MOST, _LEAST = 64, 128, 16
"""Pods to a part: after all were dealt out, and on average until that is done again."""

Pods = tuple[InterfaceAddresses, ...]


@dataclass(frozen=True, slots=True)
class Merged:
    """What is to be written."""

    record: ReportRecord
    parts: Mapping[int, ReportPart]
    """Further parts that are others now, by number."""
    gone: range
    """Numbers of further parts that are no more."""

    @property
    def size_bytes(self) -> int:
        """Size of what is written, without what names it."""
        marks = self.record.parts
        return marks[0].size_bytes + sum(marks[number].size_bytes for number in self.parts)


def check_report(known: ReportRecord | None, report: PodReport) -> PodReport | None:
    """The report with canonical addresses; None: the answer to it was lost, it is taken already.

    Raises: RefusedError when it follows another than the known one, or says what no node may.
    """
    if report.base is not None:
        if known is not None and known.sequence == report.sequence:
            return None
        if known is None or known.sequence != report.base:
            raise stale(report, known)
    return PodReport(report.sequence, tuple(map(_checked, report.pods)), report.base)


def stale(report: PodReport, known: ReportRecord | None) -> RefusedError:
    have = -1 if known is None else known.sequence
    return RefusedError(
        Code.STALE, f"report {report.base} is not what came last: send all pods", version=have
    )


def touched_parts(known: ReportRecord | None, report: PodReport) -> set[int]:
    """Numbers of the parts that the report is merged with."""
    if known is None or report.base is None:
        return set()
    count = len(known.parts)
    added = sum(1 for pod in report.pods if pod.addresses)
    if not _is_good(sum(mark.pods for mark in known.parts) + added, count):
        return set(range(count))
    return {part_of(pod_key(pod), count) for pod in report.pods}


def merge_report(
    known: ReportRecord | None,
    touched: Mapping[int, Pods],
    report: PodReport,
    now_s: float,
    number: Callable[[], int],
) -> Merged:
    """`touched`: the pods of those of `touched_parts`. `number`: a random one, above 0.

    Raises: RefusedError where the node would have more than a record holds.
    """
    before = len(known.parts) if known is not None else 0
    pods = {pod_key(pod): pod for held in touched.values() for pod in held}
    for pod in report.pods:
        if pod.addresses:
            pods[pod_key(pod)] = pod
        else:
            pods.pop(pod_key(pod), None)
    is_all = known is None or report.base is None or len(touched) == before
    count = _count_for(len(pods)) if is_all else before
    dealt: dict[int, list[InterfaceAddresses]] = (
        {part: [] for part in range(count)} if is_all else {part: [] for part in touched}
    )
    for key in sorted(pods):
        dealt[part_of(key, count)].append(pods[key])
    marks = [PartMark(0, 0)] * count if is_all or known is None else list(known.parts)
    parts: dict[int, ReportPart] = {}
    for part, held in dealt.items():
        written = number() if part else 0
        marks[part] = PartMark(len(held), record_bytes(held), written)
        if part:
            parts[part] = ReportPart(written, tuple(held))
    first = tuple(dealt[0]) if 0 in dealt or known is None else known.pods
    _check_bounds(marks)
    knows_kept = known is None or report.base is None or known.knows_kept
    record = ReportRecord(report.sequence, now_s, first, tuple(marks), knows_kept)
    return Merged(record, parts, range(max(count, 1), before))


def part_of(key: PodKey, count: int) -> int:
    return crc32("\0".join(key).encode(errors="surrogatepass")) % count


def _count_for(pods: int) -> int:
    count = 1
    while count * _GOOD < pods:
        count *= 2
    return count


def _is_good(pods: int, count: int) -> bool:
    return pods <= count * _MOST and (count == 1 or pods >= count * _LEAST)


def _checked(pod: InterfaceAddresses) -> InterfaceAddresses:
    try:
        return checked_pod(pod)
    except ValueError as error:
        raise RefusedError(
            Code.BAD_REQUEST,
            f"report of pod {pod.namespace[:80]}/{pod.pod[:80]}: {error} (an agent leaves such a "
            "pod out)",
        ) from error


def _check_bounds(marks: Iterable[PartMark]) -> None:
    marks = list(marks)
    pods, size_bytes = sum(each.pods for each in marks), sum(each.size_bytes for each in marks)
    for bound, found in ((members.REPORTED_PODS, pods), (members.REPORTED_BYTES, size_bytes)):
        if found > bound.most:
            raise RefusedError(
                Code.TOO_LARGE,
                f"report of pods: with it there are {found} {bound.unit} of this node, and at most "
                f"{bound.most} are kept",
            )
