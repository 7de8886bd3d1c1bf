"""Policies that pods are held to: those that a person has told, or those of a Kubernetes."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from limpet.agent.policies.said import Applied, FlowLine, Judged, PodLabels, PodPolicies
from limpet.agent.policies.said import Policies as SaidPolicies
from limpet.agent.policies.words import end_line, pod_policies, policy_line
from limpet.agent.status.said import Said
from limpet.base.addresses import Address, Prefix
from limpet.base.disk import is_rotten, read_kept, refusals, write_durably
from limpet.base.errors import LimpetError, StorageError
from limpet.base.records.version import NewerFormatError
from limpet.base.text.nearest import hint
from limpet.datapath.loop import Loop
from limpet.datapath.node.pod.attachment import Attachment
from limpet.datapath.policy.part import PolicyPart
from limpet.datapath.policy.ruleset import LocalPort
from limpet.policies.book import Book, decode_book, encode_book
from limpet.policies.compiled import Compiled
from limpet.policies.compiler import Compiler, compile_sides
from limpet.policies.heard import closing_policies
from limpet.policies.parse import PolicyError
from limpet.policies.policy import PROTOCOLS, Key, Policy, PolicyPod, PolicyWorld
from limpet.policies.said.between import PairSide as PolicySide
from limpet.policies.said.between import side_of
from limpet.policies.said.verdict import Flow, judge

if TYPE_CHECKING:  # a node on its own need not have a cluster's side in memory
    from limpet.cluster.replica import Change

Arguments = dict[str, Any]
NodeSegments = Callable[[], Mapping[str, Sequence[Prefix]]]
"""Those of each node of the cluster, by its uid."""
_log = structlog.get_logger("policies")


def key_of(pod: Attachment) -> Key:
    """As policies name it; a container that has no name in Kubernetes' sense goes by its id."""
    return Key(pod.pod.namespace or "default", pod.pod.name or pod.holder.container_id)


