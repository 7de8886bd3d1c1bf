"""What is told of a world, for a person and for programs; JSON output has these keys."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from limpet.lab.measure.paths import SeenPath


class SiteShown(Struct, frozen=True, kw_only=True):
    """A site of a world."""

    site: str
    lan: list[str]
    nat: str
    public_address: str
    udp_blocked: bool


class NodeRunning(Struct, frozen=True, kw_only=True):
    """A node of a world."""

    node: str
    site: str
    addresses: list[str]
    agent: str
    pid: int | None
    segments: list[str]
    pods: int
    clock: str | None
    """What time its agent was told that it is; None: it has the true one."""
    disk_full: bool
    config: str


class PodRunning(Struct, frozen=True, kw_only=True):
    """A pod of a world."""

    pod: str
    node: str
    addresses: list[str]
    there: bool


class ControllerRunning(Struct, frozen=True, kw_only=True):
    """The controller of a world."""

    pid: int | None
    endpoints: list[str]
    config: str


class Unanswered(Struct, frozen=True, kw_only=True, rename={"source": "from", "target": "to"}):
    """A ping that nobody answered."""

    source: str
    target: str
    address: str


class Reach(Struct, frozen=True, kw_only=True):
    """Who reached whom."""

    pings: int
    unanswered: list[Unanswered]


class WorldShown(Struct, frozen=True, kw_only=True):
    """`limpet lab up` and `limpet lab status`."""

    world: str
    topology: str
    folder: str
    cut_off: list[str]
    controller: ControllerRunning
    sites: list[SiteShown]
    nodes: list[NodeRunning]
    paths: list[SeenPath]
    pods: list[PodRunning]
    reach: Reach | UnsetType = UNSET
    """With --ping."""
