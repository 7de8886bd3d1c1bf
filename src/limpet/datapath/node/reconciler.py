"""The loop that keeps the node right: observe, plan, diff, apply."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable

import structlog

from limpet.base import faults
from limpet.base.addresses import Prefix
from limpet.base.errors import CniCode, CniError, KernelError, LimpetError
from limpet.base.node_state import NodeState
from limpet.base.settings import PodSettings
from limpet.datapath.node.announcer import Announcer
from limpet.datapath.node.apply import NodeKernel
from limpet.datapath.node.attachment import Attachment, BridgeSpec
from limpet.datapath.node.attachments import Attachments
from limpet.datapath.node.diff import Change, DropPort, MissingPort, PutBridge, PutPort, diff_node
from limpet.datapath.node.forward import HandleNftables, ensure_forward_accept
from limpet.datapath.node.plan import NodeFacts, plan_node
from limpet.datapath.node.pods import create_pod_interface
from limpet.datapath.node.state import NodePlan
from limpet.datapath.round_totals import RoundTotals
from limpet.linux.namespaces import Namespace, NamespaceId, namespace_id

_log = structlog.get_logger("round")


class NodeReconciler:
    """Runs rounds on the event loop's thread; a verb may ask for one and wait for it."""

    def __init__(
        self,
        settings: PodSettings,
        *,
        kernel: NodeKernel,
        attachments: Attachments,
        announcer: Announcer,
        is_held: Callable[[str], bool],
        release: Callable[[Attachment], None],
        retired: Callable[[], None],
        before_sysctl: Callable[[str], None],
    ) -> None:
        """`is_held`: a host end belongs to a pod of the record. `release`: a pod is gone for good.

        `retired`: a host end was put aside. `before_sysctl`: a setting of the node is about to
        change.
        """
        self.settings = settings
        self.state = NodeState(segments=settings.segments, cluster_cidrs=settings.cluster_cidrs)
        self.look_beside: Callable[[str], None] | None = None
        self.look_at_filter: Callable[[str], None] | None = None
        """What is kept beside pods in nftables may be other than planned."""
        """Looks at what is kept beside pods, taking nothing for granted."""
        self._kernel = kernel
        self._attachments = attachments
        self._announcer = announcer
        self._is_held = is_held
        self._release = release
        self._retired = retired
        self._before_sysctl = before_sysctl
        self._specs: dict[str, BridgeSpec] = {}
        """What each network asked for last; it may have no pod now."""
        self._bridges: dict[str, tuple[int, str]] = {}
        """ifindex and MAC by name, as of the last round."""
        self._host_ports_expected = False
        self._forward_nft = HandleNftables() if settings.allow_forward else None
        self._running = False
        self._again = ""
        """Why another round is to follow the one that runs."""
        self.want = NodePlan()
        self.failures: list[str] = []
        self.troubles: list[str] = []
        """Of the failures those that concern more than one pod."""
        self.changes = 0
        self.took_ms = 0.0
        self.totals = RoundTotals()
        self.uplink_mtu_bytes = 1500

    def follow(self, state: NodeState, why: str = "") -> None:
        """The node is this from now on; a round if that is new and there is a reason to tell."""
        if state != self.state:
            self.state = state
            if why:
                self.run(why)

    def ensure_bridge(self, network: str, spec: BridgeSpec) -> int:
        """The ifindex of the network's bridge, after a round if what it asks for is new.

        Raises: KernelError, CniError; then nothing is kept of the network.
        """
        if self._specs.get(network) != spec:
            self._make_way(network, spec)
            self._specs[network] = spec
            self.run(f"bridge {spec.ifname} is needed")
        found = self._bridges.get(spec.ifname)
        if found is not None:
            return found[0]
        try:
            return self._kernel.bridge_ifindex(spec.ifname)
        except KernelError as error:
            del self._specs[network]
            if error.errno != errno.ENODEV or not self.failures:
                raise
            raise KernelError("make", error.what, error.errno, self.failures[0]) from error

    def _make_way(self, network: str, spec: BridgeSpec) -> None:
        """A prefix is on one bridge: the node has one route to it.

        It leaves another one when the last pod there is gone. Raises: CniError (7) until then.
        """
        for pod in self._attachments:
            if pod.bridge is not None and (shared := _shared(pod.bridge, spec)):
                raise CniError(
                    CniCode.INVALID_NETWORK_CONFIG,
                    f"network {network}: {shared} cannot be on bridge {spec.ifname}, since pods of "
                    f"network {pod.network} have it on bridge {pod.bridge.ifname}",
                    f"delete those pods first (one is container {pod.holder.container_id}), "
                    "or give the network that bridge, or another subnet",
                )
        self._specs = {name: old for name, old in self._specs.items() if not _shared(old, spec)}

    def expect_host_ports(self) -> None:
        """The first hostPort brings its chains, and lets packets from 127.0.0.1 reach pods."""
        if not self._host_ports_expected:
            self._host_ports_expected = True
            self.run("the first hostPort")

    def bridge_ifindexes(self) -> set[int]:
        """As of the last round."""
        return {ifindex for ifindex, _mac in self._bridges.values()}

    def bridge_mac(self, ifname: str) -> str:
        """As of the last round; empty when there was no such bridge."""
        return self._bridges.get(ifname, (0, ""))[1]

    def run(self, why: str) -> None:
        """One round; raises nothing. A failure is reported and met again in the next one."""
        if self._running:  # asked for by what the round does: its plan is that of before
            self._again = why
            return
        self._running = True
        try:
            while why:
                self._again = ""
                self._run(why)
                why = self._again
        finally:
            self._running = False

    def look_at_everything(self, why: str) -> None:
        """A round here and one of what is kept beside pods."""
        self.run(why)
        if self.look_beside is not None:
            self.look_beside(why)

    def nftables_changed(self, why: str) -> None:
        """A round here; beside pods only nftables is looked at: others may change theirs often."""
        self.run(why)
        if self.look_at_filter is not None:
            self.look_at_filter(why)

    def _run(self, why: str) -> None:
        started_s = time.monotonic()
        try:
            changes, failures, troubles = self._round()
        except LimpetError as error:
            changes, failures, troubles = [], [str(error)], [str(error)]
        except Exception as error:  # noqa: BLE001 - whoever asks for a round goes on without it
            faults.note("round for pods", error)
            words = f"internal error: {error!r} (see the agent's log)"
            changes, failures, troubles = [], [words], [words]
        self.failures, self.troubles = failures, troubles
        if self.look_at_filter is not None and any(isinstance(each, PutBridge) for each in changes):
            self.look_at_filter("a bridge of pods is new")
        self.changes = len(changes)
        self.took_ms = (time.monotonic() - started_s) * 1e3
        self.totals.add(changes=len(changes), failures=len(failures), took_ms=self.took_ms)
        fields = {"loop": "pods", "changes": len(changes), "failed": len(failures), "why": why}
        fields["took_ms"] = f"{self.took_ms:.1f}"
        if failures:
            _log.warning("round", **fields, error=failures[0])
        elif changes:
            _log.info("round", **fields)
        else:
            _log.debug("round", **fields)

    def _round(self) -> tuple[list[Change], list[str], list[str]]:
        """Changes, failures, troubles."""
        kernel = self._kernel
        self.uplink_mtu_bytes = (
            self.state.underlay_mtu_bytes or kernel.uplink_mtu_bytes() or self.uplink_mtu_bytes
        )
        specs = self._specs.values()
        wanted_bridges = {self.settings.bridge, *(spec.ifname for spec in specs)}
        wanted_bridges |= {a.bridge.ifname for a in self._attachments if a.bridge is not None}
        own_bridges = kernel.own_bridges(wanted_bridges)
        no_bridges = kernel.no_bridges(wanted_bridges)
        facts = NodeFacts(
            foreign_bridges=kernel.foreign_bridges(wanted_bridges),
            own_bridge_exists=self.state.in_cluster or self.settings.bridge in own_bridges,
            own_bridges=own_bridges,
            no_bridges=no_bridges.keys(),
            routes_localhost=kernel.routes_localhost(wanted_bridges),
            advertised_uplinks=kernel.advertised_uplinks(),
        )
        self.want = plan_node(
            self.settings.bridge,
            self.state,
            self._attachments,
            specs,
            facts,
            localhost_ports=self._host_ports_expected,
        )
        have = kernel.observe(self.want)
        changes = [
            change
            for change in diff_node(self.want, have)
            if not (isinstance(change, DropPort) and self._is_held(change.ifname))
        ]
        failures = list(no_bridges.values())
        troubles = [why for ifname, why in no_bridges.items() if ifname == self.settings.bridge]
        for change in changes:
            try:
                self._apply(change)
            except LimpetError as error:
                failures.append(str(error))
                if not isinstance(change, PutPort | MissingPort | DropPort):
                    troubles.append(str(error))
        if self._forward_nft is not None:
            try:
                if ensure_forward_accept(self._forward_nft, self._forwarding_links()):
                    _log.info("another's FORWARD chain drops: let our links through")
            except LimpetError as error:
                failures.append(str(error))
                troubles.append(str(error))
        if changes or not self._bridges:
            self._bridges = kernel.bridges(self.want.bridges)
        return changes, failures, troubles

    def _forwarding_links(self) -> set[str]:
        """By which all comes and goes that other programs may not drop."""
        links = set(self.want.bridges)
        if self.state.behind.here:
            # Between them and another network no bridge of ours is passed.
            links |= self.state.overlay_links
        return links

    def _apply(self, change: Change) -> None:
        if isinstance(change, MissingPort):
            self._restore(change.ifname)
            return
        self._kernel.apply(change, before_sysctl=self._before_sysctl)
        if isinstance(change, DropPort):
            self._retired()

    def _restore(self, host_ifname: str) -> None:
        """A pod's interface is gone: made anew if the pod is there, else the pod is gone too."""
        attachment = next((a for a in self._attachments if a.host_ifname == host_ifname), None)
        if attachment is None:
            return  # it has gone since the round was planned
        where = NamespaceId(attachment.netns_device, attachment.netns_inode)
        if attachment.bridge is None or namespace_id(attachment.netns) != where:
            self._release(attachment)
            return
        with Namespace(attachment.netns) as netns:
            create_pod_interface(
                self._kernel.route,
                attachment,
                bridge_ifindex=self._kernel.bridge_ifindex(attachment.bridge.ifname),
                netns=netns,
            )
        self._announcer.announce(attachment, attachment.bridge.ifname)
        _log.info("a pod's interface was made anew", pod=attachment.pod_name, ifname=host_ifname)


def _shared(one: BridgeSpec, other: BridgeSpec) -> Prefix | None:
    """A prefix that two different bridges would hold the gateway of."""
    if one.ifname == other.ifname:
        return None
    prefixes = {gateway.network for gateway in one.gateways}
    return next((each.network for each in other.gateways if each.network in prefixes), None)
