"""The part of the loop for this node's pods: bridges, ports, routes, rules, sysctls, nftables."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeGuard

from limpet.base.errors import KernelError, LimpetError
from limpet.base.node_state import NodeState
from limpet.base.ownership import OVERLAY_PROTOCOL, ROUTE_TABLE, RULE_PRIORITY
from limpet.base.settings import PodSettings
from limpet.datapath.change import Drop, Put
from limpet.datapath.event import BridgeMade
from limpet.datapath.loop import Account, Loop, round_failure
from limpet.datapath.node.apply import NodeKernel
from limpet.datapath.node.bridges import Bridges
from limpet.datapath.node.diff import Change, MissingPort, diff_node
from limpet.datapath.node.forward_keeper import ForwardKeeper
from limpet.datapath.node.owned import owned_by_node
from limpet.datapath.node.plan import bridges_of, plan_by
from limpet.datapath.node.pod.attachment import BridgeSpec
from limpet.datapath.node.pod.guards import PodGuards
from limpet.datapath.node.pod.keeper import PodKeeper
from limpet.datapath.node.state import NodePlan, Port
from limpet.datapath.node.uplinks import FORWARDING
from limpet.datapath.part import Part
from limpet.linux.netlink import address_codec, link_codec, route_codec
from limpet.linux.netlink import codec as wire
from limpet.linux.owned import Owned


class Originals(Protocol):
    """What settings of the node were before us."""

    def keep(self, sysctl: str) -> None:
        """It is about to change. Raises: LimpetError; then it must not."""

    def was(self, sysctl: str) -> str | None:
        """None: it has not been changed."""


class NodePart(Part[NodePlan, Change]):
    """Runs on the event loop's thread; a verb may ask for a round and wait for it."""

    name = "node"
    groups = (1, 5, 9, 7, 11, 8, 19)
    """RTNLGRP_LINK, IPV4_IFADDR, IPV6_IFADDR, IPV4_ROUTE, IPV6_ROUTE, IPV4_RULE, IPV6_RULE.

    Source: include/uapi/linux/rtnetlink.h, enum rtnetlink_groups.
    """
    nftables = True

    def __init__(
        self,
        loop: Loop,
        settings: PodSettings,
        *,
        kernel: NodeKernel,
        pods: PodKeeper,
        guards: PodGuards,
        originals: Originals,
        bridges: Bridges | None = None,
        forward: ForwardKeeper | None = None,
    ) -> None:
        """`forward`: None: others' FORWARD chains are theirs alone."""
        self.settings = settings
        self.node = NodeState(segments=settings.segments, cluster_cidrs=settings.cluster_cidrs)
        self.want = NodePlan()
        self.uplink_mtu_bytes = 1500
        self.guards = guards
        self.forward = forward
        self._loop = loop
        self._kernel = kernel
        self._pods = pods
        self._originals = originals
        self._bridges = bridges or Bridges()
        self._troubles: list[str] = []

    @staticmethod
    def owned(run_dir: Path) -> Owned:
        return owned_by_node()

    async def settled(self) -> None:
        """Returns when also others' FORWARD chains are as the last round wants them."""
        if self.forward is not None:
            await self.forward.settled()

    def close(self) -> None:
        """What is in the kernel stays."""
        if self.forward is not None:
            self.forward.close()

    @property
    def account(self) -> Account:
        return self._loop.account(self)

    @property
    def accounts(self) -> Mapping[str, Account]:
        """Accounts of all parts of the loop, by name."""
        return self._loop.accounts

    @property
    def troubles(self) -> list[str]:
        """Failures that concern more than one pod."""
        return [*self._troubles, *self._blocked()]

    @property
    def failures(self) -> list[str]:
        return [*self.account.failures, *self._blocked()]

    def _blocked(self) -> list[str]:
        return [self.forward.trouble] if self.forward is not None and self.forward.trouble else []

    def pod_namespaces(self) -> list[str]:
        """Paths of the network namespaces of this node's pods."""
        return [each.netns.path for each in self._pods]

    # What verbs ask for

    def run(self, why: str) -> None:
        """One round; raises nothing. A failure is reported and met again in the next one."""
        self._loop.run(why, self)

    def follow(self, node: NodeState, why: str = "") -> None:
        """The node is this from now on; a round if that is new and there is a reason to tell."""
        if node != self.node:
            self.node = node
            if why:
                self.run(why)

    def has_tables(self, tables: Iterable[tuple[str, str]]) -> bool:
        """One of them, by family and name, is in nftables, whoever's. Raises: KernelError."""
        return self._kernel.has_tables(tables)

    def raise_sysctl(self, path: str, least: int) -> None:
        """A setting of the node that others than its pods need is no less from now on. Raises:
        LimpetError."""
        self._kernel.raise_sysctl(path, least, before_sysctl=self._originals.keep)

    def ensure_bridge(self, network: str, spec: BridgeSpec) -> int:
        """The ifindex of the network's bridge, after a round if what it asks for is new.

        Raises: KernelError, CniError; then nothing is kept of the network.
        """
        if self._bridges.ask(network, spec, self._pods):
            self.run(f"bridge {spec.ifname} is needed")
        found = self._bridges.found.get(spec.ifname)
        if found is not None:
            return found[0]
        try:
            return self._kernel.bridge_ifindex(spec.ifname)
        except KernelError as error:
            del self._bridges.specs[network]
            failures = self.account.failures
            if error.errno != errno.ENODEV or not failures:
                raise
            raise KernelError("make", error.what, error.errno, failures[0]) from error

    def expect_host_ports(self) -> None:
        """The first hostPort brings its chains, and lets packets from 127.0.0.1 reach pods."""
        if not self._bridges.host_ports_expected:
            self._bridges.host_ports_expected = True
            self.run("the first hostPort")

    def bridge_mac(self, ifname: str) -> str:
        """As of the last round; empty when there was no such bridge."""
        return self._bridges.found.get(ifname, (0, ""))[1]

    # A round

    def plan(self) -> NodePlan:
        basis = self._bridges.basis(self.node)
        wanted = bridges_of(self.settings.bridge, basis, self._pods)
        own_forwarding = self._originals.was(FORWARDING) == "0"
        facts = self._kernel.facts(wanted, own_forwarding=own_forwarding)
        self.uplink_mtu_bytes = (
            self.node.underlay_mtu_bytes or facts.uplink_mtu_bytes or self.uplink_mtu_bytes
        )
        self._bridges.unusable = facts.no_bridges
        self.want = plan_by(self.settings.bridge, basis, self._pods, facts)
        return self.want

    def state(self, want: NodePlan) -> NodePlan:
        own = self.settings.bridge
        self._troubles = [why for ifname, why in self._bridges.unusable.items() if ifname == own]
        return self._kernel.observe(want)

    def diff(self, want: NodePlan, have: NodePlan) -> list[Change]:
        return [
            change
            for change in diff_node(want, have)
            if not (_is_drop_of_port(change) and self._pods.is_held(change.what.ifname))
            and not (isinstance(change, MissingPort) and self._is_paused(change.ifname))
        ]

    def _is_paused(self, ifname: str) -> bool:
        """The pod's interface is left away; then a round comes when that is over."""
        pause_s = self._pods.pause_s(ifname, time.monotonic())
        if pause_s:
            self._loop.wake(self, f"link {ifname} is gone", after_s=pause_s)
        return pause_s > 0

    def apply(self, changes: Sequence[Change]) -> list[str]:
        failures = [*self._bridges.unusable.values()]
        self._bridges.unusable = {}
        for change in changes:
            try:
                self._apply(change)
            except LimpetError as error:
                failures.append(str(error))
                if not _is_of_one_pod(change):
                    self._troubles.append(str(error))
        if self._bridges.look(self._kernel.bridges(self.want.bridges)):
            self._loop.tell(BridgeMade())
        if self.forward is not None:
            self.forward.look(self._forwarding_links())
        return failures

    def _forwarding_links(self) -> set[str]:
        """By which all comes and goes that other programs may not drop."""
        links = set(self.want.bridges)
        if self.node.behind.here:
            # Between them and another network no bridge of ours is passed.
            links |= self.node.overlay_links
        return links

    def _apply(self, change: Change) -> None:
        if isinstance(change, MissingPort):
            self._pods.restore(self._kernel, change.ifname, time.monotonic())
            return
        self._kernel.apply(change, before_sysctl=self._originals.keep)
        if _is_drop_of_port(change):
            self._pods.retired()

    def broke_off(self, error: Exception) -> None:
        self._troubles = [round_failure(error)]

    # Notifications. Nearly all are echoes of our own work: they are told by their header.

    def hear(self, message: wire.Message) -> None:
        if why := self._why(message):
            self._loop.damaged(self, why)

    def _why(self, message: wire.Message) -> str:
        if message.type in (wire.RTM_NEWLINK, wire.RTM_DELLINK):
            come = self._kernel.uplinks.hear(message)
            if come and FORWARDING in self.want.sysctls:
                # Within the second that the kernel takes before it asks the link's routers.
                return f"link {come} has come up"
        match message.type:
            case wire.RTM_DELLINK:
                # Of family bridge: the link has left its bridge.
                return self._if_ours(link_codec.parse_link(message).ifname, "gone")
            case wire.RTM_NEWLINK:
                if link_codec.link_is_down(message):
                    return self._if_ours(link_codec.parse_link(message).ifname, "down")
                if link_codec.link_ifindex(message) in self._bridges.ifindexes():
                    link = link_codec.parse_link(message)
                    if link.mac not in ("", self.bridge_mac(link.ifname)):
                        return f"bridge {link.ifname} has another MAC"
            case wire.RTM_DELADDR:
                if address_codec.address_ifindex(message) in self._bridges.ifindexes():
                    return "an address of a bridge is gone"
            case wire.RTM_DELROUTE:
                ours = route_codec.is_of_large_table(message)
                ours = ours and route_codec.route_protocol(message) != OVERLAY_PROTOCOL
                if ours and route_codec.parse_route(message).table == ROUTE_TABLE:
                    return "a route is gone"
            case wire.RTM_DELRULE:
                if route_codec.parse_rule(message).priority == RULE_PRIORITY:
                    return "a rule is gone"
        return ""

    def _if_ours(self, ifname: str, what: str) -> str:
        ours = ifname in self.want.bridges or self._pods.has(ifname)
        return f"link {ifname} is {what}" if ours else ""


def _is_drop_of_port(change: Change) -> TypeGuard[Drop[Port]]:
    return isinstance(change, Drop) and isinstance(change.what, Port)


def _is_of_one_pod(change: Change) -> bool:
    match change:
        case MissingPort() | Put(Port()) | Drop(Port()):
            return True
    return False
