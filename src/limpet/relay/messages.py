"""What nodes and relays say to each other, and what a node knows of relays. No secrets of pairs.

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

Whatever may be said twice carries a nonce: a signature of the same words is the same, and the
courier drops it as a replay.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from limpet.base.addresses import Endpoint

TOKEN_BYTES = 16
NONCE_BYTES = 8


class Refusal(IntEnum):
    """Why a relay gives no pair of ports."""

    NONE = 0
    NO_RELAY = 1
    """It is none, or is not any more."""
    MAY_NOT_TALK = 2
    """The two share no community, or one is no member."""
    QUOTA = 3
    """The node has as many pairs as it may have."""
    FULL = 4
    """All of the relay's ports are given away."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A node wants to know that the relay is there, how far away, and how it sees the node."""

    nonce: bytes


@dataclass(frozen=True, slots=True)
class Seen:
    nonce: bytes
    endpoint: Endpoint
    """Where the hello came from."""
    pairs_left: int
    """That this node may still ask for."""


@dataclass(frozen=True, slots=True)
class AskPair:
    nonce: bytes
    peer: str
    """Uid."""
    stream: bool = False
    """The node's end is a TLS connection and not an address."""


@dataclass(frozen=True, slots=True)
class Pair:
    """An answer, or, unasked, the news that a peer has asked for the two."""

    nonce: bytes
    """All zeros: unasked."""
    peer: str
    """Uid."""
    port: int
    """The relay's UDP port for the node that is told; 0: refused."""
    refusal: Refusal = Refusal.NONE
    lifetime_s: int = 0
    """Without a check for so long the pair is freed."""
    serial: int = 0
    """Unasked: tells it from what the relay has said before."""


@dataclass(frozen=True, slots=True)
class Check:
    nonce: bytes
    port: int
    """The relay's port that the node sends to."""
    token: bytes = b""
    """Empty: the first one."""


@dataclass(frozen=True, slots=True)
class Token:
    nonce: bytes
    """Of the check that it answers, like Bound's."""
    port: int
    token: bytes


@dataclass(frozen=True, slots=True)
class Bound:
    nonce: bytes
    port: int
    endpoint: Endpoint
    """Where packets of this end come from and go to now."""


@dataclass(frozen=True, slots=True)
class FreePair:
    """The node needs the pair no more; the other end may still."""

    nonce: bytes
    peer: str
    """Uid."""


RelayMessage = Hello | Seen | AskPair | Pair | Check | Token | Bound | FreePair
