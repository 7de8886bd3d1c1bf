"""The one watch of Pods: finds addresses that two of them hold, and tells it on both.

Of thousands of pods only names, node and addresses are kept (`held_twice`).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address

import structlog

from limpet.base import faults
from limpet.base.addresses import Address, bounds_by_version, is_within
from limpet.base.errors import LimpetError
from limpet.controller.orchestrator.event_backlog import About
from limpet.controller.orchestrator.events import Events
from limpet.controller.orchestrator.held_twice import AddressBook, HeldTwice, Key, LivePod, by_node
from limpet.controller.registry.tables import Tables, live_uids
from limpet.controller.state.cluster import Cluster
from limpet.controller.state.reports import ReportedByNode
from limpet.kubernetes.client import Client
from limpet.kubernetes.lists import Selection
from limpet.kubernetes.pods import PLACED_PODS, PlacedPod
from limpet.kubernetes.reflector import Reflector
from limpet.kubernetes.reflector_state import ObjectChanges

_log = structlog.get_logger("pods")
_LOOK_S = 2.0
"""Between two looks at what is known, which cost no request."""
_AGAIN_S = 10.0
_LIVE = Selection(fields="status.phase!=Succeeded,status.phase!=Failed")


def read_pod(found: PlacedPod) -> LivePod | None:
    """None: it is in its node's network, or about to be gone."""
    metadata = found.metadata
    if found.spec.host_network or metadata.deletion_timestamp is not None:
        return None
    key = (metadata.namespace, metadata.name)
    return LivePod(
        key, metadata.uid, found.spec.node_name, tuple(map(str, _addresses(found.addresses)))
    )


def read_report(report: ReportedByNode, tables: Tables) -> list[tuple[Key, str]]:
    """Addresses of the cluster's own space: other networks of a node may be numbered alike."""
    bounds = bounds_by_version(tables.network.pod_cidrs)
    return [
        ((pod.namespace, pod.pod), str(address))
        for pod in report.pods
        for address in _addresses(pod.addresses)
        if is_within(int(address), bounds[address.version])
    ]


def _addresses(texts: Sequence[str]) -> Iterator[Address]:
    for text in texts:
        try:
            yield ip_address(text)
        except ValueError:
            continue  # what others have written; nobody is helped by refusing the pod


def _words(holders: str) -> str:
    return (
        f"two live pods hold one address: {holders}; which of them is reached is chance (delete "
        "one of them, so that it gets another address; does another pod network use the same "
        "addresses?)"
    )


class Pods:
    """Finds addresses that two live pods hold; only in the controller that leads."""

    def __init__(self, client: Client, cluster: Cluster, events: Events) -> None:
        self._cluster = cluster
        self._events = events
        self._book = AddressBook()
        self._found: tuple[HeldTwice, ...] = ()
        self._reported: set[str] = set()
        """Uids of nodes whose reports may have come, or gone, and were not taken up yet."""
        self._failed: Counter[str] = Counter()
        """How often it failed of those of them of which it did."""
        self._names: dict[str, str] = {}
        """Names of nodes whose reports were taken up, by uid."""
        self._reflector = Reflector(
            client, PLACED_PODS, self._hear, mirror=True, random=random.random, selection=_LIVE
        )
        cluster.reports.subscribe(self._reported.add)

    @property
    def held_twice(self) -> Mapping[str, Sequence[str]]:
        """In words, by the names of nodes."""
        return by_node(self._found)

    @property
    def count(self) -> int:
        """Number of addresses that two hold."""
        return len(self._found)

    async def run(self) -> None:
        """Until it is cancelled."""
        following = asyncio.create_task(self._reflector.run())
        try:
            await self._read_reports()
            while True:
                await asyncio.sleep(_LOOK_S)
                with faults.noted("reading reports of pods"):
                    if self._reported:
                        await self._take_reports()
                with faults.noted("looking at pods"):
                    self._look()
        finally:
            following.cancel()

    async def _read_reports(self) -> None:
        while True:
            try:
                self._reported.update(await self._cluster.change(live_uids))
                return
            except LimpetError as error:
                _log.warning("reports of pods not read", error=str(error))
            except Exception as error:  # noqa: BLE001 - the next time may be better
                faults.note("reading reports of pods", error)
            await asyncio.sleep(_AGAIN_S)

    async def _take_reports(self) -> None:
        """One after the other: a node's pods may take a mebibyte. What failed most often comes
        last, so that it does not keep the others from being taken up."""
        reported, now_s = set(self._reported), time.monotonic()
        self._reported.clear()
        for uid in sorted(reported, key=lambda uid: (self._failed[uid], uid)):
            try:
                await self._take_report(uid, now_s)
            except Exception as error:
                self._failed[uid] += 1
                self._reported |= reported
                if not isinstance(error, LimpetError):
                    raise
                _log.warning("reports of pods not taken up", error=str(error))
                return
            reported.discard(uid)
            self._failed.pop(uid, None)

    async def _take_report(self, uid: str, now_s: float) -> None:
        """Raises: LimpetError."""
        report = await self._cluster.reports.get(uid)

        def read(tables: Tables) -> tuple[str, list[tuple[Key, str]]] | None:
            grant = tables.grants.get(uid)
            if report is None or grant is None or grant.tombstone:
                return None
            return grant.name, read_report(report, tables)

        found = await self._cluster.change(read)
        if found is not None:
            self._names[uid] = found[0]
            self._book.report(*found, now_s)
        elif uid in self._names:
            name = self._names.pop(uid)
            if name not in self._names.values():  # else a machine in its place has reported
                self._book.report(name, (), now_s)

    async def _hear(self, changes: ObjectChanges[PlacedPod]) -> None:
        now_s = time.monotonic()
        for key in changes.gone:
            self._book.drop(key, now_s)
        for each in changes.put:
            pod = read_pod(each)
            if pod is None:
                self._book.drop((each.metadata.namespace, each.metadata.name), now_s)
            else:
                self._book.put(pod, now_s)

    def _look(self) -> None:
        before, self._found = self._found, self._book.held_twice(time.monotonic())
        for each in self._found:
            if each not in before:
                self._tell(each)
        if self._found != before:
            self._cluster.feed.words.put(
                {name: [_words(each) for each in words] for name, words in self.held_twice.items()}
            )
        known = {each.address for each in self._found}
        for each in before:
            if each.address not in known:
                _log.info("an address is held once again", address=each.address)

    def _tell(self, found: HeldTwice) -> None:
        _log.warning("an address is held twice", address=found.address, pods=found.words)
        words = _words(found.words)
        for pod in found.pods:
            namespace, name = pod.key
            about = About("Pod", name, pod.uid, namespace=namespace)
            self._events.tell(about, "AddressHeldTwice", words, "Warning")
