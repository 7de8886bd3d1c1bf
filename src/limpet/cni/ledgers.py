"""The ledgers of this node: one for each network, opened when first needed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import structlog

from limpet.base.addresses import Address, InterfaceAddress
from limpet.base.bounds.tenants import CNI_NETWORKS
from limpet.base.errors import LimpetError, StorageError
from limpet.cni.attachment_plan import PlannedNetwork
from limpet.cni.protocol.values import CniRequest
from limpet.cni.turns import KeyTurns
from limpet.datapath.node.plan import host_ifname
from limpet.datapath.node.pod.attachments import Attachments
from limpet.ipam.leases import Holder, PodKey, Range, Reservation
from limpet.ipam.ledger import Ledger
from limpet.ipam.store import Tuning
from limpet.linux.namespaces import namespace_id, scan_namespaces

_log = structlog.get_logger("ledgers")


class NotLookedYet(Exception):
    """A container that is not known to be the pod's older sandbox has an address: does it live?"""


@dataclass(frozen=True, slots=True)
class NamespacesSeen:
    """What all network namespaces have, and who held what before they were looked at."""

    holders: Mapping[Address, Holder]
    addresses: frozenset[bytes]

    def is_alive(self, address: Address, holder: Holder) -> bool:
        """Whether the holder still has its address; who came while we looked was not looked for."""
        return self.holders.get(address) != holder or address.packed in self.addresses


