"""A node with pods whose policies are in force, and packets of which it is seen what became.

A packet arrives, or the table's counter says that it was dropped: nobody waits for nothing.
"""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Literal

from limpet.datapath.policy.apply import PolicyKernel
from limpet.datapath.policy.ruleset import NOTHING, LocalPort, PolicyTables, plan_tables
from limpet.linux.netlink.table_codec import OWNED, PERSISTENT
from limpet.policies.compiler import compile_sides
from limpet.policies.policy import PolicyPod, PolicyWorld
from tests.beds import node_bed
from tests.beds.namespaces import Netns, NetnsFactory
from tests.beds.node_bed import NodeBed
from tests.waiting import wait_until

Protocol = Literal["TCP", "UDP", "SCTP", "ICMP", "ND"]
"""ND: a neighbour advertisement, IPv6 only."""
_NUMBERS = {("TCP", 4): 6, ("TCP", 6): 6, ("UDP", 4): 17, ("UDP", 6): 17, ("SCTP", 4): 132}
_NUMBERS |= {("SCTP", 6): 132, ("ICMP", 4): 1, ("ICMP", 6): 58, ("ND", 6): 58}
NOTHING_GRANTED: Mapping[int, Sequence[str]] = {}
_INIT = (65535, 1, 1)
"""Of an INIT and its answer: room for what is received, and how many streams each way."""


class PolicyBed:
    """Pods p0, p1, … with addresses 2, 3, … of each segment; a host outside."""

    def __init__(self, make: NetnsFactory, pods: int, *, flags: int = OWNED | PERSISTENT) -> None:
        """`flags`: of its tables, as far as the kernel can."""
        self.bed = NodeBed(make)
        self.node = self.bed.node
        self.outside = self.bed.outside()
        self.outside.ip(
            "route add 10.244.7.0/24 via 192.0.2.1", "route add fd00:7::/64 via 2001:db8::1"
        )
        self.netns: list[Netns] = [self.bed.pod(f"p{n}", n + 2).netns for n in range(pods)]
        for netns in self.netns:
            # As each packet here begins a connection, answers are not looked for.
            netns.sysctl("net/ipv4/icmp_echo_ignore_all", "1")
        with self.node.entered():
            self.kernel = PolicyKernel(flags=flags)
        self.tables = NOTHING
        self._tags = itertools.count(20000)

    def close(self) -> None:
        self.kernel.close()
        self.bed.close()

    def ports(
        self, pods: Sequence[PolicyPod], granted: Mapping[int, Sequence[str]] = NOTHING_GRANTED
    ) -> list[LocalPort]:
        """`granted`: what pods may have beside their own, by number."""
        mac = self.bed.kernel.bridges(["limpet0"])["limpet0"][1]
        found = []
        for number, pod in enumerate(pods):
            link = self.bed.pods[f"p{number}"].attachment.link
            more = tuple(map(ip_address, granted.get(number, ())))
            found.append(
                LocalPort(pod.key, link.host_ifname, link.mac, mac, pod.addresses, granted=more)
            )
        return found

    def enforce(
        self, world: PolicyWorld, granted: Mapping[int, Sequence[str]] = NOTHING_GRANTED
    ) -> PolicyTables:
        """The difference to what there was is put into the kernel."""
        pods = [*world.pods.values()]
        after = plan_tables(compile_sides(world, pods), self.ports(pods, granted))
        with self.node.entered():
            self.kernel.change(self.tables, after)
        self.tables = after
        return after

    def read(self) -> PolicyTables:
        with self.node.entered():
            return self.kernel.read()

    def passes(self, source: int, target: int, version: int, protocol: Protocol, port: int) -> bool:
        """Whether the first packet of a connection arrives. Pods by number; -1: outside.

        Pods send by themselves, too (reports of multicast groups): what is dropped is not always
        what was sent here, so a packet counts as dropped when three of its kind were.
        """
        return any(self._passes(source, target, version, protocol, port) for _ in range(3))

    def _passes(
        self, source: int, target: int, version: int, protocol: Protocol, port: int
    ) -> bool:
        there = self._address(target, version)
        tag = next(self._tags)
        with (
            raw_socket(self._where(target), version, protocol) as receiver,
            raw_socket(self._where(source), version, protocol) as sender,
        ):
            receiver.setblocking(False)
            before = self._dropped()
            ends = (self._address(source, version), there)
            sender.sendto(packet_of(protocol, ends, tag, port), (there, 0))
            outcome: list[bool] = []

            def seen() -> bool:
                if _has_come(receiver, version, protocol, tag):
                    outcome.append(True)
                elif self._dropped() > before:
                    outcome.append(False)
                return bool(outcome)

            wait_until(seen, f"{protocol} from {source} to {there} port {port}")
        return outcome[0]

    def _dropped(self) -> int:
        with self.node.entered():
            return self.kernel.dropped_packets()

    def _where(self, number: int) -> Netns:
        return self.outside if number < 0 else self.netns[number]

    def _address(self, number: int, version: int) -> str:
        if number < 0:
            return node_bed.OUTSIDE[0 if version == 4 else 1]
        addresses = self.bed.pods[f"p{number}"].addresses
        return next(each for each in addresses if ip_address(each).version == version)