class Policies(ABC):
    """Runs on the event loop."""

    def __init__(
        self,
        loop: Loop,
        attachments: Iterable[Attachment],
        bridge_mac: Callable[[str], str],
        node_segments: NodeSegments = dict,
    ) -> None:
        """`bridge_mac`: by the bridge's name."""
        self._loop = loop
        self._node_segments = node_segments
        self._attachments = attachments
        self._bridge_mac = bridge_mac
        self._compiler = Compiler()
        self.part = PolicyPart(loop, self._ports, self._compile)
        loop.add(self.part)

    # Who hears nobody has nothing to do here.

    def start(self) -> None:  # noqa: B027
        """Hears of changes from now on."""

    async def stop(self) -> None:  # noqa: B027
        """Hears of none any more."""

    def network_changed(self) -> None:  # noqa: B027
        """Whom it hears may be reached now."""

    def pods_changed(self) -> None:  # noqa: B027
        """This node has others than before."""

    def hear(self, change: Change) -> None:  # noqa: B027
        """The cluster's documents, of any kind, are others than before."""

    def close(self) -> None:
        self.part.close()

    def cover(self, pod: Attachment) -> None:
        """Raises: KernelError; then the pod must not get its interface."""
        self.part.cover(self._port(pod))

    # What holds

    def _ports(self) -> list[LocalPort]:
        return [self._port(pod) for pod in self._attachments]

    def _port(self, pod: Attachment) -> LocalPort:
        bridged = pod.bridge is not None
        return LocalPort(
            key_of(pod),
            pod.link.host_ifname if bridged else "",
            pod.link.mac if bridged else "",
            self._bridge_mac(pod.bridge.ifname) if pod.bridge is not None else "",
            tuple(address.ip for address in pod.addresses),
            pod.pod.labels,
            tuple(
                each.network_address
                for each in pod.link.allowed.prefixes
                if bridged and each.prefixlen == each.max_prefixlen
            ),
        )

    def _local(self, ports: Iterable[LocalPort]) -> dict[Key, PolicyPod]:
        """Pods by what came with their interfaces: several may be one pod's."""
        pods: dict[Key, PolicyPod] = {}
        for port in ports:
            known = pods.get(port.key, PolicyPod(port.key, (), {}))
            labels = {**(known.labels or {}), **dict(port.labels)}
            addresses = tuple(dict.fromkeys((*known.addresses, *port.addresses)))
            pods[port.key] = PolicyPod(port.key, addresses, labels)
        return pods

    @abstractmethod
    def _world(self, local: Mapping[Key, PolicyPod]) -> PolicyWorld:
        """`local`: pods of this node, as their interfaces tell."""

    def _compile(self, ports: Sequence[LocalPort]) -> Compiled:
        local = self._local(ports)
        world = self._world(local)
        return self._compiler.compile(world, (world.pods[key] for key in local))

    # What a person asks for

    async def answer(self, verb: str, arguments: Arguments) -> Said:
        """Raises: LimpetError."""
        match verb:
            case "policy.list":
                return self._list()
            case "policy.show":
                return self._show(_key(arguments))
            case "policy.judge":
                return self._judge(arguments)
            case _:
                return await self._change(verb, arguments)

    @abstractmethod
    async def _change(self, verb: str, arguments: Arguments) -> Said:
        """Raises: LimpetError."""

    @property
    @abstractmethod
    def _source(self) -> tuple[str, list[str]]:
        """Who tells policies, and what is wrong with that."""

    @property
    def problems(self) -> list[str]:
        """What is wrong with policies, or with who tells them."""
        return [*self._source[1], *self.part.compiled.closed]

    def _list(self) -> SaidPolicies:
        local = self._local(self._ports())
        world = self._world(local)
        pods = [world.pods[key] for key in local]
        return SaidPolicies(
            source=self._source[0],
            policies=[policy_line(each, pods) for _, each in sorted(world.policies.items())],
            problems=self.problems,
            dropped_packets=self.part.dropped_packets(),
        )

    def _show(self, key: Key) -> PodPolicies:
        local = self._local(self._ports())
        world = self._world(local)
        if key not in local:
            see = hint(str(key), map(str, local), "limpet ipam list tells which")
            raise LimpetError(f"policy show {key}: this node has no such pod now ({see})")
        return pod_policies(world, world.pods[key], compile_sides(world, [world.pods[key]]))

    def between(
        self, segments: Collection[Prefix], names: tuple[str, str]
    ) -> tuple[PolicySide, PolicySide]:
        """What is said of this node's pods and those of the node with these segments, at each of
        them: at the other one as far as is known here. `names`: of the two nodes."""
        local = self._local(self._ports())
        world = self._world(local)
        mine = [world.pods[key] for key in local]
        theirs = [
            pod
            for key, pod in world.pods.items()
            if key not in local
            and any(
                address.version == segment.version and address in segment
                for address in pod.addresses
                for segment in segments
            )
        ]
        return (
            side_of(world.policies, world.namespaces, mine, theirs, names),
            side_of(self._elsewhere(world), world.namespaces, theirs, mine, names[::-1]),
        )

    def _elsewhere(self, world: PolicyWorld) -> Mapping[Key, Policy]:
        """Policies that hold on other nodes as well."""
        return world.policies

    @property
    def unheard(self) -> str:
        """Says that nobody has told policies yet; empty: they are known."""
        return ""

    @property
    def knows_all_pods(self) -> bool:
        """No policy holds at an address that is no known pod's."""
        return False

    def _other_node_of(self, pod: PolicyPod) -> Collection[Address]:
        """What is known here of the addresses of the node that the pod is on."""
        return {
            segment[1]
            for segments in self._node_segments().values()
            if any(address in segment for address in pod.addresses for segment in segments)
            for segment in segments
        }

    def _judge(self, arguments: Arguments) -> Judged:
        """Judges `pairs` of addresses at `protocol` (empty: one without ports) and `port`."""
        local = self._local(self._ports())
        world = self._world(local)
        own = self.part.own_addresses()

        def node_of(pod: PolicyPod) -> Collection[Address]:
            return own if pod.key in local else self._other_node_of(pod)

        flows = []
        for source, target in arguments.get("pairs") or []:
            flow = _flow(source, target, arguments)
            ends = [
                end_line(each, here=each.pod in local, is_known=self.knows_all_pods)
                for each in judge(world, flow, node_of)
            ]
            said = {each.allowed for each in ends}
            flows.append(
                FlowLine(
                    source=str(flow.source),
                    target=str(flow.target),
                    protocol=flow.protocol or "",
                    port=flow.port,
                    allowed=False if False in said else None if None in said else True,
                    ends=ends,
                )
            )
        return Judged(flows=flows)


