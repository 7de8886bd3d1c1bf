"""What is known of the ways to a peer, for a person and for the controller. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from limpet.base.addresses import endpoint_text
from limpet.cluster.topology.paths import PeerPath
from limpet.cluster.topology.transports import Transport
from limpet.paths.ladder.candidates import is_direct
from limpet.paths.ladder.choice import PathChoice
from limpet.paths.ladder.ladder import Ladder
from limpet.paths.ladder.probe_state import ProbeState
from limpet.paths.ladder.silence import round_trip_s
from limpet.paths.probe.messages import Candidate


@dataclass(frozen=True, slots=True)
class WaySummary:
    """Summary of the path in use, as the ladder is while it is read: its figures are found out
    for who asks, since of a thousand peers a few are asked."""

    path: PeerPath | None
    is_silent: bool
    """The peer answers by no way."""
    choice: PathChoice

    @property
    def rtt_s(self) -> float:
        """Smoothed; 0: not measured yet."""
        return _rtt_s(self.choice)

    @property
    def loss(self) -> float | None:
        """Share of its last probes that were not answered; None: none was asked."""
        return _loss(self.choice)


def summarize(ladder: Ladder) -> WaySummary:
    choice = ladder.choice()
    return WaySummary(choice.path, ladder.is_silent, choice)


def _rtt_s(choice: PathChoice) -> float:
    """Round trip by what proves the rung: beside it the link of a route is asked, but seldom."""
    proof = choice.path.rung.proof if choice.path is not None else None
    proving = [
        state.rtt_s
        for candidate, state in choice.states.items()
        if state.used and candidate.kind is proof
    ]
    return max(proving, default=0.0) or round_trip_s(choice)


def _loss(choice: PathChoice) -> float | None:
    """The worst loss of what the path stands on; where one of several is enough, the least."""
    proofs = choice.proofs(choice.path) if choice.path is not None else ()
    known = [[each.streaks.loss for each in proof] for proof in proofs]
    least = [min(found) for proof in known if (found := [x for x in proof if x is not None])]
    return max(least, default=None)


@dataclass(frozen=True, slots=True)
class CandidateSummary:
    """A candidate, and what became of its probes."""

    candidate: Candidate
    rung: Transport
    """Rung that the pair takes by its answer."""
    state: ProbeState


def asked_of(ladder: Ladder) -> list[CandidateSummary]:
    """All that may be asked of the peer, the best rung first."""
    choice = ladder.choice()
    found = [
        CandidateSummary(each, choice.rung(each), state) for each, state in choice.states.items()
    ]
    return sorted(found, key=lambda each: (each.rung.preference, each.candidate.kind))


SYMMETRIC, BLOCKED = "symmetric", "blocked"
"""Kinds of NAT (`nat.mapping.NatKind`) that decide whether two ends reach each other."""


@dataclass(frozen=True, slots=True)
class Indirect:
    """Why a pair has no way of its own, and what would mend that, the likeliest first."""

    why: str
    mend: tuple[str, ...] = ()


_FORWARD = (
    "forward the UDP port of either node's tunnel to it at its gateway, and name that in "
    "`tunnel_endpoints`",
    "let the gateway give ports by UPnP, NAT-PMP or PCP (`port_mapping` asks for one)",
    "give either site IPv6, or a public address",
)


def why_indirect(ladder: Ladder, nat: str) -> Indirect | None:
    """None: the path goes straight to the peer, or there is none at all that a relay could carry.

    `nat`: kind of NAT in front of this node, of the path's IP version.
    """
    choice = ladder.choice()
    facts, path = choice.facts, choice.path
    if path is not None and not path.relay:
        return None
    if not facts.tunnel:
        return Indirect(
            "one of the two has no encrypted tunnel, so nothing goes between their sites",
            ("`limpet doctor` on both nodes says which lacks it, and which package has it",),
        )
    if nat == BLOCKED:
        return Indirect(
            "no relay answers over UDP: it does not get out of this site, or they are off",
            (
                "let UDP out at this site's firewall: answers to what was sent are enough",
                "look at the relays: `limpet doctor` on them",
            ),
        )
    direct = [each for each in asked_of(ladder) if is_direct(each.candidate)]
    if not direct and nat == SYMMETRIC:
        return Indirect(
            "this node's NAT shows each other node another port, and the peer names no address at "
            "which its tunnel could be asked: its NAT does so too, most likely",
            (*_FORWARD, "limpet doctor on that node"),
        )
    if not direct:
        return Indirect(
            "the peer names no address at which its tunnel could be asked: its NAT shows each "
            "other node another port, or it has not heard yet how it is seen from outside",
            ("limpet doctor on that node", *_FORWARD),
        )
    asked = [each for each in direct if not each.state.grade]
    names = ", ".join(_endpoints(asked[:4]))
    silent = f"none of the peer's {len(direct)} endpoints answers over UDP ({names})"
    if nat == SYMMETRIC:
        return Indirect(
            f"this node's NAT shows each other node another port, and {silent}: the peer's NAT "
            "lets in only whom it knows by address and port",
            _FORWARD,
        )
    return Indirect(silent, ("let UDP in at the peer's site, or out of this one", *_FORWARD))


def _endpoints(asked: list[CandidateSummary]) -> Iterator[str]:
    for each in asked:
        yield endpoint_text((each.candidate.address, each.candidate.port))
