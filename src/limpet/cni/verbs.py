"""The node's verbs: ADD, DEL, CHECK, GC, STATUS, over one state.

Between two awaits a verb leaves memory, kernel and /run agreeing with each other; all verbs run on
the event loop's thread, so nothing else sees the states between. What a verb says is on disk before
it answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack

import structlog

from limpet.base.addresses import Address
from limpet.base.errors import CniCode, CniError, KernelError, LimpetError, StorageError
from limpet.base.node_state import NodeState
from limpet.base.settings import PodSettings
from limpet.cni.attachment_plan import (
    PlannedNetwork,
    check_allowed,
    merge_results,
    plan_attachment,
    plan_network,
    plan_result,
)
from limpet.cni.host_ports import HostPorts
from limpet.cni.interfaces import PodInterfaces
from limpet.cni.ledgers import Ledgers, NamespacesSeen, NotLookedYet
from limpet.cni.protocol.values import CniRequest, CniResult, Dns, NetworkConf
from limpet.cni.resolv_conf import read_dns
from limpet.cni.turns import KeyTurns
from limpet.datapath.event import PodsChanged
from limpet.datapath.node.apply import NodeKernel
from limpet.datapath.node.part import NodePart
from limpet.datapath.node.pod.announcer import Announcer
from limpet.datapath.node.pod.attachment import Attachment
from limpet.datapath.node.pod.attachments import Attachments
from limpet.datapath.node.pod.reaper import Reaper
from limpet.ipam.hostlocal import UNKNOWN_HOLDER
from limpet.ipam.leases import Holder
from limpet.ipam.ledger import Ledger
from limpet.linux.namespaces import Namespace, namespace_id, own_namespace_id

_log = structlog.get_logger("node")

_NO_PODS = (
    "this node attaches no pods",
    "the configuration of Limpet's agent has cni = false; pods are another network's here "
    "(is Limpet's own CNI configuration still in the runtime's folder? Remove it)",
)
"""What, and why with what to do."""


class Node:
    """One node. Verbs raise CniError, AddressError, KernelError or StorageError."""

    def __init__(
        self,
        *,
        kernel: NodeKernel,
        ledgers: Ledgers,
        attachments: Attachments,
        reaper: Reaper,
        announcer: Announcer,
        node_part: NodePart,
        tell: Callable[[PodsChanged], None],
    ) -> None:
        """Tells PodsChanged."""
        self.kernel = kernel
        self.ledgers = ledgers
        self.attachments = attachments
        self.reaper = reaper
        self.announcer = announcer
        self.node_part = node_part
        self._tell = tell
        self._interfaces = PodInterfaces(kernel.route, reaper, node_part)
        self._host_ports = HostPorts(kernel.nft, attachments, node_part)
        self._turns = KeyTurns()
        self._last_network: tuple[tuple[NetworkConf, int, NodeState], PlannedNetwork] | None = None
        self.unknown_keys: dict[str, tuple[str, ...]] = {}
        """Keys of a network's configuration that nobody knows, for doctor."""

    @property
    def settings(self) -> PodSettings:
        return self.node_part.settings

    @property
    def state(self) -> NodeState:
        """As of now: segments come and go with the node's grant."""
        return self.node_part.node

    # ADD.

    async def add(self, request: CniRequest, *, attempt: int) -> CniResult:
        """Gives the pod its interface and addresses.

        `attempt` > 0: the shim asks again since the agent went away; what the first try did is then
        answered, where otherwise the same request twice is an error.
        """
        if not self.settings.cni:
            raise CniError(CniCode.INVALID_NETWORK_CONFIG, *_NO_PODS)
        async with self._turns.of((request.conf.name, request.holder)):
            self._note_unknown_keys(request.conf)
            dns = read_dns(request.conf)
            before = self.attachments.get(request.conf.name, request.holder)
            if before is None:
                attachment, written = await self._attach(request)
            else:
                attachment, written = await self._again(request, before, attempt=attempt)
            try:
                await _done(written)
            except StorageError:
                self._detach(attachment, netns=request.netns)
                raise
            if before is None and attachment.bridge is not None:
                # Behind the answer, which is written in this turn of the loop.
                announce = self.announcer.announce
                asyncio.get_running_loop().call_soon(announce, attachment, attachment.bridge.ifname)
            self._tell(PodsChanged())
            return self._result(request, attachment, dns)

    async def _again(
        self, request: CniRequest, before: Attachment, *, attempt: int
    ) -> tuple[Attachment, Future[None]]:
        same = namespace_id(request.netns) == before.netns.id
        if attempt and same:
            ledger = await self.ledgers.open(before.network, before.data_dir)
            return before, ledger.durable()
        raise CniError(
            CniCode.INTERFACE_EXISTS,
            f"container {request.container_id} has an interface {request.ifname} "
            f"on network {request.conf.name} already",
            f"host end {before.link.host_ifname}, made for {before.netns.path}; DEL comes first",
        )

    def _result(self, request: CniRequest, attachment: Attachment, dns: Dns) -> CniResult:
        bridge = attachment.bridge
        mac = "" if bridge is None else self.node_part.bridge_mac(bridge.ifname)
        result = plan_result(attachment, bridge_mac=mac, dns=dns)
        # A main plugin hands its own input on, and gives the pod all addresses of the answer.
        before = None if bridge is None else request.prev_result
        return merge_results(before, result)

    async def _attach(self, request: CniRequest) -> tuple[Attachment, Future[None]]:
        """The attachment as it was made, and what completes when its addresses are on the disk."""
        # What is wrong with it is said before anything is made.
        self._network(request.conf)
        check_allowed(request.wishes.allowed, self.settings)
        with _open_netns(request.netns) as netns:
            if not request.conf.ipam_only and netns.id == own_namespace_id():
                raise CniError(
                    CniCode.INVALID_ENVIRONMENT,
                    f"CNI_NETNS: {request.netns} is the node's own network namespace",
                    "a pod that shares the node's network is attached to no other",
                )
            ledger = await self.ledgers.open(request.conf.name, request.conf.ipam.data_dir)
            try:
                return self._make(request, netns, ledger)
            except NotLookedYet:
                return self._make(request, netns, ledger, await self.ledgers.look(ledger))

    def _make(
        self,
        request: CniRequest,
        netns: Namespace,
        ledger: Ledger,
        seen: NamespacesSeen | None = None,
    ) -> tuple[Attachment, Future[None]]:
        """All or nothing. Raises: NotLookedYet when `seen` is needed."""
        network = self._network(request.conf)
        with ExitStack() as undo:
            undo.callback(self.reaper.put)  # of what was made, a part may have been put aside
            now_s = time.monotonic()
            reservation = self.ledgers.reserve(ledger, request, network, now_s=now_s, seen=seen)
            undo.callback(self.ledgers.hold_live, ledger)  # of whom an eviction has left there
            undo.callback(ledger.release, request.holder, now_s=now_s)
            written = ledger.durable()  # the disk works while the interface is made
            attachment = plan_attachment(
                request,
                network,
                addresses=tuple(lease.address for lease in reservation.leases),
                gateways=tuple(lease.gateway for lease in reservation.leases),
                netns_id=netns.id,
            )
            for old in reservation.evicted:
                # The same pod's old sandbox: its interface goes before its address moves.
                self._evict(network.name, old)
            with contextlib.suppress(KernelError):
                self.reaper.take_back(
                    [address.ip for address in attachment.addresses],
                    by_same_pod=reservation.restored,
                )
            if attachment.bridge is not None:
                self.attachments.begin(attachment)
                undo.callback(self.attachments.abandon, attachment)
                self._interfaces.connect(attachment, attachment.bridge, netns)
                undo.callback(self._interfaces.disconnect, attachment, request.netns)
                undo.callback(self._host_ports.close, attachment)
                self._host_ports.open(attachment)
            else:
                self.node_part.guards.cover(attachment)
            self.attachments.put(attachment)
            undo.pop_all()
        return attachment, written

    def _network(self, conf: NetworkConf) -> PlannedNetwork:
        """The planned network; kept for the last configuration, which nearly every request has."""
        mtu_bytes, state = self.node_part.uplink_mtu_bytes, self.state
        last = self._last_network
        if last is None or last[0] != (conf, mtu_bytes, state):
            planned = plan_network(conf, self.settings, state, uplink_mtu_bytes=mtu_bytes)
            last = self._last_network = ((conf, mtu_bytes, state), planned)
        return last[1]

    def _evict(self, network: str, holder: Holder) -> None:
        attachment = self.attachments.get(network, holder)
        if attachment is not None:
            self._interfaces.disconnect(attachment, "")
            self.attachments.remove(network, holder)
            self._host_ports.close(attachment)
        else:
            self._interfaces.disconnect_unrecorded(network, holder)
        self.reaper.put()
        _log.info(
            "an older sandbox of the same pod gave up its address",
            network=network,
            container=holder.container_id,
            ifname=holder.ifname,
        )

    # DEL.

    async def delete(self, request: CniRequest) -> None:
        """Takes interface and addresses away; done already is done."""
        async with self._turns.of((request.conf.name, request.holder)):
            attachment = self.attachments.get(request.conf.name, request.holder)
            ledger = (
                await self._detach_unrecorded(request)
                if attachment is None
                else self._detach(attachment, netns=request.netns)
            )
            if ledger is not None:
                await asyncio.wrap_future(ledger.durable())

    def _detach(self, attachment: Attachment, *, netns: str) -> Ledger:
        """First the interface, then the record: the other order could give out a live address."""
        ledger = self.ledgers.ledger(attachment.network, attachment.data_dir)
        if attachment.bridge is not None:
            self._interfaces.disconnect(attachment, netns)
        released = ledger.release(attachment.holder, now_s=time.monotonic())
        self.reaper.put(released)
        try:
            self.attachments.remove(attachment.network, attachment.holder)
        finally:
            self._host_ports.close(attachment)
            self._tell(PodsChanged())
        return ledger

    def released(self) -> None:
        """What a record had was given up without a DEL: who tells of pods looks again."""
        self._tell(PodsChanged())

    def forget(self, attachment: Attachment) -> tuple[Address, ...]:
        """A pod that is gone without a DEL: its addresses are free, its binding stays."""
        ledger = self.ledgers.ledger(attachment.network, attachment.data_dir)
        released = ledger.addresses_of(attachment.holder)
        self._detach(attachment, netns="")
        _log.info(
            "a pod went without a DEL",
            network=attachment.network,
            namespace=attachment.pod.namespace,
            pod=attachment.pod.name,
            container=attachment.holder.container_id,
            addresses=",".join(map(str, released)),
        )
        return released

    async def _detach_unrecorded(self, request: CniRequest) -> Ledger | None:
        """A pod that another plugin attached, or whose record is gone with /run."""
        conf, holder, netns = request.conf, request.holder, request.netns
        ours = conf.ipam_only or self._interfaces.disconnect_unrecorded(
            conf.name, holder, netns, self.attachments
        )
        ledger = await self.ledgers.find(conf.name, conf.ipam.data_dir)
        held = ledger is not None and bool(ledger.addresses_of(holder))
        # The record or the runtime says that the interface is this network's to remove.
        if not ours and (held or request.prev_result is not None):
            await self._interfaces.delete_foreign(netns, holder.ifname, self.attachments)
        if ledger is not None:
            self.reaper.put(ledger.release(holder, now_s=time.monotonic()))
        if held:
            self._tell(PodsChanged())
        return ledger

    # GC.

    async def collect(self, request: CniRequest) -> None:
        """Takes away whatever of this network is not among the valid attachments.

        Raises also the first of what went wrong with one of them, when all others are gone.
        """
        valid = request.valid_attachments
        if valid is None:
            return
        network = request.conf.name
        ledger = await self.ledgers.find(network, request.conf.ipam.data_dir)
        stale = {a.holder for a in self.attachments if a.network == network}
        if ledger is not None:
            stale |= set(ledger.holders().values())
        # An older host-local has written down no interface, a damaged file no container.
        stale -= valid | {Holder(each.container_id, "") for each in valid} | {UNKNOWN_HOLDER}
        failures = []
        for holder in sorted(stale, key=lambda holder: (holder.container_id, holder.ifname)):
            async with self._turns.of((network, holder)):
                try:
                    await self._collect_one(network, holder, ledger)
                except LimpetError as error:
                    what = {"network": network, "container": holder.container_id}
                    _log.warning("not collected", **what, error=str(error))
                    failures.append(error)
        if ledger is not None:
            await asyncio.wrap_future(ledger.durable())
        if failures:
            raise failures[0]

    async def _collect_one(self, network: str, holder: Holder, ledger: Ledger | None) -> None:
        attachment = self.attachments.get(network, holder)
        if attachment is not None:
            self._detach(attachment, netns="")
        elif ledger is not None:
            self._interfaces.disconnect_unrecorded(network, holder)
            self.reaper.put(ledger.release(holder, now_s=time.monotonic()))
        _log.info("collected", network=network, container=holder.container_id)

    # STATUS and the rest.

    async def reasons_not_ready(self, conf: NetworkConf) -> list[str]:
        """Why an ADD on this network would fail, in words; empty when it would not."""
        if not self.settings.cni:
            return [": ".join(_NO_PODS)]
        reasons = []
        try:
            network = plan_network(conf, self.settings, self.state, uplink_mtu_bytes=1500)
        except CniError as error:
            return [str(error)]
        try:
            ledger = await self.ledgers.open(network.name, conf.ipam.data_dir)
        except StorageError as error:
            return [str(error)]
        if ledger.refusal is not None:
            reasons.append(str(ledger.refusal))
        return reasons + self.node_part.troubles

    def require_attachment(self, request: CniRequest) -> Attachment:
        """Raises: CniError (3) when we know of no such attachment."""
        attachment = self.attachments.get(request.conf.name, request.holder)
        if attachment is None:
            raise CniError(
                CniCode.UNKNOWN_CONTAINER,
                f"container {request.container_id} has no interface {request.ifname} "
                f"on network {request.conf.name}",
                "it was never added, or it was deleted",
            )
        return attachment

    def _note_unknown_keys(self, conf: NetworkConf) -> None:
        if conf.unknown_keys:
            self.unknown_keys[conf.name] = conf.unknown_keys
        else:
            self.unknown_keys.pop(conf.name, None)


async def _done(future: Future[None]) -> None:
    """Waits for it without a turn of the event loop when there is nothing to wait for."""
    if future.done():
        future.result()
    else:
        await asyncio.wrap_future(future)


def _open_netns(path: str) -> Namespace:
    try:
        return Namespace(path)
    except KernelError as error:
        raise CniError(CniCode.INVALID_ENVIRONMENT, f"CNI_NETNS: {error}") from error
