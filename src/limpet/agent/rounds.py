"""The loop that keeps the node right: observe, plan, diff, apply."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from limpet.agent.attachments import Attachments
from limpet.kernel.forward import HandleNftables, ensure_forward_accept
from limpet.kernel.namespaces import Namespace, NamespaceId, namespace_id
from limpet.kernel.node import NodeKernel
from limpet.kernel.pods import Announcer, create_pod_interface
from limpet.model.attachment import Attachment, BridgeSpec
from limpet.model.datapath import NodePlan
from limpet.model.errors import LimpetError
from limpet.model.settings import Settings
from limpet.plan.diff import Change, DropPort, MissingPort, diff_node
from limpet.plan.node import NodeFacts, plan_node

_log = structlog.get_logger("round")


class Rounds:
    """Runs rounds on the event loop's thread; a verb may ask for one and wait for it."""

    def __init__(
        self,
        settings: Settings,
        *,
        kernel: NodeKernel,
        attachments: Attachments,
        announcer: Announcer,
        is_held: Callable[[str], bool],
        release: Callable[[Attachment], None],
        before_sysctl: Callable[[str], None],
    ) -> None:
        """`is_held`: a host end belongs to a pod of the record. `release`: a pod is gone for good.

        `before_sysctl`: a setting of the node is about to change.
        """
        self._settings = settings
        self._kernel = kernel
        self._attachments = attachments
        self._announcer = announcer
        self._is_held = is_held
        self._release = release
        self._before_sysctl = before_sysctl
        self._specs: dict[BridgeSpec, None] = {}
        """Bridges that were asked for, by networks that may have no pod now."""
        self._bridges: dict[str, tuple[int, str]] = {}
        """ifindex and MAC by name, as of the last round."""
        self._host_ports_expected = False
        self._forward_nft = HandleNftables() if settings.allow_forward else None
        self.want = NodePlan()
        self.failures: list[str] = []
        self.changes = 0
        self.took_ms = 0.0
        self.uplink_mtu_bytes = 1500

    def ensure_bridge(self, spec: BridgeSpec) -> int:
        """The bridge's ifindex, after a round if the network is new. Raises: KernelError."""
        if spec not in self._specs:
            self._specs[spec] = None
            self.run(f"bridge {spec.ifname} is needed")
        found = self._bridges.get(spec.ifname)
        return found[0] if found is not None else self._kernel.ifindex(spec.ifname)

    def expect_host_ports(self) -> None:
        """The first hostPort lets packets from 127.0.0.1 reach pods: a setting of the bridge."""
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
        """One round. A failure is reported and met again in the next one."""
        started_s = time.monotonic()
        try:
            changes, failures = self._round()
        except LimpetError as error:
            changes, failures = [], [str(error)]
        self.failures = failures
        self.changes = len(changes)
        self.took_ms = (time.monotonic() - started_s) * 1e3
        fields = {"changes": len(changes), "failed": len(failures), "why": why}
        fields["took_ms"] = f"{self.took_ms:.1f}"
        if failures:
            _log.warning("round", **fields, error=failures[0])
        elif changes:
            _log.info("round", **fields)
        else:
            _log.debug("round", **fields)

    def _round(self) -> tuple[list[Change], list[str]]:
        kernel = self._kernel
        self.uplink_mtu_bytes = kernel.uplink_mtu_bytes() or self.uplink_mtu_bytes
        wanted_bridges = {self._settings.bridge, *(spec.ifname for spec in self._specs)}
        wanted_bridges |= {a.bridge.ifname for a in self._attachments if a.bridge is not None}
        facts = NodeFacts(
            foreign_bridges=kernel.foreign_bridges(wanted_bridges),
            own_bridge_exists=kernel.has_own_bridge(self._settings.bridge),
            advertised_uplinks=kernel.advertised_uplinks(),
        )
        self.want = plan_node(
            self._settings,
            self._attachments,
            self._specs,
            facts,
            localhost_ports=self._host_ports_expected,
        )
        have = kernel.observe(self.want)
        changes = [
            change
            for change in diff_node(self.want, have)
            if not (isinstance(change, DropPort) and self._is_held(change.ifname))
        ]
        failures = []
        for change in changes:
            try:
                self._apply(change)
            except LimpetError as error:
                failures.append(str(error))
        if self._forward_nft is not None:
            try:
                if ensure_forward_accept(self._forward_nft, self.want.bridges):
                    _log.info("another's FORWARD chain drops: let our bridges through")
            except LimpetError as error:
                failures.append(str(error))
        if changes or not self._bridges:
            self._bridges = kernel.bridges(self.want.bridges)
        return changes, failures

    def _apply(self, change: Change) -> None:
        if isinstance(change, MissingPort):
            self._restore(change.ifname)
            return
        self._kernel.apply(change, before_sysctl=self._before_sysctl)

    def _restore(self, host_ifname: str) -> None:
        """A pod's interface is gone: made anew if the pod is there, else the pod is gone too."""
        attachment = next(a for a in self._attachments if a.host_ifname == host_ifname)
        where = NamespaceId(attachment.netns_device, attachment.netns_inode)
        if attachment.bridge is None or namespace_id(attachment.netns) != where:
            self._release(attachment)
            return
        with Namespace(attachment.netns) as netns:
            create_pod_interface(
                self._kernel.route,
                attachment,
                bridge_ifindex=self._kernel.ifindex(attachment.bridge.ifname),
                netns=netns,
            )
        self._announcer.announce(attachment, attachment.bridge.ifname)
        _log.info("a pod's interface was made anew", pod=attachment.pod_name, ifname=host_ifname)
