"""`limpet ping`: what came back of one round of probes and packets."""

from __future__ import annotations

from limpet.agent.status.said import Said


class PingWay(Said, frozen=True, kw_only=True):
    """A probe by one way to the node, and its answer."""

    rung: str
    version: int
    address: str
    """Where it was sent: an address, or an endpoint of a tunnel."""
    device: str
    relay: str
    in_use: bool
    """The pair's packets go this way."""
    rtt_ms: float | None
    """None: no answer within a second."""


class PingPacket(Said, frozen=True, kw_only=True):
    """A packet (ICMP echo) through the datapath, as pods send them, and its answer."""

    address: str
    rtt_ms: float | None
    problem: str
    """Why the kernel did not send it; empty: it did."""


class PingAnswer(Said, frozen=True, kw_only=True):
    """One round."""

    node: str
    """Node that is asked; empty: no other node is."""
    uid: str
    pod: str
    addresses: list[str]
    rung: str
    """Rung that the pair's packets take now; empty: there is none."""
    ways: list[PingWay]
    packets: list[PingPacket]
    why: str
    """Why no way could be probed; empty: they were."""
