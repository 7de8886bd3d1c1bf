"""The node's verbs: ADD, DEL, CHECK, GC, STATUS, over one state.

Between two awaits a verb leaves memory, kernel and /run agreeing with each other; all verbs run on
the event loop's thread, so nothing else sees the states between. What a verb says is on disk before
it answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future
from contextlib import ExitStack

import structlog

from limpet.base.addresses import Address
from limpet.base.errors import CniCode, CniError, KernelError, StorageError
from limpet.base.node_state import NodeState
from limpet.base.ownership import POD_IFNAME_PREFIX
from limpet.base.settings import PodSettings
from limpet.cni.attachment_plan import (
    PlannedNetwork,
    merge_results,
    plan_attachment,
    plan_network,
    plan_result,
)
from limpet.cni.ledgers import Ledgers
from limpet.cni.protocol.values import CniRequest, CniResult, Dns, NetworkConf
from limpet.datapath.node.announcer import Announcer
from limpet.datapath.node.apply import NodeKernel
from limpet.datapath.node.attachment import Attachment, BridgeSpec
from limpet.datapath.node.attachments import Attachments, Key
from limpet.datapath.node.plan import host_ifname
from limpet.datapath.node.pods import (
    InterfaceExists,
    create_pod_interface,
    delete_inside,
    retire_host_end,
    retire_inside,
)
from limpet.datapath.node.reaper import Reaper
from limpet.datapath.node.reconciler import NodeReconciler
from limpet.datapath.node.ruleset import HostPort, host_port_commands, plan_host_ports_of
from limpet.ipam.hostlocal import UNKNOWN_HOLDER
from limpet.ipam.leases import Holder
from limpet.ipam.ledger import Ledger
from limpet.linux.namespaces import Namespace, NamespaceId, namespace_id, own_namespace_id

_log = structlog.get_logger("node")

_RESOLV_CONF_BYTES = 1 << 16
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
        books: Ledgers,
        attachments: Attachments,
        reaper: Reaper,
        announcer: Announcer,
        rounds: NodeReconciler,
    ) -> None:
        self.kernel = kernel
        self.books = books
        self.attachments = attachments
        self.reaper = reaper
        self.announcer = announcer
        self.rounds = rounds
        self.on_change: Callable[[], None] = lambda: None
        """Called after an address was given or came free."""
        self._locks: dict[Key, asyncio.Lock] = {}
        self._last_network: tuple[tuple[NetworkConf, int, NodeState], PlannedNetwork] | None = None
        self.unknown_keys: dict[str, tuple[str, ...]] = {}
        """Keys of a network's configuration that nobody knows, for doctor."""

    @property
    def settings(self) -> PodSettings:
        return self.rounds.settings

    @property
    def state(self) -> NodeState:
        """As of now: segments come and go with the node's grant."""
        return self.rounds.state

    # ADD.

    async def add(self, request: CniRequest, *, attempt: int) -> CniResult:
        """Gives the pod its interface and addresses.

        `attempt` > 0: the shim asks again since the agent went away; what the first try did is then
        answered, where otherwise the same request twice is an error.
        """
        if not self.settings.cni:
            raise CniError(CniCode.INVALID_NETWORK_CONFIG, *_NO_PODS)
        async with self._turn(request.conf.name, request.holder):
            self._note_unknown_keys(request.conf)
            dns = _dns(request.conf)
            before = self.attachments.get(request.conf.name, request.holder)
            if before is None:
                attachment, written = self._attach(request)
            else:
                attachment, written = self._again(request, before, attempt=attempt)
            try:
                await _done(written)
            except StorageError:
                self._detach(attachment, netns=request.netns)
                raise
            if before is None and attachment.bridge is not None:
                # Behind the answer, which is written in this turn of the loop.
                announce = self.announcer.announce
                asyncio.get_running_loop().call_soon(announce, attachment, attachment.bridge.ifname)
            self.on_change()
            return self._result(request, attachment, dns)

    def _again(
        self, request: CniRequest, before: Attachment, *, attempt: int
    ) -> tuple[Attachment, Future[None]]:
        same = namespace_id(request.netns) == NamespaceId(before.netns_device, before.netns_inode)
        if attempt and same:
            return before, self.books.ledger(before.network, before.data_dir).durable()
        raise CniError(
            CniCode.INTERFACE_EXISTS,
            f"container {request.container_id} has an interface {request.ifname} "
            f"on network {request.conf.name} already",
            f"host end {before.host_ifname}, made for {before.netns}; DEL comes first",
        )

    def _result(self, request: CniRequest, attachment: Attachment, dns: Dns) -> CniResult:
        bridge = attachment.bridge
        mac = "" if bridge is None else self.rounds.bridge_mac(bridge.ifname)
        result = plan_result(attachment, bridge_mac=mac, dns=dns)
        return merge_results(request.prev_result, result)

    def _attach(self, request: CniRequest) -> tuple[Attachment, Future[None]]:
        """The attachment as it was made, and what completes when its addresses are on the disk."""
        conf = request.conf
        network = self._network(conf)
        with _open_netns(request.netns) as netns, ExitStack() as undo:
            where = netns.id
            if network.bridge is not None and where == own_namespace_id():
                raise CniError(
                    CniCode.INVALID_ENVIRONMENT,
                    f"CNI_NETNS: {request.netns} is the node's own network namespace",
                    "a pod that shares the node's network is attached to no other",
                )
            undo.callback(self.reaper.put)  # of what was made, a part may have been put aside
            ledger, reservation = self.books.reserve(request, network, now_s=time.monotonic())
            undo.callback(ledger.release, request.holder, now_s=time.monotonic())
            written = ledger.durable()  # the disk works while the interface is made
            attachment = plan_attachment(
                request,
                network,
                addresses=tuple(lease.address for lease in reservation.leases),
                gateways=tuple(lease.gateway for lease in reservation.leases),
                netns_device=where.device,
                netns_inode=where.inode,
            )
            for old in reservation.evicted:
                # The same pod's old sandbox: its interface goes before its address moves.
                self._evict(conf.name, old)
            with contextlib.suppress(KernelError):
                self.reaper.take_back(
                    [address.ip for address in attachment.addresses],
                    by_same_pod=reservation.restored,
                )
            if attachment.bridge is not None:
                self._connect(attachment, attachment.bridge, netns)
                undo.callback(self._disconnect, attachment, request.netns)
                undo.callback(self._unpublish, attachment)
                self._publish(attachment)
            self.attachments.put(attachment)
            undo.pop_all()
        return attachment, written

    def _network(self, conf: NetworkConf) -> PlannedNetwork:
        """Of the last configuration, which nearly every request has."""
        mtu_bytes, state = self.rounds.uplink_mtu_bytes, self.state
        last = self._last_network
        if last is None or last[0] != (conf, mtu_bytes, state):
            planned = plan_network(conf, self.settings, state, uplink_mtu_bytes=mtu_bytes)
            last = self._last_network = ((conf, mtu_bytes, state), planned)
        return last[1]

    def _connect(self, attachment: Attachment, bridge: BridgeSpec, netns: Namespace) -> None:
        try:
            self._create(attachment, bridge, netns)
        except InterfaceExists:
            # Left by a try of this very request that the agent did not survive? Then its host end
            # is there, or a round has put that aside already; the pod's end goes with it.
            if retire_host_end(self.kernel.route, attachment.host_ifname):
                retire_inside(netns, attachment.holder.ifname)
            self.reaper.remove_now()
            self._create_at_last(attachment, bridge, netns)
        except KernelError:
            # The bridge may have gone since it was last looked at.
            self.rounds.run("an interface could not be made")
            self._create_at_last(attachment, bridge, netns)

    def _create_at_last(self, attachment: Attachment, bridge: BridgeSpec, netns: Namespace) -> None:
        try:
            self._create(attachment, bridge, netns)
        except InterfaceExists as error:
            raise CniError(
                CniCode.INTERFACE_EXISTS,
                f"interface {attachment.holder.ifname} exists in {attachment.netns} already",
                "another plugin made it; DEL comes first",
            ) from error

    def _create(self, attachment: Attachment, bridge: BridgeSpec, netns: Namespace) -> None:
        create_pod_interface(
            self.kernel.route,
            attachment,
            bridge_ifindex=self.rounds.ensure_bridge(attachment.network, bridge),
            netns=netns,
        )

    def _publish(self, attachment: Attachment) -> None:
        """Adds the pod's hostPorts; one that a former pod still has is taken over."""
        added = plan_host_ports_of([attachment])
        if not added:
            return
        self.rounds.expect_host_ports()
        commands = host_port_commands(add=added, delete=self._same_host_ports(added))
        try:
            self.kernel.nft.run(commands, what="hostPorts")
        except KernelError as error:
            # The table is not as planned (somebody flushed it). The round puts it right, as it was
            # before this pod.
            self.rounds.run(f"hostPorts could not be changed: {error}")
            self.kernel.nft.run(commands, what="hostPorts")

    def _unpublish(self, attachment: Attachment) -> None:
        """Gives the pod's hostPorts back to others that ask for them, or closes them.

        Whatever fails is met again in the next round; the attachment is none any more.
        """
        mine = plan_host_ports_of([attachment])
        commands = host_port_commands(add=self._same_host_ports(mine), delete=mine)
        if not commands:
            return
        try:
            self.kernel.nft.run(commands, what="hostPorts")
        except KernelError as error:
            self.rounds.run(f"hostPorts could not be changed: {error}")

    def _same_host_ports(self, ports: Iterable[HostPort]) -> list[HostPort]:
        """What the attachments have under the keys of `ports`."""
        keys = {(port.map_name, port.key) for port in ports}
        held = plan_host_ports_of(self.attachments) if keys else ()
        return [port for port in held if (port.map_name, port.key) in keys]

    def _evict(self, network: str, holder: Holder) -> None:
        attachment = self.attachments.get(network, holder)
        if attachment is not None:
            self._disconnect(attachment, "")
            self.attachments.remove(network, holder)
            self._unpublish(attachment)
        else:
            name = host_ifname(POD_IFNAME_PREFIX, network, holder.container_id, holder.ifname)
            retire_host_end(self.kernel.route, name)
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
        async with self._turn(request.conf.name, request.holder):
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
        ledger = self.books.ledger(attachment.network, attachment.data_dir)
        if attachment.bridge is not None:
            self._disconnect(attachment, netns)
        released = ledger.release(attachment.holder, now_s=time.monotonic())
        self.reaper.put(released)
        try:
            self.attachments.remove(attachment.network, attachment.holder)
        finally:
            self._unpublish(attachment)
            self.on_change()
        return ledger

    def forget(self, attachment: Attachment) -> tuple[Address, ...]:
        """A pod that is gone without a DEL: its addresses are free, its binding stays."""
        ledger = self.books.ledger(attachment.network, attachment.data_dir)
        released = ledger.addresses_of(attachment.holder)
        self._detach(attachment, netns="")
        _log.info(
            "a pod went without a DEL",
            network=attachment.network,
            namespace=attachment.pod_namespace,
            pod=attachment.pod_name,
            container=attachment.holder.container_id,
            addresses=",".join(map(str, released)),
        )
        return released

    def _disconnect(self, attachment: Attachment, netns: str) -> None:
        """Both ends down, renamed and put aside for the reaper."""
        where = NamespaceId(attachment.netns_device, attachment.netns_inode)
        path = next((p for p in (netns, attachment.netns) if p and namespace_id(p) == where), None)
        if path is not None:
            with contextlib.suppress(KernelError), Namespace(path) as pod:
                retire_inside(pod, attachment.holder.ifname)
        retire_host_end(
            self.kernel.route,
            attachment.host_ifname,
            shaped=bool(attachment.bandwidth.egress_rate_bits),
        )

    async def _detach_unrecorded(self, request: CniRequest) -> Ledger | None:
        """A pod that another plugin attached, or whose record is gone with /run."""
        conf, holder = request.conf, request.holder
        if not conf.ipam_only:
            name = host_ifname(POD_IFNAME_PREFIX, conf.name, holder.container_id, holder.ifname)
            ours = retire_host_end(self.kernel.route, name)
            netns = request.netns
            where = namespace_id(netns) if netns else None
            if where not in (None, own_namespace_id()) and not self._used_by_another(
                where, holder.ifname
            ):
                with contextlib.suppress(KernelError), Namespace(netns) as pod:
                    if ours:
                        retire_inside(pod, holder.ifname)
                    elif self._held_before(request):
                        await asyncio.to_thread(delete_inside, pod, holder.ifname)
        ledger = self.books.known(conf.name, conf.ipam.data_dir)
        if ledger is None:
            return None
        self.reaper.put(ledger.release(holder, now_s=time.monotonic()))
        return ledger

    def _held_before(self, request: CniRequest) -> bool:
        """The record or the runtime says that the interface is this network's to remove."""
        ledger = self.books.known(request.conf.name, request.conf.ipam.data_dir)
        in_record = ledger is not None and bool(ledger.addresses_of(request.holder))
        return in_record or request.prev_result is not None

    def _used_by_another(self, where: NamespaceId | None, ifname: str) -> bool:
        """A newer sandbox lives in the namespace that a late DEL names."""
        return any(
            where == NamespaceId(other.netns_device, other.netns_inode)
            and other.holder.ifname == ifname
            for other in self.attachments
        )

    # GC.

    async def collect(self, request: CniRequest) -> None:
        """Takes away whatever of this network is not among the valid attachments."""
        valid = request.valid_attachments
        if valid is None:
            return
        network = request.conf.name
        ledger = self.books.known(network, request.conf.ipam.data_dir)
        stale = {a.holder for a in self.attachments if a.network == network}
        if ledger is not None:
            stale |= set(ledger.holders().values())
        # An older host-local has written down no interface, a damaged file no container.
        stale -= valid | {Holder(each.container_id, "") for each in valid} | {UNKNOWN_HOLDER}
        for holder in sorted(stale, key=lambda holder: (holder.container_id, holder.ifname)):
            async with self._turn(network, holder):
                await self._collect_one(network, holder, ledger)
        if ledger is not None:
            await asyncio.wrap_future(ledger.durable())

    async def _collect_one(self, network: str, holder: Holder, ledger: Ledger | None) -> None:
        attachment = self.attachments.get(network, holder)
        if attachment is not None:
            self._detach(attachment, netns="")
        elif ledger is not None:
            name = host_ifname(POD_IFNAME_PREFIX, network, holder.container_id, holder.ifname)
            retire_host_end(self.kernel.route, name)
            self.reaper.put(ledger.release(holder, now_s=time.monotonic()))
        _log.info("collected", network=network, container=holder.container_id)

    # STATUS and the rest.

    def reasons_not_ready(self, conf: NetworkConf) -> list[str]:
        """Why an ADD on this network would fail, in words; empty when it would not."""
        if not self.settings.cni:
            return [": ".join(_NO_PODS)]
        reasons = []
        try:
            network = plan_network(conf, self.settings, self.state, uplink_mtu_bytes=1500)
        except CniError as error:
            return [str(error)]
        try:
            ledger = self.books.ledger(network.name, conf.ipam.data_dir)
        except StorageError as error:
            return [str(error)]
        if ledger.refusal is not None:
            reasons.append(str(ledger.refusal))
        return reasons + self.rounds.troubles

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

    @contextlib.asynccontextmanager
    async def _turn(self, network: str, holder: Holder) -> AsyncIterator[None]:
        """One verb at a time for one interface, in the order of their arrival."""
        key = (network, holder)
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        try:
            async with lock:
                yield
        finally:
            if not lock.locked() and not lock._waiters:
                self._locks.pop(key, None)


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