def raw_socket(netns: Netns, version: int, protocol: Protocol) -> socket.socket:
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    with netns.entered():
        made = socket.socket(family, socket.SOCK_RAW, _NUMBERS[protocol, version])
    if version == 6 and protocol in ("TCP", "UDP"):
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_CHECKSUM, 16 if protocol == "TCP" else 6)
    if protocol == "ND":
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, 255)
    return made


def packet_of(protocol: Protocol, ends: tuple[str, str], tag: int, port: int) -> bytes:
    """The first of a connection from port `tag`. Its checksum is right, or no answer to it would be
    told from a new connection; for IPv6 the kernel makes those of TCP, UDP and ICMP."""
    version = ip_address(ends[0]).version
    match protocol:
        case "TCP":
            packet = struct.pack(">HHIIBBHHH", tag, port, tag, 0, 5 << 4, 0x02, 65535, 0, 0)
            pseudo = b"".join(ip_address(each).packed for each in ends)
            total = _checksum(pseudo + struct.pack(">HH", 6, len(packet)) + packet)
            return packet[:16] + struct.pack(">H", total) + packet[18:] if version == 4 else packet
        case "UDP":
            return struct.pack(">HHHH", tag, port, 8, 0)
        case "SCTP":
            return _sctp_packet(tag, port, 0, struct.pack(">BBHIIHHI", 1, 0, 20, tag, *_INIT, tag))
        case "ICMP":
            head = struct.pack(">BBHHH", 8 if version == 4 else 128, 0, 0, tag, 1)
            return head[:2] + struct.pack(">H", _checksum(head)) + head[4:]
        case "ND":
            return struct.pack(">BBHHH", 136, 0, 0, tag, 0) + ip_address(ends[0]).packed


def init_ack_of(port: int, peer_port: int, peer_tag: int) -> bytes:
    """An SCTP endpoint's answer to an INIT with that tag. Source: RFC 9260, 3.3.3."""
    cookie = struct.pack(">HH4s", 7, 8, b"here")
    chunk = struct.pack(">BBHIIHHI", 2, 0, 20 + len(cookie), 1, *_INIT, 1) + cookie
    return _sctp_packet(port, peer_port, peer_tag, chunk)


def _sctp_packet(port: int, peer_port: int, verification_tag: int, chunk: bytes) -> bytes:
    head = struct.pack(">HHI", port, peer_port, verification_tag)
    return head + struct.pack("<I", _crc32c(head + bytes(4) + chunk)) + chunk


def _checksum(data: bytes) -> int:
    """Source: RFC 1071."""
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _crc32c(data: bytes) -> int:
    """Source: RFC 9260, appendix A."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return ~crc & 0xFFFFFFFF


def _has_come(receiver: socket.socket, version: int, protocol: Protocol, tag: int) -> bool:
    while True:
        try:
            packet = receiver.recv(2048)
        except BlockingIOError:
            return False
        head = packet[(packet[0] & 15) * 4 :] if version == 4 else packet
        at = 4 if protocol in ("ICMP", "ND") else 0
        if struct.unpack_from(">H", head, at)[0] == tag:
            return True
