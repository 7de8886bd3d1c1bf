"""What a person may ask the agent; `limpet status`, `limpet ipam …` and doctor do."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from limpet import __version__
from limpet.agent.answers.alone import path_alone
from limpet.agent.answers.looks import Looks
from limpet.agent.answers.own_pods import node_words
from limpet.agent.happenings.of_node import NodeHappenings
from limpet.agent.happenings.segments import segment_states
from limpet.agent.policies.slot import VERBS as POLICY_VERBS
from limpet.agent.policies.slot import PolicySlot
from limpet.agent.status.cluster import ControllerStatus
from limpet.agent.status.node import (
    Attached,
    Leak,
    NetworkUse,
    RecordCheck,
    RecordFinding,
    Records,
    Released,
    Repaired,
    Status,
    UnknownKey,
    record_line,
    room_of,
)
from limpet.agent.status.paths import PathAnswer, Peers
from limpet.agent.status.ping import PingAnswer
from limpet.agent.status.said import LastRound
from limpet.agent.status.services import ServiceAnswer, ServicesAnswer
from limpet.base.addresses import Address
from limpet.base.decoding import convert
from limpet.base.errors import LimpetError
from limpet.base.text.nearest import hint
from limpet.cni.repair import Repair, leak_document
from limpet.cni.verbs import Node
from limpet.datapath.node.pod.attachment_codec import attachment_document
from limpet.ipam.leases import PodKey
from limpet.ipam.ledger import Ledger

if TYPE_CHECKING:  # a node on its own need not have a cluster's side in memory
    from limpet.agent.answers.cluster import ClusterAdmin
    from limpet.agent.wiring import ClusterSide

Arguments = dict[str, Any]


class Admin:
    """Verbs by name; each takes a JSON object and answers one."""

    def __init__(
        self,
        node: Node,
        repair: Repair,
        cluster: ClusterSide | None,
        policies: PolicySlot,
        happenings: NodeHappenings,
        *,
        why_not_joined: Callable[[], str] = str,
    ) -> None:
        """`cluster`: None where the node has joined none. `why_not_joined`: in words, where it
        is about to join by itself; empty: it is not.
        """
        self._node = node
        self._why_not_joined = why_not_joined
        self._cluster: ClusterAdmin | None = None
        if cluster is not None:
            # A node on its own does without a cluster's side in memory.
            from limpet.agent.answers.cluster import ClusterAdmin

            self._cluster = ClusterAdmin(cluster, node)
        sides = None if cluster is None or self._cluster is None else (cluster, self._cluster)
        self._repair = repair
        self._policies = policies
        self._started_s = time.monotonic()
        self._verbs: dict[str, Callable[[Arguments], Awaitable[Struct]]] = {
            "status": self._status,
            "attachments": self._attachments,
            "peers": self._peers,
            "path": self._path,
            "ping": self._ping,
            **Looks(node.ledgers, sides, policies, happenings).verbs,
            "controllers.read": self._read_controllers,
            "services": self._services,
            "service": self._service,
            "ipam.list": self._list,
            "ipam.check": self._check,
            "ipam.repair": self._repair_now,
            "ipam.release": self._release,
            **{verb: partial(policies.answer, verb) for verb in POLICY_VERBS},
        }

    async def answer(self, verb: str, arguments: Arguments) -> Struct:
        """Raises: LimpetError."""
        known = self._verbs.get(verb)
        if known is None:
            raise LimpetError(f"admin verb {verb!r}: not known (is the agent of another version?)")
        return await known(arguments)

    def reasons_not_ready(self) -> list[str]:
        """Why a pod could not be started here, in words; empty when it could."""
        node, cluster = self._node, self._cluster
        if not (node.settings.cni or node.state.in_cluster):
            return [
                "cni = false, and this node is in no cluster: it has nothing to do (limpet join)"
            ]
        reasons = []
        if not node.state.segments:
            reasons.append(self._why_alone() if cluster is None else cluster.why_no_segments())
        reasons += [
            why
            for folder, why in node.ledgers.failed.items()
            if folder.parent == node.ledgers.data_dir
        ]
        refusals = (ledger.refusal for ledger in node.ledgers)
        reasons += [str(refusal) for refusal in refusals if refusal is not None]
        return [*reasons, *node.node_part.troubles]

    def _why_alone(self) -> str:
        why = self._why_not_joined()
        return (
            f"no segments, since this node has not joined its cluster yet: {why}"
            if why
            else "no segments"
        )

    async def _status(self, _: Arguments) -> Status:
        node, node_part = self._node, self._node.node_part
        reasons, segments = self.reasons_not_ready(), segment_states(node)
        room, why_full = room_of(segments)
        return Status(
            cluster=self._cluster.status() if self._cluster is not None else None,
            version=__version__,
            pid=os.getpid(),
            uptime_s=round(time.monotonic() - self._started_s, 1),
            ready=not reasons,
            reasons=reasons,
            bridge=node.settings.bridge,
            mtu_bytes=node.settings.mtu_bytes or node_part.uplink_mtu_bytes,
            cluster_cidrs=[str(each) for each in node.state.cluster_cidrs],
            segments=segments,
            room=room,
            why_full=why_full,
            networks=[_network(ledger) for ledger in node.ledgers],
            attachments=len(node.attachments),
            closed=self._policies.unheard,
            unknown_keys=[
                UnknownKey(network=network, key=key)
                for network, keys in sorted(node.unknown_keys.items())
                for key in keys
            ],
            findings=self._findings(),
            last_round=LastRound(
                changes=node_part.account.last_changes,
                failed=[*node_part.guards.ports.failures, *node_part.failures],
                took_ms=round(node_part.account.last_took_ms, 1),
            ),
        )

    def _findings(self) -> list[RecordFinding]:
        node = self._node
        found = [
            RecordFinding(path=str(finding.path), problem=finding.problem, advice=finding.action)
            for ledger in node.ledgers
            for finding in ledger.findings
        ]
        found += [
            RecordFinding(path=str(folder), problem=problem, advice="mend it and restart the agent")
            for folder, problem in node.ledgers.failed.items()
        ]
        found += [
            RecordFinding(path=str(path), problem=problem, advice="delete it and restart the pod")
            for path, problem in node.attachments.damaged
        ]
        return found

    async def _peers(self, arguments: Arguments) -> Peers:
        return await self._required("peers").peers(arguments)

    async def _read_controllers(self, _: Arguments) -> ControllerStatus:
        return self._required("controllers.read").read_controllers()

    async def _path(self, arguments: Arguments) -> PathAnswer:
        if self._cluster is None:
            origin, target = (str(arguments.get(key, "")) for key in ("origin", "target"))
            return path_alone(node_words(self._node), self._node.state.segments, origin, target)
        return await self._cluster.path(arguments)

    async def _ping(self, arguments: Arguments) -> PingAnswer:
        # Here: it is a person's, and no other round needs it.
        from limpet.agent.answers.ping import ping_alone

        if self._cluster is None:
            return await ping_alone(node_words(self._node), str(arguments.get("target", "")))
        return await self._cluster.ping(arguments)

    async def _services(self, _: Arguments) -> ServicesAnswer:
        return self._required("services").services.list()

    async def _service(self, arguments: Arguments) -> ServiceAnswer:
        name = str(arguments.get("name", ""))
        return await self._required("service").services.show(name)

    def _required(self, verb: str) -> ClusterAdmin:
        """Raises: LimpetError where the node has joined no cluster."""
        if self._cluster is None:
            raise LimpetError(
                f"{verb}: this node has joined no cluster, so it knows its own pods only "
                "(`limpet join` lets it into one; `limpet ipam list` tells the pods)"
            )
        return self._cluster

    async def _attachments(self, _: Arguments) -> Attached:
        return Attached(attachments=[attachment_document(each) for each in self._node.attachments])

    async def _list(self, arguments: Arguments) -> Records:
        wanted = arguments.get("network")
        return Records(
            records=[
                record_line(ledger.network, record)
                for ledger in self._node.ledgers
                if wanted in (None, ledger.network)
                for record in ledger.records(now_s=time.monotonic())
            ]
        )

    async def _check(self, _: Arguments) -> RecordCheck:
        gone, leaks = await self._repair.find()
        found = [
            leak_document(a.network, address.ip, a.holder, "the pod's namespace is gone")
            for a in gone
            for address in a.addresses
        ]
        found += [
            leak_document(ledger.network, address, holder, "no interface on this machine has it")
            for ledger, address, holder in leaks
        ]
        return RecordCheck(leaks=convert(found, list[Leak]), findings=self._findings())

    async def _repair_now(self, _: Arguments) -> Repaired:
        return Repaired(released=convert(await self._repair(), list[Leak]))

    async def _release(self, arguments: Arguments) -> Released:
        """Gives up a binding; a reservation too when forced."""
        node, now_s = self._node, time.monotonic()
        ledger = next((x for x in node.ledgers if x.network == arguments.get("network")), None)
        if ledger is None:
            asked = str(arguments.get("network"))[:200]
            there = sorted(each.network for each in node.ledgers)
            see = hint(asked, there, f"there are: {', '.join(there) or 'none'}")
            raise LimpetError(f"release: no record of network {asked!r} ({see})")
        what = _what(arguments)
        bindings, holders = ledger.bindings(), ledger.holders()

        def is_meant(address: Address) -> bool:
            binding = bindings.get(address)
            if not isinstance(what, PodKey) or binding is None:
                return address == what
            # What is written as one word may be another pod's, and is then held by that one.
            is_anothers = binding.joined and address in holders
            return binding.may_be_of(what.namespace, what.pod) and not is_anothers

        records = ledger.records(now_s=now_s)
        meant = [each.address for each in records if is_meant(each.address)]
        live = [address for address in meant if address in holders]
        if live and not arguments.get("force"):
            raise LimpetError(
                f"release {live[0]}: container {holders[live[0]].container_id} holds it "
                "(delete the pod, or force it when you know that nothing uses it)"
            )
        for address in live:
            ledger.release_address(address, now_s=now_s)
        for address in meant:
            ledger.forget(address, now_s=now_s)
        node.released()
        await asyncio.wrap_future(ledger.durable())
        return Released(released=[str(address) for address in meant])


def _what(arguments: Arguments) -> Address | PodKey:
    if "address" not in arguments:
        return PodKey(
            str(arguments.get("pod_namespace", "")), str(arguments.get("pod", "")), ifname=""
        )
    try:
        return ip_address(arguments["address"])
    except ValueError as error:
        raise LimpetError(f"release: {error}") from error


def _network(ledger: Ledger) -> NetworkUse:
    records = ledger.records(now_s=time.monotonic())
    states = [record.state.value for record in records]
    return NetworkUse(name=ledger.network, live=states.count("live"), bound=states.count("bound"))
