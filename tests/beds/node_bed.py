"""A node of one test: a namespace with `NodeKernel` in it, pods, and a host outside.

outside ── wan0 ═══ up0 ── node ── limpet0 ═══ eth0 of each pod
192.0.2.2          192.0.2.1       10.244.7.1, fd00:7::1
2001:db8::2        2001:db8::1
"""

from __future__ import annotations

import select
import socket
from dataclasses import dataclass, replace
from ipaddress import ip_interface, ip_network
from typing import Any

from limpet.base.addresses import Address
from limpet.base.node_state import NodeState
from limpet.base.ownership import DYING_GROUP
from limpet.base.settings import PodSettings
from limpet.cni.attachment_plan import plan_attachment, plan_network
from limpet.cni.protocol.values import CniRequest, MainConf, NetworkConf, PodWishes, Verb
from limpet.datapath.node.apply import NodeKernel
from limpet.datapath.node.diff import Change, diff_node
from limpet.datapath.node.plan import plan_node
from limpet.datapath.node.pod.attachment import Attachment, Bandwidth, BridgeSpec, HostPortMapping
from limpet.datapath.node.pod.interface import create_pod_interface
from limpet.datapath.node.state import NodePlan
from limpet.linux.namespaces import Namespace, namespace_id
from limpet.linux.netlink import link_codec
from limpet.linux.netlink.socket import Notifications, RouteSocket
from tests.beds.namespaces import Netns, NetnsFactory, connect_namespaces
from tests.waiting import PATIENCE_S

MAIN = MainConf(ip_masq=True, is_gateway=True, is_default_gateway=True)
CONF = NetworkConf("net", "1.0.0", ipam_only=False, main=MAIN)
STATE = NodeState(
    segments=(ip_network("10.244.7.0/24"), ip_network("fd00:7::/64")),
    cluster_cidrs=(ip_network("10.244.0.0/16"), ip_network("fd00::/16")),
)
NO_LIMITS = Bandwidth()
OUTSIDE = ("192.0.2.2", "2001:db8::2")
NODE = ("192.0.2.1", "2001:db8::1")
GATEWAYS = ("10.244.7.1", "fd00:7::1")


@dataclass(frozen=True)
class Pod:
    netns: Netns
    attachment: Attachment

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(str(address.ip) for address in self.attachment.addresses)


class NodeBed:
    def __init__(self, make: NetnsFactory, state: NodeState = STATE) -> None:
        self.make_netns = make
        self.state = state
        self.node = make("node")
        self.pods: dict[str, Pod] = {}
        self.specs: list[BridgeSpec] = []
        self.names_at: tuple[Address, ...] = ()
        self.changed_sysctls: list[str] = []
        with self.node.entered():
            self.kernel = NodeKernel()

    def close(self) -> None:
        self.kernel.close()

    def plan(self, *, bridge: bool = True) -> NodePlan:
        with self.node.entered():
            facts = replace(self.kernel.facts(["limpet0", "br9"]), own_bridge_exists=bridge)
        attachments = [pod.attachment for pod in self.pods.values()]
        return plan_node(
            "limpet0", self.state, attachments, self.specs, facts, names_at=self.names_at
        )

    def pending(self) -> list[Change]:
        """What a round would change now."""
        with self.node.entered():
            want = self.plan()
            return diff_node(want, self.kernel.observe(want))

    def settle(self) -> list[Change]:
        """One round; every change has to work."""
        with self.node.entered():
            changes = self.pending()
            for change in changes:
                self.kernel.apply(change, before_sysctl=self.changed_sysctls.append)
            return changes

    def outside(self) -> Netns:
        """A host beyond the node's uplink, which is the node's default gateway."""
        outside = self.make_netns("out")
        connect_namespaces(self.node, "up0", outside, "wan0")
        self.node.ip(
            "address add 192.0.2.1/24 dev up0",
            "address add 2001:db8::1/64 dev up0 nodad",
            "route add default via 192.0.2.2",
            "route add default via 2001:db8::2",
        )
        outside.ip("address add 192.0.2.2/24 dev wan0", "address add 2001:db8::2/64 dev wan0 nodad")
        return outside

    def attachment(
        self,
        netns: Netns,
        name: str,
        number: int,
        *,
        conf: NetworkConf = CONF,
        ifname: str = "eth0",
        **wishes: Any,
    ) -> Attachment:
        """As the agent plans it, with address `number` of each segment."""
        request = CniRequest(
            Verb.ADD,
            conf,
            container_id=name,
            ifname=ifname,
            netns=netns.path,
            pod_name=name,
            wishes=PodWishes(**wishes),
        )
        where = namespace_id(netns.path)
        assert where is not None
        network = plan_network(conf, PodSettings(), self.state, uplink_mtu_bytes=1500)
        subnets = [ranges[0].subnet for ranges in network.range_sets]
        return plan_attachment(
            request,
            network,
            addresses=tuple(ip_interface((subnet[number], subnet.prefixlen)) for subnet in subnets),
            gateways=tuple(ranges[0].gateway for ranges in network.range_sets),
            netns_id=where,
        )

    def create(self, attachment: Attachment) -> None:
        """Makes the interface. Raises: KernelError."""
        assert attachment.bridge is not None
        with self.node.entered(), Namespace(attachment.netns.path) as netns:
            create_pod_interface(
                self.kernel.route,
                attachment,
                bridge_ifindex=self.kernel.ifindex(attachment.bridge.ifname),
                netns=netns,
            )

    def pod(
        self,
        name: str,
        number: int,
        *,
        conf: NetworkConf = CONF,
        ports: tuple[HostPortMapping, ...] = (),
        bandwidth: Bandwidth = NO_LIMITS,
    ) -> Pod:
        """A pod with its interface, and the node as it should be with it."""
        netns = self.make_netns(name)
        attachment = self.attachment(
            netns, name, number, conf=conf, port_mappings=ports, bandwidth=bandwidth
        )
        self.settle()
        self.create(attachment)
        self.pods[name] = Pod(netns, attachment)
        self.settle()
        return self.pods[name]

    def remove_netns(self, netns: Netns) -> None:
        """The namespace is gone when this returns, with the host ends of what was in it."""
        with self.node.entered():
            ends = Notifications(socket.NETLINK_ROUTE, [1])  # RTNLGRP_LINK
        before = self.links()
        self.make_netns.remove(netns)
        poll = select.poll()
        poll.register(ends.fileno(), select.POLLIN)
        while self.links() == before:
            assert poll.poll(1000 * PATIENCE_S), "no link has gone"
            list(ends.drain())
        ends.close()

    def reap(self) -> None:
        self.kernel.route.apply(link_codec.delete_link_group(DYING_GROUP))

    def links(self) -> set[str]:
        return set(self.kernel.route.links()) - {"lo"}

    def links_of(self, netns: Netns) -> set[str]:
        with netns.entered(), RouteSocket() as inside:
            return set(inside.links()) - {"lo"}
