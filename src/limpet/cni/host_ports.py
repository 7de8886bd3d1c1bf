"""The hostPorts of pods in nftables: opened by an ADD, closed or given back by a DEL."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable

from limpet.base.addresses import packed
from limpet.base.errors import KernelError
from limpet.datapath.node.part import NodePart
from limpet.datapath.node.pod.attachment import Attachment
from limpet.datapath.node.pod.attachments import Attachments
from limpet.datapath.node.ruleset import HostPort, host_port_commands, plan_host_ports_of
from limpet.linux.conntrack import forget_udp
from limpet.linux.nftables import Nftables


class HostPorts:
    """Changes the maps that the node's rounds have planned; a round puts right what fails here."""

    def __init__(self, nft: Nftables, attachments: Attachments, node_part: NodePart) -> None:
        self._nft = nft
        self._attachments = attachments
        self._node_part = node_part

    def open(self, pod: Attachment) -> None:
        """Adds the pod's hostPorts; one that a former pod still has is taken over.

        Raises: KernelError.
        """
        added = plan_host_ports_of([pod]) if pod.port_mappings else ()
        if not added:
            return
        self._node_part.expect_host_ports()
        commands = host_port_commands(add=added, delete=self._same(added))
        try:
            self._nft.run(commands, what="hostPorts")
        except KernelError as error:
            # The table is not as planned (somebody flushed it). The round puts it right, as it was
            # before this pod.
            self._node_part.run(f"hostPorts could not be changed: {error}")
            self._nft.run(commands, what="hostPorts")
        with contextlib.suppress(KernelError):
            _forget_others(added)

    def close(self, pod: Attachment) -> None:
        """Gives the pod's hostPorts back to others that ask for them, or closes them.

        Whatever fails is met again in the next round; the pod is none of the attachments any more.
        """
        mine = plan_host_ports_of([pod]) if pod.port_mappings else ()
        commands = host_port_commands(add=self._same(mine), delete=mine)
        if not commands:
            return
        try:
            self._nft.run(commands, what="hostPorts")
        except KernelError as error:
            self._node_part.run(f"hostPorts could not be changed: {error}")

    def _same(self, ports: Iterable[HostPort]) -> list[HostPort]:
        """What the attachments have under the keys of `ports`."""
        keys = {(port.map_name, port.key) for port in ports}
        held = plan_host_ports_of(self._attachments) if keys else ()
        return [port for port in held if (port.map_name, port.key) in keys]


def _forget_others(ports: Iterable[HostPort]) -> None:
    """Who goes on sending datagrams from one port would never reach the pod: what began before it
    was there goes to the node, or to who had the port. Raises: KernelError."""
    served = defaultdict[tuple[bytes, int], set[tuple[bytes, int]]](set)
    for port in ports:
        if port.protocol == "udp":
            asked = packed(port.host_address) if port.host_address else b""
            served[asked, port.port].add((packed(port.target), port.target_port))
    if served:
        forget_udp(served)
