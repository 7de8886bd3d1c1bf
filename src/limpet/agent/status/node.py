"""Answers about a node and its pods."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from limpet.agent.status.cluster import ClusterStatus
from limpet.agent.status.said import LastRound, Said, Seconds
from limpet.ipam import leases

FEW_ADDRESSES = 0.1
"""Share of a node's addresses; with fewer a node is nearly full."""


class SegmentUse(Said, frozen=True, kw_only=True):
    """A segment of this node, and how many of its addresses are in each state."""

    prefix: str
    size: int
    free: int
    live: int
    resting: int
    bound: int

    @property
    def version(self) -> int:
        """IP version."""
        return 6 if ":" in self.prefix else 4

    @property
    def left(self) -> int:
        """Addresses that a further pod may get: what rests, or is kept for absent pods, is given
        where nothing else is left."""
        return self.size - self.live


class Room(StrEnum):
    """Whether a further pod gets its addresses on this node."""

    FREE = "free"
    NEARLY_FULL = "nearly full"
    FULL = "full"


def room_of(segments: Iterable[SegmentUse]) -> tuple[Room, str]:
    """And why it is not free, in words.

    A pod takes one address of each IP version that the node has, so the fuller of the two counts.
    """
    by_version: dict[int, list[SegmentUse]] = {}
    for each in segments:
        by_version.setdefault(each.version, []).append(each)
    few: list[str] = []
    for version, found in sorted(by_version.items()):
        left, size = sum(each.left for each in found), sum(each.size for each in found)
        prefixes = ", ".join(each.prefix for each in found)
        if left <= 0:
            return Room.FULL, f"pods have all {size} IPv{version} addresses of {prefixes}"
        if left < size * FEW_ADDRESSES:
            few.append(f"{left} of {size} IPv{version} addresses of {prefixes} are left")
    return (Room.NEARLY_FULL, "; ".join(few)) if few else (Room.FREE, "")


class NetworkUse(Said, frozen=True, kw_only=True):
    """A CNI network, and how many addresses it has in use and keeps for absent pods."""

    name: str
    live: int
    bound: int


class UnknownKey(Said, frozen=True, kw_only=True):
    """A key of a network's configuration that nobody knows."""

    network: str
    key: str


class RecordFinding(Said, frozen=True, kw_only=True):
    """What is wrong with a file of the records of addresses."""

    path: str
    problem: str
    advice: str


class Process(Said, frozen=True, kw_only=True):
    """The process of the agent, and whether pods can be started."""

    version: str
    pid: int
    uptime_s: Seconds
    ready: bool
    reasons: list[str]


class PodsHere(Process, frozen=True, kw_only=True):
    """What this node's pods are attached to, and whether they are reached."""

    bridge: str
    mtu_bytes: int
    attachments: int
    closed: str
    """Why all pods of this node are closed, whatever policies say; empty: they are not."""


class Status(PodsHere, frozen=True, kw_only=True):
    """`limpet status`."""

    cluster: ClusterStatus | None
    cluster_cidrs: list[str]
    segments: list[SegmentUse]
    room: Room
    why_full: str
    """Also of a node that is nearly full; empty: there is room."""
    networks: list[NetworkUse]
    unknown_keys: list[UnknownKey]
    findings: list[RecordFinding]
    last_round: LastRound


class AddressRecord(Said, frozen=True, kw_only=True):
    """A line of `limpet ipam list`."""

    network: str
    address: str
    state: str
    container_id: str
    ifname: str
    pod_namespace: str
    pod: str
    order: int


def record_line(network: str, record: leases.AddressRecord) -> AddressRecord:
    """One line of `limpet ipam list`."""
    return AddressRecord(
        network=network,
        address=str(record.address),
        state=record.state.value,
        container_id=record.holder.container_id if record.holder else "",
        ifname=record.holder.ifname if record.holder else "",
        pod_namespace=record.key.namespace if record.key else "",
        pod=record.key.pod if record.key else "",
        order=record.order,
    )


class Leak(Said, frozen=True, kw_only=True):
    """An address that is held, and that nothing uses."""

    network: str
    address: str
    container_id: str
    ifname: str
    why: str


class Records(Said, frozen=True, kw_only=True):
    """`limpet ipam list`."""

    records: list[AddressRecord]


class RecordCheck(Said, frozen=True, kw_only=True):
    """`limpet ipam check`."""

    leaks: list[Leak] | None
    """None: only an agent can tell which addresses are in use."""
    findings: list[RecordFinding]


class Repaired(Said, frozen=True, kw_only=True):
    """`limpet ipam repair`."""

    released: list[Leak]


class Released(Said, frozen=True, kw_only=True):
    """`limpet ipam release`."""

    released: list[str]


class Attached(Said, frozen=True, kw_only=True):
    """What is attached, as it is kept in /run."""

    attachments: list[dict[str, Any]]