def _dns(conf: NetworkConf) -> Dns:
    """What the configuration says, else what the file `ipam.resolvConf` says.

    Source: cmdAdd of the reference bridge plugin, and of host-local.
    """
    if conf.ipam.resolv_conf is None or conf.dns != Dns():
        return conf.dns
    try:
        # Non-blocking: a FIFO must not hold us up.
        fd = os.open(conf.ipam.resolv_conf, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            text = os.read(fd, _RESOLV_CONF_BYTES).decode(errors="replace")
        finally:
            os.close(fd)
    except OSError as error:
        raise CniError(
            CniCode.INVALID_NETWORK_CONFIG,
            f"network {conf.name}: read ipam.resolvConf {conf.ipam.resolv_conf}: {error.strerror}",
        ) from error
    return parse_resolv_conf(text)


def parse_resolv_conf(text: str) -> Dns:
    """Source: man 5 resolv.conf; of `domain` and `search` lines the last one counts."""
    found: dict[str, list[str]] = {"nameserver": [], "domain": [], "search": [], "options": []}
    for line in text.splitlines():
        keyword, *values = line.split("#")[0].split(";")[0].split() or [""]
        if keyword in ("nameserver", "options"):
            found[keyword] += values
        elif keyword in ("domain", "search"):
            found[keyword] = values
    return Dns(
        tuple(found["nameserver"]),
        (found["domain"] or [""])[0],
        tuple(found["search"]),
        tuple(found["options"]),
    )
