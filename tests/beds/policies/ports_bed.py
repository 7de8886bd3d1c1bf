"""A node whose pods send frames that they made themselves, and what becomes of each.

A frame arrives at one of the other pods or at the node, or the table's counter says that it was
dropped: nobody waits for nothing.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from limpet.base.node_state import NodeState
from limpet.datapath.node.pod.attachment import AllowedSources, Bandwidth
from limpet.datapath.node.ports.apply import PortKernel
from limpet.datapath.node.ports.diff import PutTable
from limpet.datapath.node.ports.plan import plan_ports
from limpet.linux.netlink.table_codec import OWNED, PERSISTENT
from tests.beds.namespaces import Netns, NetnsFactory
from tests.beds.node_bed import NO_LIMITS, STATE, NodeBed, Pod
from tests.waiting import wait_until

_ETH_P_ALL = 0x0300
NOTHING_ELSE = AllowedSources()
Frame = Callable[[bytes], bytes]
"""Of a tag that is somewhere in it."""


class PortsBed:
    """Pods p0, p1, … with addresses 2, 3, … of each segment. Not held to them yet."""

    def __init__(
        self,
        make: NetnsFactory,
        pods: int = 2,
        *,
        state: NodeState = STATE,
        allowed: AllowedSources = NOTHING_ELSE,
        bandwidth: Bandwidth = NO_LIMITS,
        flags: int = OWNED | PERSISTENT,
    ) -> None:
        """`allowed`: to the first pod. `flags`: as for the kernel's side; 0: others can change the
        table."""
        self.bed = NodeBed(make, state)
        self.node = self.bed.node
        # Else br_netfilter has a look at each packet first, as a node's own stack has.
        self.node.sysctl("net/bridge/bridge-nf-call-ip6tables", "0")
        self.pods = [self.bed.pod(f"p{n}", n + 2, bandwidth=bandwidth) for n in range(pods)]
        first = self.pods[0].attachment
        first = replace(first, link=replace(first.link, allowed=allowed))
        self.pods[0] = replace(self.pods[0], attachment=first)
        self.bridge_mac = self.bed.kernel.bridges(["limpet0"])["limpet0"][1]
        with self.node.entered():
            self.kernel = PortKernel(flags=flags)
        self._tags = itertools.count(1)

    def close(self) -> None:
        self.kernel.close()
        self.bed.close()

    def enforce(self) -> None:
        table = plan_ports(pod.attachment for pod in self.pods)
        with self.node.entered():
            self.kernel.apply(PutTable(table))

    def mac(self, pod: int) -> str:
        return self.pods[pod].attachment.link.mac

    def address(self, pod: int, version: int) -> str:
        return self.pods[pod].addresses[0 if version == 4 else 1]

    def arrives(self, frame: Frame, *, sender: int = 0, forget: bool = True) -> bool:
        """Whether a pod's frame comes out of the bridge anywhere. `forget`: what the bridge has
        learnt, since a MAC that was stolen before leads astray what is sent to its owner."""
        if forget:
            self.node.ip("link set limpet0 type bridge fdb_flush")
        tag = b"tag%06d" % next(self._tags)
        before = self.dropped()
        outcome: list[bool] = []
        with ExitStack() as sockets:
            heard = [
                sockets.enter_context(packet_socket(netns, ifname))
                for netns, ifname in self._places(sender)
            ]
            with packet_socket(self.pods[sender].netns, "eth0") as out:
                out.send(frame(tag))

            def seen() -> bool:
                if any(has_come(each, tag) for each in heard):
                    outcome.append(True)
                elif self.dropped() > before:
                    outcome.append(False)
                return bool(outcome)

            wait_until(seen, f"{frame(tag).hex()} arrives or is dropped")
        return outcome[0]

    def _places(self, sender: int) -> list[tuple[Netns, str]]:
        pods = [pod.netns for number, pod in enumerate(self.pods) if number != sender]
        return [(self.node, "limpet0"), *((netns, "eth0") for netns in pods)]

    def dropped(self) -> int:
        with self.node.entered():
            return self.kernel.dropped_packets()

    def pod(self, number: int) -> Pod:
        return self.pods[number]


def packet_socket(netns: Netns, ifname: str) -> socket.socket:
    with netns.entered():
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, _ETH_P_ALL)
        made.bind((ifname, 3))
    made.setblocking(False)
    return made


def has_come(heard: socket.socket, tag: bytes) -> bool:
    while True:
        try:
            frame, where = heard.recvfrom(4096)
        except BlockingIOError:
            return False
        if tag in frame and where[2] != socket.PACKET_OUTGOING:
            return True
