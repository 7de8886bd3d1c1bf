"""How an API server stands as the second road of documents: values, without what it takes to ask it
(`api_server`), which is in memory only where it is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from limpet.cluster.kinds import KINDS, PRESENCE
from limpet.cluster.membership import News

PUBLISHED_THERE = frozenset({PRESENCE.name})
"""Kinds of documents that a node writes at the API server, and not to its controller."""
UNTOLD_THERE = tuple(kind.name for kind in KINDS.for_all_nodes())
"""Kinds of documents that no object there carries, after the one that says which keys sign them: a
node hears these of its controller."""


@dataclass(frozen=True, slots=True)
class ApiServerState:
    """How the API server is reached, for a person."""

    server: str
    """Its address, and what says so; empty: nothing that can be used says where it is."""
    connected: bool
    since_s: float
    """When `connected` changed last, on the monotonic clock."""
    error: str = ""
    """Why it is not connected; empty: it is, or has not tried yet."""
    refuses: bool = False
    """It answers, and says that this node's account is nobody's or may not."""
    refused: str = ""
    """Why this node's own presence is not there, in its words."""
    unusable: tuple[str, ...] = ()
    """Objects that count for nothing, a few of them, and why."""
    told: tuple[str, ...] = ()
    """What the controller says is not as it should be with this node, in the objects' status."""
    clock_ahead_s: float = 0.0
    """How far this machine's clock is ahead of the API server's, if it is wrong."""


class SecondRoad(Protocol):
    """Runs on the event loop; what fails is told in `state` and tried again."""

    @property
    def state(self) -> ApiServerState: ...

    def start(self) -> None: ...

    async def stop(self) -> None: ...

    def network_changed(self) -> None: ...

    def hear(self, news: News) -> None: ...