class Ledgers:
    """Ledgers by folder; of one event loop."""

    def __init__(self, data_dir: Path, rest_s: float, attachments: Attachments) -> None:
        """`rest_s`: how long an address rests after its release while others are free."""
        self.data_dir = data_dir
        """Folder of networks that name none."""
        self._rest_s = rest_s
        self._attachments = attachments
        self._ledgers: dict[Path, Ledger] = {}
        self._opening = KeyTurns()
        self.failed: dict[Path, str] = {}
        """Folders that could not be opened, with the reason."""

    def open_known(self) -> None:
        """Opens every folder that we have kept before; another plugin's are left alone."""
        for journal in sorted(self.data_dir.glob("*/limpet.journal")):
            with contextlib.suppress(LimpetError):
                self.ledger(journal.parent.name)

    def ledger(self, network: str, data_dir: str | None = None) -> Ledger:
        """Opened on the calling thread if it is not open. Raises: StorageError."""
        folder = self._folder(network, data_dir)
        ledger = self._ledgers.get(folder)
        if ledger is None:
            self._check_room(folder)
            with self._noted(folder):
                ledger = self._open(folder, network)
            self._take(folder, ledger)
        return ledger

    async def open(self, network: str, data_dir: str | None = None) -> Ledger:
        """As `ledger`, but opened in a thread: files are read, and another's lock waited for.

        Raises: StorageError.
        """
        folder = self._folder(network, data_dir)
        ledger = self._ledgers.get(folder)
        if ledger is not None:
            return ledger
        async with self._opening.of(folder):
            ledger = self._ledgers.get(folder)
            if ledger is None:
                self._check_room(folder)
                with self._noted(folder):
                    ledger = await asyncio.to_thread(self._open, folder, network)
                self._take(folder, ledger)
        return ledger

    async def find(self, network: str, data_dir: str | None = None) -> Ledger | None:
        """The ledger if it is open or its folder is there; none is made. Raises: StorageError."""
        known = os.path.isdir(self._folder(network, data_dir))
        return await self.open(network, data_dir) if known else None

    def _check_room(self, folder: Path) -> None:
        """Raises: StorageError."""
        others = self._ledgers.keys() | self.failed.keys() - {folder}
        if len(others) >= CNI_NETWORKS.most:
            raise StorageError(
                "open",
                str(folder),
                f"this node has {CNI_NETWORKS.most} networks, and no more are served",
                hint="delete the records of those that are no more, then restart the agent",
            )

    def _open(self, folder: Path, network: str) -> Ledger:
        # Waiting for another's lock holds up everybody: once is enough.
        tuning = Tuning(lock_wait_s=0) if folder in self.failed else None
        return Ledger.open(folder, network, rest_s=self._rest_s, tuning=tuning)

    @contextlib.contextmanager
    def _noted(self, folder: Path) -> Iterator[None]:
        """Whether the folder can be opened is known from here on."""
        try:
            yield
        except LimpetError as error:
            self.failed[folder] = str(error)
            _log.error("record of addresses cannot be used", error=str(error))
            raise
        self.failed.pop(folder, None)

    def _take(self, folder: Path, ledger: Ledger) -> None:
        self._ledgers[folder] = ledger
        self.hold_live(ledger)

    def _folder(self, network: str, data_dir: str | None) -> Path:
        return _path(data_dir or self.data_dir, network)

    def __iter__(self) -> Iterator[Ledger]:
        return iter(list(self._ledgers.values()))

    @property
    def pods(self) -> int:
        """How many interfaces of pods are attached."""
        return len(self._attachments)

    def attached(self) -> Iterator[str]:
        """Addresses of live pods."""
        for attachment in self._attachments:
            yield from (str(each.ip) for each in attachment.addresses)

    def reserve(
        self,
        ledger: Ledger,
        request: CniRequest,
        network: PlannedNetwork,
        *,
        now_s: float,
        seen: NamespacesSeen | None,
    ) -> Reservation:
        """Raises: NotLookedYet when `seen` is needed; AddressError, StorageError."""
        # Networks that draw on the same segments must not give one address twice.
        others = [other for other in self._ledgers.values() if other is not ledger]
        taken = kept = None
        if network.shares_segments and (others or self.failed):
            unrecorded = self._unrecorded()

            def taken(address: Address) -> bool:
                return address in unrecorded or any(other.is_held(address) for other in others)

            def kept(address: Address) -> bool:
                return any(other.is_kept(address, now_s=now_s) for other in others)

        return ledger.reserve(
            request.holder,
            request.pod_key,
            network.range_sets,
            requested=request.wishes.addresses,
            now_s=now_s,
            taken_elsewhere=taken,
            kept_elsewhere=kept,
            is_alive=self._is_alive(request, ledger.network, seen),
        )

    def _unrecorded(self) -> set[Address]:
        """What live pods have whose network's ledger cannot be opened."""
        return {
            each.ip
            for attachment in (self._attachments if self.failed else ())
            if self._folder(attachment.network, attachment.data_dir) in self.failed
            for each in attachment.addresses
        }

    def _is_alive(
        self, request: CniRequest, network: str, seen: NamespacesSeen | None
    ) -> Callable[[Address, Holder], bool]:
        """Whether a holder may not be evicted for the request: its namespace is there, or its
        address is somewhere. Raises: NotLookedYet, when asked for what `seen` is needed for."""
        key = request.pod_key

        def is_alive(address: Address, holder: Holder) -> bool:
            found = self._attachments.get(network, holder)
            if found is not None and namespace_id(found.netns.path) == found.netns.id:
                pod = found.pod.namespace, found.pod.name
                if not any(pod) or pod != (key.namespace, key.pod):
                    # Its address may be a guest's inside it, or about to be configured.
                    return True
            if seen is None:
                raise NotLookedYet
            return seen.is_alive(address, holder)

        return is_alive

    async def look(self, ledger: Ledger) -> NamespacesSeen:
        """Looks into every network namespace, in a thread."""
        holders = ledger.holders()
        return NamespacesSeen(
            holders, (await asyncio.to_thread(scan_namespaces, list(holders))).addresses
        )

    def hold_live(self, ledger: Ledger) -> None:
        """Makes sure that live pods' addresses are theirs, whatever became of the record.

        An agent that was killed may have made an interface and not yet have written the record; and
        a sandbox that was to give up its address may still have it, where that failed.
        """
        for attachment in self._attachments:
            folder = self._folder(attachment.network, attachment.data_dir)
            if self._ledgers.get(folder) is not ledger:
                continue
            held = set(ledger.addresses_of(attachment.holder))
            if held.issuperset(address.ip for address in attachment.addresses):
                continue
            try:
                ledger.reserve(
                    attachment.holder,
                    PodKey(attachment.pod.namespace, attachment.pod.name, attachment.holder.ifname),
                    [(_whole(address),) for address in attachment.addresses],
                    requested=[address.ip for address in attachment.addresses],
                    now_s=time.monotonic(),
                )
            except LimpetError as error:
                _log.error("a live pod's address is not its own", error=str(error))

    def is_host_end_of_holder(self, ifname: str) -> bool:
        """Whether a host end's name stands for somebody who holds an address."""
        return any(
            host_ifname(ledger.network, holder) == ifname
            for ledger in self
            for holder in ledger.holders().values()
        )

    def close(self) -> None:
        for ledger in self._ledgers.values():
            ledger.close()


@lru_cache(maxsize=64)  # every request asks
def _path(data_dir: str | Path, network: str) -> Path:
    return Path(data_dir) / network


def _whole(address: InterfaceAddress) -> Range:
    """A range in which only this one address can be given."""
    subnet = address.network
    return Range(subnet, address.ip, address.ip, gateway=subnet[0])
