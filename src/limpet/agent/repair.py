"""Addresses whose container, namespace and interface are all gone."""

from __future__ import annotations

import asyncio
import time

import structlog

from limpet.agent.node import Node
from limpet.agent.sighting import Sighting, look_everywhere
from limpet.ipam.ledger import Ledger
from limpet.kernel.namespaces import NamespaceId, namespace_id
from limpet.model.attachment import Attachment
from limpet.model.errors import LimpetError
from limpet.model.network import Address, Holder

_log = structlog.get_logger("repair")


Leak = tuple[Ledger, Address, Holder]


def unrecorded(node: Node) -> set[Leak]:
    """Reservations that no attachment stands for."""
    recorded = {(attachment.network, attachment.holder) for attachment in node.attachments}
    return {
        (ledger, address, holder)
        for ledger in node.books
        for address, holder in ledger.holders().items()
        if (ledger.network, holder) not in recorded
    }


def is_gone(node: Node, attachment: Attachment, sighting: Sighting) -> bool:
    """Neither the pod's namespace nor its interface is there any more."""
    where = NamespaceId(attachment.netns_device, attachment.netns_inode)
    if where in sighting.namespaces or namespace_id(attachment.netns) == where:
        return False
    return attachment.bridge is None or node.kernel.route.link(attachment.host_ifname) is None


class Repair:
    """Finds and repairs leaks; runtimes skip DEL after crashes, and most never call GC."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def find(self) -> tuple[list[Attachment], list[Leak]]:
        """Attachments and bare reservations of which nothing is alive."""
        before, attachments = unrecorded(self._node), set(self._node.attachments)
        sighting = await asyncio.to_thread(look_everywhere)
        # What came while we looked was not looked for.
        leaks = [
            leak
            for leak in before & unrecorded(self._node)
            if leak[1].packed not in sighting.addresses
        ]
        gone = [
            attachment
            for attachment in self._node.attachments
            if attachment in attachments and is_gone(self._node, attachment, sighting)
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
        for each in released:
            _log.info("released an address that nothing used", **each)
        for ledger in self._node.books:
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
