"""Nine pods on two nodes, held to policies, and packets of everybody to everybody.

x/a x/c y/b z/a z/c on node A ═══ node B with x/b y/a y/c z/b

What must pass is awaited, one by one; for what must not, the tables count what they drop.
"""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Any

from limpet.base.ownership import ROUTE_TABLE
from limpet.datapath.policy.apply import PolicyKernel
from limpet.datapath.policy.ruleset import NOTHING, LocalPort, PolicyTables, plan_tables
from limpet.lab.world.pod import pings
from limpet.policies.compiler import compile_sides
from limpet.policies.labels import Labels
from limpet.policies.parse import parse_policy
from limpet.policies.policy import Key, NamedPort, PolicyPod, PolicyWorld
from tests.beds.namespaces import Netns, NetnsFactory, connect_namespaces
from tests.beds.node_bed import STATE, NodeBed
from tests.beds.policies.policy_bed import Protocol, packet_of, raw_socket
from tests.waiting import wait_until

NODES = {"A": ("10.244.7.0/24", "fd00:7::/64"), "B": ("10.244.8.0/24", "fd00:8::/64")}
LINK = {"A": ("192.0.2.1", "2001:db8::1"), "B": ("192.0.2.2", "2001:db8::2")}
WHERE = {
    "A": ("x/a", "x/c", "y/b", "z/a", "z/c"),
    "B": ("x/b", "y/a", "y/c", "z/b"),
}
PODS = sorted(each for names in WHERE.values() for each in names)
NODE_OF = {name: node for node, names in WHERE.items() for name in names}
Ports = Mapping[NamedPort, int]
PORTS: Ports = {
    NamedPort("tcp", "serve-80"): 80,
    NamedPort("tcp", "serve-81"): 81,
    NamedPort("udp", "ask-80"): 80,
    NamedPort("sctp", "call-80"): 80,
}
"""Every pod has these names, unless a situation gives it others."""


def address_of(name: str, version: int) -> str:
    """Of a pod; of a node on the link between the two."""
    at = 0 if version == 4 else 1
    if name in LINK:
        return LINK[name][at]
    node = NODE_OF[name]
    return str(ip_network(NODES[node][at])[WHERE[node].index(name) + 2])


@dataclass(frozen=True)
class Situation:
    """What is in force; labels are given where they are not as from the beginning."""

    policies: tuple[Mapping[str, Any], ...] = ()
    pods: Mapping[str, Labels] | None = None
    namespaces: Mapping[str, Labels] | None = None
    gone: tuple[str, ...] = ()
    """Pods that the node does not know any more."""
    ports: Mapping[str, Ports] | None = None
    """Names of ports of pods that have others than the rest."""
    hosts: Mapping[str, str] | None = None
    """Pods besides, each with the network of a node."""


