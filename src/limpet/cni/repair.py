"""Addresses whose container, namespace and interface are all gone."""

from __future__ import annotations

import asyncio
import time

import structlog

from limpet.base.addresses import Address
from limpet.base.errors import LimpetError
from limpet.cni.verbs import Node
from limpet.datapath.node.pod.attachment import Attachment
from limpet.ipam.leases import Holder
from limpet.ipam.ledger import Ledger
from limpet.linux.namespaces import NamespaceScan, namespace_id, scan_namespaces

_log = structlog.get_logger("repair")


Leak = tuple[Ledger, Address, Holder]


def unrecorded(node: Node) -> set[Leak]:
    """Reservations that no attachment stands for."""
    recorded = {(attachment.network, attachment.holder) for attachment in node.attachments}
    return {
        (ledger, address, holder)
        for ledger in node.ledgers
        for address, holder in ledger.holders().items()
        if (ledger.network, holder) not in recorded
    }


def seems_gone(node: Node, attachment: Attachment) -> bool:
    """Neither the pod's namespace is where the runtime said, nor its interface on the node."""
    if namespace_id(attachment.netns.path) == attachment.netns.id:
        return False
    return attachment.bridge is None or node.kernel.route.link(attachment.link.host_ifname) is None


def _lives(attachment: Attachment, scan: NamespaceScan) -> bool:
    """Its namespace is somewhere, although not where the runtime said."""
    inside = scan.namespaces.get(attachment.netns.id, frozenset())
    return any(each.ip.packed in inside for each in attachment.addresses)


class Repair:
    """Finds and repairs leaks; runtimes skip DEL after crashes, and most never call GC."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def find(self) -> tuple[list[Attachment], list[Leak]]:
        """Attachments and bare reservations of which nothing is alive."""
        node = self._node
        before = unrecorded(node)
        suspects = [attachment for attachment in node.attachments if seems_gone(node, attachment)]
        if not before and not suspects:
            return [], []
        wanted = {address for _, address, _ in before}
        wanted.update(each.ip for attachment in suspects for each in attachment.addresses)
        scan = await asyncio.to_thread(scan_namespaces, wanted)
        # What came while we looked was not looked for.
        leaks = [leak for leak in before & unrecorded(node) if leak[1].packed not in scan.addresses]
        gone = [
            attachment
            for attachment in suspects
            if node.attachments.get(attachment.network, attachment.holder) is attachment
            and not _lives(attachment, scan)
            and seems_gone(node, attachment)
        ]
        return gone, leaks

    async def __call__(self) -> list[dict[str, str]]:
        """Releases what `find` found; returns it. Bindings stay.

        Raises: LimpetError, the first of what went wrong, when all else is done.
        """
        gone, leaks = await self.find()
        released, failures = [], []
        for attachment in gone:
            try:
                addresses = self._node.forget(attachment)
            except LimpetError as error:
                failures.append(error)
                continue
            released += [
                leak_document(attachment.network, each, attachment.holder, "its namespace is gone")
                for each in addresses
            ]
        for ledger, address, holder in leaks:
            ledger.release_address(address, now_s=time.monotonic())
            self._node.reaper.put([address])
            released.append(leak_document(ledger.network, address, holder, "nothing has it"))
        if leaks:
            self._node.released()
        for each in released:
            _log.info("released an address that nothing used", **each)
        for ledger in self._node.ledgers:
            try:
                await asyncio.wrap_future(ledger.durable())
            except LimpetError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        return released


def leak_document(network: str, address: Address, holder: Holder, why: str) -> dict[str, str]:
    return {
        "network": network,
        "address": str(address),
        "container_id": holder.container_id,
        "ifname": holder.ifname,
        "why": why,
    }
