"""The best path of those that are proven, and what a path stands on. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from limpet.base.addresses import Address, Prefix, UnderlayLink, smallest_around
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath
from limpet.cluster.topology.transports import ProbeKind, Transport, by_preference
from limpet.paths.ladder.candidates import (
    CandidateFacts,
    candidate_of_end,
    joined_hops,
    known_addresses,
    link_candidate,
    nearness,
    port_of,
    tunnel_candidate,
)
from limpet.paths.ladder.path_mtu import LEAST_BYTES
from limpet.paths.ladder.probe_state import FIRM, MEASURED, SHAKY, ProbeState
from limpet.paths.probe.messages import AnsweredBy, Candidate

_MTU_BYTES = 1500
_MUCH_SLOWER, _MUCH_SLOWER_S = 1.5, 0.02
"""A relay is left for another that is so much faster, where both were measured."""
_PATIENCE_S = 10.0
"""Without an answer, then what is not proven yet is good enough; with traffic it is at once."""


@dataclass(frozen=True, slots=True)
class PathChoice:
    """Choice among the ways to one peer, at one time."""

    facts: CandidateFacts
    links: tuple[UnderlayLink, ...]
    states: Mapping[Candidate, ProbeState]
    path: PeerPath | None
    """The present path: of two that are as good it stays."""
    lead: Candidate | None = None
    """Candidate by which the peer's packets come, where the peer chooses for both."""

    def best(self) -> tuple[PeerPath | None, int]:
        """The best path and its grade: addresses that the peer still names come first."""
        named = self.facts.named
        every = known_addresses(self.facts, self.path)
        grades = {state.grade for state in self.states.values()}
        for grade in sorted(grades - {0}, reverse=True):
            for addresses in (named, every) if named != every else (named,):
                for rung in by_preference():
                    path = self._in_clear(rung, addresses, grade)
                    if path is not None:
                        return path, grade
            path = self._tunnelled(grade)
            if path is not None:
                return path, grade
        return None, 0

    def _in_clear(
        self, rung: Transport, addresses: Iterable[Address], grade: int
    ) -> PeerPath | None:
        match rung.proof:
            case ProbeKind.OVERLAY:
                return self._over_link(rung, addresses, grade)
            case ProbeKind.SITE:
                return self._over_underlay(rung, addresses, grade)
            case _:
                return None

    def _over_link(
        self, rung: Transport, addresses: Iterable[Address], grade: int
    ) -> PeerPath | None:
        now = self.path
        device, hops = (now.device, now.next_hops) if now is not None else ("", ())
        named = tuple(addresses)
        # Stability: what is in use stays, as long as nothing else is better.
        ordered = (*(hop for hop in hops if hop in named), *(a for a in named if a not in hops))
        for link in sorted(self.links, key=lambda link: link.ifname != device):
            found: dict[int, Address] = {}
            for address in ordered:
                for version in self.facts.overlay:
                    candidate = Candidate(
                        ProbeKind.OVERLAY, address, self._port(address), link.ifname, version
                    )
                    if (
                        self._grade(candidate) >= grade
                        and self._grade(link_candidate(candidate)) >= grade
                    ):
                        found.setdefault(version, address)
            next_hops = joined_hops(found, self.facts.overlay)
            if next_hops:
                beside = self._underlay(transports.VXLAN, named, grade, first=next_hops[0])
                on_link = [own.network for own in link.addresses]
                subnets = [each for hop in next_hops for each in smallest_around(hop, on_link)]
                subnets += self._subnets_to(*beside) if beside is not None else ()
                return PeerPath(
                    rung,
                    link.mtu_bytes,
                    link.ifname,
                    next_hops,
                    beside[0] if beside is not None else None,
                    prefixes=tuple(dict.fromkeys(subnets)),
                )
        return None

    def _over_underlay(
        self, rung: Transport, addresses: Iterable[Address], grade: int
    ) -> PeerPath | None:
        found = self._underlay(rung, addresses, grade)
        if found is None:
            return None
        address, via = found
        now = self.path
        kept = now if now is not None and not now.rung.encrypted else None
        by = [link for link in self.links if link.ifname == via.ifname]
        mtu_bytes = by[0].mtu_bytes if by else kept.mtu_bytes if kept else _MTU_BYTES
        if not by and kept is not None and kept.underlay == address:
            prefixes = kept.prefixes
        else:
            prefixes = self._subnets_to(address, via)
        return PeerPath(rung, mtu_bytes, underlay=address, prefixes=prefixes)

    def _subnets_to(self, end: Address, via: AnsweredBy) -> tuple[Prefix, ...]:
        """Subnets of the node by which the end is reached: the one that it is in or, where routers
        are between, that of our own address towards it; all of the link, if that is none's."""
        every = {
            own.network: link.ifname
            for link in self.links
            for own in link.addresses
            if own.version == end.version
        }
        by_link = tuple(each for each, ifname in every.items() if ifname == via.ifname)
        return (
            smallest_around(end, every)
            or smallest_around(via.own, every)
            or by_link
            or tuple(every)
        )

    def _underlay(
        self,
        rung: Transport,
        addresses: Iterable[Address],
        grade: int,
        *,
        first: Address | None = None,
    ) -> tuple[Address, AnsweredBy] | None:
        """Where packets of the peer's device may go, and how an answer came from there."""
        best: tuple[tuple[bool, bool, bool], Address, AnsweredBy] | None = None
        now = self.path.underlay if self.path is not None else None
        for address in addresses:
            if (rung.name, address.version) not in self.facts.devices:
                continue
            links = [each for each in self.links_to(address) if each.grade >= grade]
            site = self.states.get(Candidate(ProbeKind.SITE, address, self._port(address)))
            proof = links or [each for each in (site,) if each and each.grade >= grade]
            if proof:
                rank = (address != first, address != now, not links)
                if best is None or rank < best[0]:
                    best = rank, address, proof[0].via
        return best[1:] if best is not None else None

    def _tunnelled(self, grade: int) -> PeerPath | None:
        found = [
            (candidate, state)
            for candidate, state in self.states.items()
            if candidate.kind is ProbeKind.TUNNEL and state.grade >= grade
        ]
        if not found:
            return None
        present = self._kept_relay(found)
        order = {candidate_of_end(end): number for number, end in enumerate(self.facts.relay_ends)}

        def rank(
            each: tuple[Candidate, ProbeState],
        ) -> tuple[bool, tuple[int, int], bool, int, float]:
            candidate, state = each
            place = order.get(candidate, len(order))
            return (
                candidate != self.lead,
                state.rank,
                candidate != present,
                place,
                state.rtt_s,
            )

        candidate, state = min(found, key=rank)
        rung = self.rung(candidate)
        mtu_bytes = state.mtu_bytes or LEAST_BYTES
        return PeerPath(
            rung, mtu_bytes, endpoint=(candidate.address, candidate.port), relay=candidate.relay
        )

    def _kept_relay(self, found: list[tuple[Candidate, ProbeState]]) -> Candidate | None:
        """The present path's candidate; where it goes by a relay, another that is much faster."""
        present = tunnel_candidate(self.path) if self.path is not None else None
        if present is None or not present.relay:
            return present
        now = self.states.get(present)
        others = [
            (state.rtt_s, candidate)
            for candidate, state in found
            if now and state.rank == now.rank and state.streaks.answers >= MEASURED
        ]
        if now is None or not others:
            return present
        fastest_s, fastest = min(others, key=lambda each: each[0])
        slow = now.rtt_s > _MUCH_SLOWER * fastest_s + _MUCH_SLOWER_S
        return fastest if slow and now.streaks.answers >= MEASURED else present

    def rank(self, candidate: Candidate) -> tuple[int, int]:
        """Rank of a tunnelled way: the lower one is better, wherever both are proven."""
        near = nearness(candidate.address, self.links, ipv6_last=self.facts.ipv6_last)
        return self.rung(candidate).preference, 0 if candidate.relay else near

    def rung(self, candidate: Candidate) -> Transport:
        """What an answer stands for; of a relay, what its end says."""
        if not candidate.relay:
            on_link = candidate.kind is ProbeKind.LINK
            return self._straight(
                ProbeKind.OVERLAY if on_link else candidate.kind, candidate.address.version
            )
        for end in self.facts.relay_ends:
            if candidate_of_end(end) == candidate:
                return end.rung
        known = self.path is not None and tunnel_candidate(self.path) == candidate
        return self.path.rung if self.path is not None and known else transports.RELAY

    def _straight(self, proof: ProbeKind, version: int) -> Transport:
        """The best row that is proven so, by no relay, and that both ends have a device for; the
        last one, where they have none."""
        rows = [
            row for row in transports.TRANSPORTS.values() if row.proof is proof and not row.relayed
        ]
        usable = [
            row for row in rows if row.versions is None or (row.name, version) in self.facts.devices
        ]
        if usable:
            return min(usable, key=lambda row: row.preference)
        return max(rows, key=lambda row: row.preference)

    def may_leave(self, best: PeerPath, grade: int, now_s: float, *, patient: bool) -> bool:
        """Whether the present path may be left for `best`, of that grade: it is better, or what the
        present one stands on is lost and the other has answered since.

        `patient`: what is not proven yet has to wait until the other was silent for long.
        """
        if self.path is None:
            return True
        proofs = self.proofs(self.path)
        lost = [proof for proof in proofs if not _any_of(proof, FIRM)]
        if not lost:
            return True
        if all(_any_of(proof, SHAKY) for proof in proofs):
            return False  # it answers again
        last_s = min(max(state.streaks.answered_s for state in proof) for proof in lost)
        if grade < FIRM and patient and last_s > now_s - _PATIENCE_S:
            return False
        since_s = min(state.streaks.failing_s for proof in lost for state in proof)
        return all(
            max(each.streaks.answered_s for each in proof if each.grade >= grade) >= since_s
            for proof in self.proofs(best)
        )

    # What a path stands on

    def proofs(self, path: PeerPath) -> list[list[ProbeState]]:
        """States by group: of each group one has to answer. What is asked no more is in none."""
        groups = (
            [self.states.get(candidate) for candidate in group] for group in self._groups(path)
        )
        return [found for group in groups if (found := [each for each in group if each])]

    def stands_on(self, path: PeerPath | None) -> frozenset[Candidate]:
        groups = self._groups(path) if path is not None else ()
        return frozenset(candidate for group in groups for candidate in group)

    def _groups(self, path: PeerPath) -> Iterator[list[Candidate]]:
        tunnelled = tunnel_candidate(path)
        if tunnelled is not None:
            yield [tunnelled]
            return
        if path.rung.proof is ProbeKind.SITE:
            if path.underlay is not None:
                site = Candidate(ProbeKind.SITE, path.underlay, self._port(path.underlay))
                links = (link.ifname for link in self.links)
                yield [site, *(site._replace(kind=ProbeKind.LINK, device=name) for name in links)]
            return
        four = any(hop.version == 4 for hop in path.next_hops)
        for hop in path.next_hops:
            versions = (4, 6) if hop.version == 6 and not four else (hop.version,)
            over = Candidate(ProbeKind.OVERLAY, hop, self._port(hop), path.device)
            yield [link_candidate(over)]
            for version in versions:
                if version in self.facts.overlay:
                    yield [over._replace(version=version)]

    def links_to(self, address: Address) -> Iterator[ProbeState]:
        for candidate, state in self.states.items():
            if candidate.kind is ProbeKind.LINK and candidate.address == address:
                yield state

    def _grade(self, candidate: Candidate) -> int:
        state = self.states.get(candidate)
        return state.grade if state is not None else 0

    def _port(self, address: Address) -> int:
        return port_of(self.facts, address)


def _any_of(proof: list[ProbeState], grade: int) -> bool:
    return any(state.grade >= grade for state in proof)
