"""What the choice of relays wants done."""

from __future__ import annotations

from dataclasses import dataclass

from limpet.base.addresses import Endpoint
from limpet.cluster.topology.paths import RelayEnd
from limpet.relay.messages import RelayMessage


@dataclass(frozen=True, slots=True)
class Send:
    relay: str
    endpoint: Endpoint
    message: RelayMessage
    """A check goes to the port of a pair, all others to the relay's tunnel's port."""


@dataclass(frozen=True, slots=True)
class OpenStream:
    relay: str
    peer: str


@dataclass(frozen=True, slots=True)
class CloseStreams:
    """All of the peer's."""

    peer: str


@dataclass(frozen=True, slots=True)
class Ends:
    """The ends that lead to the peer now, the most promising first."""

    peer: str
    ends: tuple[RelayEnd, ...]


@dataclass(frozen=True, slots=True)
class SeenAs:
    """A relay that was asked has said where the question came from."""

    asked_at: Endpoint
    seen_as: Endpoint


Effect = Send | OpenStream | CloseStreams | Ends | SeenAs