class PolicyMatrix:
    """Closed by who makes it."""

    def __init__(self, make: NetnsFactory) -> None:
        self._undo = ExitStack()
        self.nodes = {
            name: NodeBed(make, replace(STATE, segments=tuple(map(ip_network, segments))))
            for name, segments in NODES.items()
        }
        self.netns: dict[str, Netns] = {}
        """Of pods, and of nodes."""
        for name, bed in self.nodes.items():
            self._undo.callback(bed.close)
            self.netns[name] = bed.node
            for number, pod in enumerate(WHERE[name], 2):
                self.netns[pod] = bed.pod(pod.replace("/", "-"), number).netns
                for path in ("ipv4/icmp_echo_ignore_all", "ipv6/icmp/echo_ignore_all"):
                    self.netns[pod].sysctl(f"net/{path}", "1")
        self._connect()
        self.kernels: dict[str, PolicyKernel] = {}
        for name, bed in self.nodes.items():
            with bed.node.entered():
                self.kernels[name] = PolicyKernel()
            self._undo.callback(self.kernels[name].close)
        self.tables: dict[str, PolicyTables] = dict.fromkeys(self.nodes, NOTHING)
        self._tags = itertools.cycle(range(20000, 60000))
        self._sockets: dict[tuple[str, int, Protocol], socket.socket] = {}

    def close(self) -> None:
        for each in self._sockets.values():
            each.close()
        self._undo.close()

    def _connect(self) -> None:
        a, b = (self.nodes[name].node for name in ("A", "B"))
        connect_namespaces(a, "up0", b, "up0")
        for name, other in (("A", "B"), ("B", "A")):
            node = self.nodes[name].node
            node.sysctl("net/ipv6/conf/up0/accept_dad", "0")
            node.ip(*(f"address add {each}/{24 if '.' in each else 64} dev up0"
                      for each in LINK[name]))  # fmt: skip
            for segment, via in zip(NODES[other], LINK[other], strict=True):
                # Where the overlay would put them: before the barrier that keeps pods' packets in.
                option = "-6 " if ":" in via else ""
                node.ip(f"{option}route add {segment} via {via} table {ROUTE_TABLE}")
        # Each packet of a test is sent once: who has the next hop's address is known before.
        for node, others in ((a, LINK["B"]), (b, LINK["A"])):
            for address in others:
                wait_until(partial(pings, node.name, address, within_s=1), f"{address} answers")

    # What holds

    def world(self, now: Situation) -> PolicyWorld:
        parsed = [parse_policy(each) for each in now.policies]
        namespaces = {name: {"ns": name} for name in "xyz"} | dict(now.namespaces or {})
        pods = [self._pod(name, now) for name in PODS if name not in now.gone]
        pods += [_host(name, node) for name, node in (now.hosts or {}).items()]
        return PolicyWorld(
            {each.key: each for each in parsed}, namespaces, {each.key: each for each in pods}
        )

    def _pod(self, name: str, now: Situation) -> PolicyPod:
        namespace, _, pod = name.partition("/")
        labels = (now.pods or {}).get(name, {"pod": pod})
        addresses = tuple(ip_address(address_of(name, version)) for version in (4, 6))
        return PolicyPod(Key(namespace, pod), addresses, labels, (now.ports or {}).get(name, PORTS))

    def enforce(self, now: Situation) -> None:
        """By the difference to what there was, on both nodes."""
        world = self.world(now)
        for node, bed in self.nodes.items():
            mine = [pod for pod in world.pods.values() if _node_of(pod, now) == node]
            after = plan_tables(compile_sides(world, mine), self._ports(node, mine))
            with bed.node.entered():
                self.kernels[node].change(self.tables[node], after)
                assert self.kernels[node].read() == after, "the kernel lists what was planned"
            self.tables[node] = after

    def _ports(self, node: str, pods: Iterable[PolicyPod]) -> list[LocalPort]:
        bed = self.nodes[node]
        mac = bed.kernel.bridges(["limpet0"])["limpet0"][1]
        found = []
        for pod in pods:
            if pod.host_network:  # nobody makes it an interface
                found.append(LocalPort(pod.key, "", "", "", pod.addresses))
                continue
            link = bed.pods[str(pod.key).replace("/", "-")].attachment.link
            found.append(LocalPort(pod.key, link.host_ifname, link.mac, mac, pod.addresses))
        return found

    # What passes

    def check(
        self,
        is_open: Callable[[str, str], bool],
        protocol: Protocol,
        port: int,
        sources: Sequence[str] = PODS,
        targets: Sequence[str] = PODS,
    ) -> None:
        """The first packet of a connection from each of the sources to each of the targets passes
        just if it shall, of IPv4 and of IPv6. Raises: AssertionError."""
        pairs = [(one, other) for one in sources for other in targets if one != other]
        opened = {pair for pair in pairs if is_open(*pair)}
        for version in (4, 6):
            tag = next(self._tags)
            receivers = {name: self._socket(name, version, protocol) for name in targets}
            names = {
                (target, self._seen_as(source, target, version)): (source, target)
                for source, target in pairs
            }
            assert len(names) == len(pairs), "who is seen with one address is asked by itself"
            before = self._dropped()
            for source, target in pairs:
                ends = (self._source(source, target, version), address_of(target, version))
                sender = self._socket(source, version, protocol)
                sender.sendto(packet_of(protocol, ends, tag, port), (ends[1], 0))
            seen: set[tuple[str, str]] = set()

            def is_known(
                receivers: Mapping[str, socket.socket] = receivers,
                names: Mapping[tuple[str, str], tuple[str, str]] = names,
                seen: set[tuple[str, str]] = seen,
                version: int = version,
                tag: int = tag,
                before: int = before,
            ) -> bool:
                for target, receiver in receivers.items():
                    found = _senders(receiver, version, protocol, tag)
                    seen |= {names.get((target, each), (each, target)) for each in found}
                dropped = self._dropped() - before
                return opened <= seen and dropped >= len(pairs) - len(opened)

            try:
                wait_until(is_known)
            finally:
                wrong = {"passes": sorted(seen - opened), "is lost": sorted(opened - seen)}
                assert not any(wrong.values()), (f"IPv{version}", protocol, port, wrong)

    def _dropped(self) -> int:
        total = 0
        for name, bed in self.nodes.items():
            with bed.node.entered():
                total += self.kernels[name].dropped_packets()
        return total

    def _source(self, name: str, target: str, version: int) -> str:
        """A node speaks to its own pods from their gateway's address."""
        if name in self.nodes and NODE_OF.get(target) == name:
            return str(ip_network(NODES[name][0 if version == 4 else 1])[1])
        return address_of(name, version)

    def _seen_as(self, name: str, target: str, version: int) -> str:
        """What a pod sends to another node is turned into its own node's."""
        is_turned = target in self.nodes and NODE_OF.get(name, target) != target
        return self._source(NODE_OF[name] if is_turned else name, target, version)

    def _socket(self, name: str, version: int, protocol: Protocol) -> socket.socket:
        at = (name, version, protocol)
        if at not in self._sockets:
            self._sockets[at] = raw_socket(self.netns[name], version, protocol)
            self._sockets[at].setblocking(False)
        return self._sockets[at]


def _host(name: str, node: str) -> PolicyPod:
    """A pod with the node's network: with its addresses, and with labels and ports as others."""
    namespace, _, pod = name.partition("/")
    addresses = tuple(map(ip_address, LINK[node]))
    return PolicyPod(Key(namespace, pod), addresses, {"pod": pod}, PORTS, host_network=True)


def _node_of(pod: PolicyPod, now: Situation) -> str:
    return (NODE_OF | dict(now.hosts or {}))[str(pod.key)]


def _senders(receiver: socket.socket, version: int, protocol: Protocol, tag: int) -> set[str]:
    """Whose packets with the tag have come."""
    found: set[str] = set()
    while True:
        try:
            packet, address = receiver.recvfrom(2048)
        except BlockingIOError:
            return found
        head = packet[(packet[0] & 15) * 4 :] if version == 4 else packet
        if struct.unpack_from(">H", head, 4 if protocol == "ICMP" else 0)[0] == tag:
            found.add(address[0])