class OwnPolicies(Policies):
    """Told by a person, kept in a file."""

    def __init__(
        self,
        loop: Loop,
        path: Path,
        attachments: Iterable[Attachment],
        bridge_mac: Callable[[str], str],
        node_segments: NodeSegments = dict,
    ) -> None:
        """`path`: of the file. Where it is damaged all pods of this node are closed: nobody else
        knows what a person has told. Raises: LimpetError: it cannot be read, or a later Limpet has
        written it."""
        super().__init__(loop, attachments, bridge_mac, node_segments)
        self._path = path
        self.damage = ""
        try:
            self._book = kept_book(path)
        except DamagedBook as error:
            self._book, self.damage = Book(), str(error)
            _log.warning(
                "this node's policies are damaged, and its pods closed", problem=str(error)
            )
        self._changing = asyncio.Lock()

    def _world(self, local: Mapping[Key, PolicyPod]) -> PolicyWorld:
        doubts = closing_policies(local) if self.damage else {}
        policies = {**self._book.policies, **doubts}
        return PolicyWorld(policies, self._book.namespaces, self._labelled(local))

    def _elsewhere(self, world: PolicyWorld) -> Mapping[Key, Policy]:
        return {}

    def _labelled(self, local: Mapping[Key, PolicyPod]) -> dict[Key, PolicyPod]:
        return {
            key: replace(pod, labels={**(pod.labels or {}), **self._book.pods.get(key, {})})
            for key, pod in local.items()
        }

    def _own_pods(self) -> dict[Key, PolicyPod]:
        """Pods of this node, with the labels that they have."""
        return self._labelled(self._local(self._ports()))

    @property
    def _source(self) -> tuple[str, list[str]]:
        return str(self._path), [*filter(None, (self.damage,))]

    @property
    def unheard(self) -> str:
        return self.damage

    async def _change(self, verb: str, arguments: Arguments) -> Said:
        if self.damage and verb != "policy.apply":
            raise LimpetError(f"{verb.replace('.', ' ')}: {self.damage}")
        match verb:
            case "policy.apply":
                return await self._apply(arguments.get("documents") or [])
            case "policy.delete":
                key = _key(arguments)
                await self._turn(lambda book: book.without(key))
                return Applied(changed=[f"NetworkPolicy {key}"])
            case _:
                return await self._label(_key(arguments), arguments)

    async def _apply(self, documents: list[object]) -> Applied:
        names: list[str] = []

        def change(book: Book) -> Book:
            after, found = book.with_documents(documents)
            names.extend(found)
            return after

        await self._turn(change)
        return Applied(changed=names)

    async def _turn(self, change: Callable[[Book], Book]) -> None:
        """On disk, then in force, when this returns. Raises: LimpetError."""
        async with self._changing:
            # A damaged file may have been put right since, or deleted: that holds with the change,
            # so that no pod is open before it.
            known = await asyncio.to_thread(kept_book, self._path) if self.damage else self._book
            book = change(known)
            await asyncio.to_thread(_write, self._path, book)
            self._book, self.damage = book, ""
            self._loop.run("policies were changed", self.part)
        if failures := self._loop.account(self.part).failures:
            raise LimpetError(
                f"apply policies: kept, but not in force: {failures[0]} (it is tried again)"
            )

    async def _label(self, pod: Key, arguments: Arguments) -> PodLabels:
        put, drop = arguments.get("put") or {}, arguments.get("drop") or []
        await self._turn(lambda book: book.with_pod_labels(pod, put, map(str, drop)))
        self.pods_changed()
        found = self._own_pods().get(pod)
        labels = (found.labels if found is not None else None) or self._book.pods.get(pod, {})
        return PodLabels(pod=str(pod), labels=dict(labels))


def _key(arguments: Arguments) -> Key:
    return Key(str(arguments.get("namespace", "default")), str(arguments.get("name", "")))


def _flow(source: object, target: object, arguments: Arguments) -> Flow:
    """Raises: LimpetError."""
    protocol, port = arguments.get("protocol"), arguments.get("port") or 0
    if protocol not in ("", *PROTOCOLS) or not isinstance(port, int):
        raise LimpetError(f"policy judge: {protocol} {port}: no such protocol or port")
    try:
        ends = ip_address(str(source)), ip_address(str(target))
    except ValueError as error:
        raise LimpetError(f"policy judge: {error}") from error
    return Flow(*ends, protocol or None, port)


class DamagedBook(PolicyError):
    """There is a file, and not what was kept."""


def kept_book(path: Path) -> Book:
    """Empty where there is no file. Raises: StorageError, PolicyError, DamagedBook."""
    try:
        text = read_kept(path)
        return Book() if text is None else decode_book(text)
    except NewerFormatError as error:
        raise PolicyError(f"read {path}: {error}") from error
    except (PolicyError, StorageError) as error:
        if isinstance(error, StorageError) and not is_rotten(error):
            raise
        raise DamagedBook(
            f"read {path}: {error} (all pods of this node are closed: put it right and restart the "
            "agent; or delete it and apply all policies again while the agent runs, since one that "
            "starts without the file holds none)"
        ) from error


def _write(path: Path, book: Book) -> None:
    """Raises: StorageError."""
    with refusals("make folder", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, encode_book(book))
