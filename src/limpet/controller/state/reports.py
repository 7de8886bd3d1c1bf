"""Which pod holds which address, as the nodes report it."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address

import msgspec

from limpet.base.decoding import decode_json
from limpet.cluster.api import MAX_NAME_CHARACTERS, MAX_PODS, Code, PodAddress, PodReport
from limpet.controller.registry.records import REPORT, ReportRecord
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.store.interface import ConflictError, Delete, Item, Put, Store

_ATTEMPTS = 5


def merge_report(known: ReportRecord | None, report: PodReport, now_s: float) -> ReportRecord:
    """Raises: RefusedError when `report` follows another than the known one, or is too much."""
    _check(report)
    if report.base is None:
        pods = {_key(pod): pod for pod in report.pods if pod.addresses}
        return ReportRecord(report.sequence, now_s, _bounded(pods))
    if known is not None and known.sequence == report.sequence:
        return known  # the answer to it was lost
    if known is None or known.sequence != report.base:
        have = -1 if known is None else known.sequence
        raise RefusedError(
            Code.STALE, f"report {report.base} is not what came last: send all pods", version=have
        )
    merged = {_key(pod): pod for pod in known.pods}
    for pod in report.pods:
        if pod.addresses:
            merged[_key(pod)] = pod
        else:
            merged.pop(_key(pod), None)
    return ReportRecord(report.sequence, now_s, _bounded(merged))


def _key(pod: PodAddress) -> tuple[str, str, str, str]:
    return (pod.network, pod.namespace, pod.pod, pod.ifname)


def _bounded(pods: dict[tuple[str, str, str, str], PodAddress]) -> tuple[PodAddress, ...]:
    if len(pods) > MAX_PODS:
        raise RefusedError(Code.TOO_LARGE, f"report {len(pods)} pods: at most {MAX_PODS}")
    return tuple(pods[key] for key in sorted(pods))


def _check(report: PodReport) -> None:
    for pod in report.pods:
        if any(len(part) > MAX_NAME_CHARACTERS for part in _key(pod)) or len(pod.addresses) > 16:
            raise RefusedError(
                Code.BAD_REQUEST,
                f"report of pod {pod.namespace[:80]}/{pod.pod[:80]}: a name is too long or there "
                "are too many addresses",
            )
        for address in pod.addresses:
            try:
                ip_address(address)
            except ValueError as error:
                raise RefusedError(
                    Code.BAD_REQUEST, f"report of pod {pod.namespace}/{pod.pod}: {error}"
                ) from error


class Reports:
    """The reports in the store; not in memory, since a person alone reads them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._hear: list[Callable[[str, ReportRecord], None]] = []

    def subscribe(self, hear: Callable[[str, ReportRecord], None]) -> None:
        """`hear`: told the uid and the report of a node that has reported."""
        self._hear.append(hear)

    async def put(self, uid: str, report: PodReport, now_s: float) -> int:
        """The sequence that counts now. Raises: RefusedError, StorageError."""
        for _ in range(_ATTEMPTS):
            item = await self._store.get(REPORT, uid)
            record = merge_report(_decode(item) if item else None, report, now_s)
            try:
                await self._store.write([_put(uid, record, item)])
            except ConflictError:
                continue
            for hear in self._hear:
                hear(uid, record)
            return record.sequence
        raise RefusedError(Code.TRY_AGAIN, "two reports of this node at once")

    async def get(self, uid: str) -> ReportRecord | None:
        item = await self._store.get(REPORT, uid)
        return _decode(item) if item else None

    async def all(self) -> dict[str, ReportRecord]:
        """By uid."""
        return {item.name: _decode(item) for item in (await self._store.listing(REPORT)).items}

    async def hand_over(self, former: str, uid: str) -> None:
        """A machine that replaces another is as if it had reported the same, once."""
        item = await self._store.get(REPORT, former)
        if item is None:
            return
        record = msgspec.structs.replace(_decode(item), sequence=-1)
        try:
            await self._store.write([_put(uid, record, None), Delete(REPORT, former, item.version)])
        except ConflictError:
            return  # it has reported by itself

    async def drop(self, uid: str) -> None:
        item = await self._store.get(REPORT, uid)
        if item is None:
            return
        try:
            await self._store.write([Delete(REPORT, uid, item.version)])
        except ConflictError:
            return  # of a node that was removed; nobody reads it


def _put(uid: str, record: ReportRecord, item: Item | None) -> Put:
    """`item`: what it replaces."""
    return Put(REPORT, uid, msgspec.json.encode(record), item.version if item else None)


def _decode(item: Item) -> ReportRecord:
    return decode_json(item.value, ReportRecord)
