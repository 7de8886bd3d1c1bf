"""The ledgers of this node: one for each network, opened when first needed."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog

from limpet.base.addresses import Address, InterfaceAddress
from limpet.base.errors import LimpetError
from limpet.base.ownership import POD_IFNAME_PREFIX
from limpet.cni.attachment_plan import PlannedNetwork
from limpet.cni.namespace_scan import scan_namespaces
from limpet.cni.protocol.values import CniRequest
from limpet.datapath.node.attachments import Attachments
from limpet.datapath.node.plan import host_ifname
from limpet.ipam.leases import Holder, PodKey, Reservation
from limpet.ipam.ledger import Ledger
from limpet.ipam.ranges import Range
from limpet.ipam.store import Tuning

_log = structlog.get_logger("books")


class Ledgers:
    """Ledgers by folder."""

    def __init__(self, data_dir: Path, rest_s: float, attachments: Attachments) -> None:
        """`rest_s`: how long an address rests after its release while others are free."""
        self.data_dir = data_dir
        """Of networks that name none."""
        self._rest_s = rest_s
        self._attachments = attachments
        self._ledgers: dict[Path, Ledger] = {}
        self.failed: dict[Path, str] = {}
        """Folders that could not be opened, with the reason."""

    def open_known(self) -> None:
        """Opens every folder that we have kept before; another plugin's are left alone."""
        for journal in sorted(self.data_dir.glob("*/limpet.journal")):
            with contextlib.suppress(LimpetError):
                self.ledger(journal.parent.name)

    def ledger(self, network: str, data_dir: str | None = None) -> Ledger:
        """Raises: StorageError."""
        folder = self._folder(network, data_dir)
        ledger = self._ledgers.get(folder)
        if ledger is None:
            # Waiting for another's lock holds up everybody: once is enough.
            tuning = Tuning(lock_wait_s=0) if folder in self.failed else None
            try:
                ledger = Ledger.open(folder, network, rest_s=self._rest_s, tuning=tuning)
            except LimpetError as error:
                self.failed[folder] = str(error)
                _log.error("record of addresses cannot be used", error=str(error))
                raise
            self.failed.pop(folder, None)
            self._ledgers[folder] = ledger
            self._hold_live(ledger, folder)
        return ledger

    def known(self, network: str, data_dir: str | None = None) -> Ledger | None:
        """The ledger if it is open or its folder is there; none is made."""
        known = os.path.isdir(self._folder(network, data_dir))
        return self.ledger(network, data_dir) if known else None

    def _folder(self, network: str, data_dir: str | None) -> Path:
        return Path(data_dir or self.data_dir) / network

    def __iter__(self) -> Iterator[Ledger]:
        return iter(list(self._ledgers.values()))

    def reserve(
        self, request: CniRequest, network: PlannedNetwork, *, now_s: float
    ) -> tuple[Ledger, Reservation]:
        """Raises: AddressError, StorageError."""
        ledger = self.ledger(network.name, request.conf.ipam.data_dir)
        reservation = ledger.reserve(
            request.holder,
            request.pod_key,
            network.range_sets,
            requested=request.requested_addresses,
            now_s=now_s,
            taken_elsewhere=self._taken_elsewhere(ledger) if network.shares_segments else None,
            is_alive=_is_alive,
        )
        return ledger, reservation

    def _taken_elsewhere(self, ledger: Ledger) -> Callable[[Address], bool] | None:
        """Networks that draw on the same segments must not give one address twice."""
        others = [other for other in self._ledgers.values() if other is not ledger]
        if not others:
            return None
        taken = {address for other in others for address in other.holders()}
        return taken.__contains__

    def _hold_live(self, ledger: Ledger, folder: Path) -> None:
        """Makes sure that live pods' addresses are theirs, whatever became of the record.

        An agent that was killed may have made an interface and not yet have written the record.
        """
        for attachment in self._attachments:
            if self._folder(attachment.network, attachment.data_dir) != folder:
                continue
            held = set(ledger.addresses_of(attachment.holder))
            if held.issuperset(address.ip for address in attachment.addresses):
                continue
            try:
                ledger.reserve(
                    attachment.holder,
                    PodKey(attachment.pod_namespace, attachment.pod_name, attachment.holder.ifname),
                    [(_whole(address),) for address in attachment.addresses],
                    requested=[address.ip for address in attachment.addresses],
                    now_s=time.monotonic(),
                )
            except LimpetError as error:
                _log.error("a live pod's address is not its own", error=str(error))

    def is_host_end_of_holder(self, ifname: str) -> bool:
        """Whether a host end's name stands for somebody who holds an address."""
        return any(
            host_ifname(POD_IFNAME_PREFIX, ledger.network, holder.container_id, holder.ifname)
            == ifname
            for ledger in self
            for holder in ledger.holders().values()
        )

    def close(self) -> None:
        for ledger in self._ledgers.values():
            ledger.close()


def _is_alive(address: Address, _holder: Holder) -> bool:
    """Asked only of a container that an adopted record names and that we never attached."""
    return address.packed in scan_namespaces().addresses


def _whole(address: InterfaceAddress) -> Range:
    """A range in which only this one address can be given."""
    subnet = address.network
    return Range(subnet, address.ip, address.ip, gateway=subnet[0])
