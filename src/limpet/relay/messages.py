"""What nodes and relays say to each other: values <-> bytes, no sockets.

A relay joins two nodes' tunnels: each of the two has a UDP port of its own on the relay, and what
one sends to its port comes to the other from the other's port. All of it travels in signed
datagrams of the courier, by the tunnel's port, so that NATs treat it like the tunnel's packets.

    node                                relay                               peer
     | HELLO (nonce) ------------------> |                                    |
     | <-- SEEN (nonce, your endpoint)   |                                    |
     | ASK (nonce, peer) --------------> | PAIR (peer = node, its port) ----> |
     | <-- PAIR (nonce, peer, our port)  |                                    |
     | CHECK (nonce, port, no token) --> |  <---- the same from the peer ---> |
     | <-- TOKEN (nonce, port, token)    |                                    |
     | CHECK (nonce, port, token) -----> |  packets of this address and port are ours from now on
     | <-- BOUND (nonce, port, endpoint) |                                    |
     | tunnel packets to our port =====> | =====> the same packets ========>  |

CHECK goes to the pair's own port, with a magic word of its own that the relay's kernel tells from
what it forwards; everything else goes to the relay's tunnel port. A token is made for one node,
one port of the relay and one address, and lives for seconds: a recorded CHECK moves nothing.

Each message begins with a nonce: a signature of the same words is the same, and the courier drops
it as a replay.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, Final

from limpet.cluster.datagrams.peer_datagram import BodyKind, DatagramError, DropReason
from limpet.relay.layout import EndpointField, Field, Layout, Port, Uid

TOKEN_BYTES = 16
NONCE_BYTES = 8
Nonce = Annotated[bytes, Field(f"{NONCE_BYTES}s")]


class Refusal(IntEnum):
    """Why a relay gives no pair of ports."""

    NONE = 0
    NO_RELAY = 1
    MAY_NOT_TALK = 2
    QUOTA = 3
    FULL = 4


REASONS = {
    Refusal.NONE: "it gives no reason",
    Refusal.NO_RELAY: "it is no relay, or not any more",
    Refusal.MAY_NOT_TALK: "the two nodes share no community, or one was removed",
    Refusal.QUOTA: "the node has as many pairs there as it may have (relay_pairs_per_node)",
    Refusal.FULL: "all of its ports are given away (relay_ports)",
}
"""What a person is told of a refusal by a relay."""
RefusalField = Annotated[Refusal, Field("B", parse=Refusal)]


@dataclass(frozen=True, slots=True)
class Hello:
    """A node wants to know that the relay is there, how far away, and how it sees the node."""

    nonce: Nonce


@dataclass(frozen=True, slots=True)
class Seen:
    nonce: Nonce
    endpoint: EndpointField
    """Where the hello came from."""
    pairs_left: Annotated[int, Field("H")]
    """How many more pairs the node may ask for."""


@dataclass(frozen=True, slots=True)
class AskPair:
    nonce: Nonce
    peer: Uid


@dataclass(frozen=True, slots=True)
class Pair:
    """An answer, or, unasked, the news that a peer has asked for the two."""

    nonce: Nonce
    """All zeros: unasked."""
    peer: Uid
    port: Annotated[int, Field("H")]
    """The relay's UDP port for the node that is told; 0: refused."""
    refusal: RefusalField = Refusal.NONE
    lifetime_s: Annotated[int, Field("H")] = 0
    """Without a check for so long the pair is freed."""
    serial: Annotated[int, Field("I")] = 0
    """Counts unasked messages, so that none is dropped as a replay."""

    def __post_init__(self) -> None:
        """Raises: ValueError."""
        if (self.refusal is Refusal.NONE) == (self.port == 0):
            raise ValueError(f"port {self.port} with the refusal {self.refusal}")


@dataclass(frozen=True, slots=True)
class Check:
    nonce: Nonce
    port: Port
    """The relay's port that the node sends to."""
    token: Annotated[
        bytes, Field(f"{TOKEN_BYTES}s", parse=lambda raw: raw if any(raw) else b"")
    ] = b""
    """Empty, sent as zeros: the first one. So no answer is larger than what it answers."""


@dataclass(frozen=True, slots=True)
class Token:
    """The relay's kernel finds the port at this place, like Bound's (`server.forwarding`)."""

    nonce: Nonce
    """Nonce of the check that it answers, like Bound's."""
    port: Port
    token: Annotated[bytes, Field(f"{TOKEN_BYTES}s")]


@dataclass(frozen=True, slots=True)
class Bound:
    nonce: Nonce
    port: Port
    endpoint: EndpointField
    """Where packets of this end come from and go to now."""


@dataclass(frozen=True, slots=True)
class FreePair:
    """The node gives the pair up; the peer may still want it."""

    nonce: Nonce
    peer: Uid


RelayMessage = Hello | Seen | AskPair | Pair | Check | Token | Bound | FreePair
_LAYOUTS: Final[dict[int, Layout[Any]]] = {
    BodyKind.RELAY_HELLO: Layout(Hello),
    BodyKind.RELAY_SEEN: Layout(Seen),
    BodyKind.RELAY_ASK: Layout(AskPair),
    BodyKind.RELAY_PAIR: Layout(Pair),
    BodyKind.RELAY_CHECK: Layout(Check),
    BodyKind.RELAY_TOKEN: Layout(Token),
    BodyKind.RELAY_BOUND: Layout(Bound),
    BodyKind.RELAY_FREE: Layout(FreePair),
}
KIND_OF: Final[dict[type[RelayMessage], BodyKind]] = {
    layout.message: BodyKind(kind) for kind, layout in _LAYOUTS.items()
}
"""The datagram kind of each message."""


def encode(message: RelayMessage) -> bytes:
    """The body. Raises: ValueError, struct.error for what no parser would take."""
    return _LAYOUTS[KIND_OF[type(message)]].encode(message)


def parse(kind: int, body: bytes) -> RelayMessage:
    """Raises: DatagramError (malformed)."""
    if kind not in _LAYOUTS:
        raise DatagramError(DropReason.MALFORMED, f"kind {kind} is nothing of relays")
    try:
        message: RelayMessage = _LAYOUTS[kind].parse(body)
    except (struct.error, ValueError) as error:
        raise DatagramError(
            DropReason.MALFORMED, f"it is no {BodyKind(kind).name}: {error}"
        ) from error
    return message
