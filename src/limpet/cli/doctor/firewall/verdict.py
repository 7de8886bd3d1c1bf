"""What others' firewall rules do to packets of a kind, as far as rules tell it. Pure.

Conditions that cannot be known here (marks, rates, sets that programs fill) leave it open: a rule
that drops under one may drop, if it is about just these packets; one that accepts under one counts
only if it is about where packets come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from limpet.base.addresses import Prefix
from limpet.cli.doctor.firewall.values import (
    Action,
    Chain,
    Condition,
    Dropped,
    Field,
    Match,
    Rule,
    Span,
    Traffic,
    Verdict,
)

_DEEPEST = 16
"""Source: NFT_JUMP_STACK_SIZE, include/net/netfilter/nf_tables.h."""
_FAMILIES = {"ip": (4,), "ip6": (6,), "inet": (4, 6)}


class _Fits(IntEnum):
    """Of all tests together the least, of alternatives the most."""

    NO = 0
    PART = 1
    """Of packets whose ports or protocol are not told here: some."""
    OPEN = 2
    """Not known."""
    ADDRESSES = 3
    """Of packets from or to anywhere: those with some addresses."""
    SOME = 4
    """Known ones of them."""
    YES = 5


def find_drop(
    chains: Mapping[tuple[str, str, str], Chain], base: Chain, traffic: Traffic
) -> Dropped | None:
    """Whether packets of the kind are dropped by a base chain, or may be; None: not, as it seems.

    A chain that lets some of them in, by their source, is a person's will and counts as open.
    """
    if traffic.version not in _FAMILIES.get(base.family, ()):
        return None
    walk = _Walk(chains, traffic)
    ended = walk.through(base, _Fits.YES, telling=False, depth=0)
    if not ended and base.drops:
        walk.end(Dropped(base, None, surely=True))
    return walk.dropped


@dataclass(slots=True)
class _Walk:
    chains: Mapping[tuple[str, str, str], Chain]
    traffic: Traffic
    dropped: Dropped | None = None
    admits: bool = False
    """Some packets of the kind were accepted before."""
    _returned: bool = field(default=False)

    def end(self, dropped: Dropped) -> None:
        if not self.admits:
            self.dropped = dropped

    def through(self, chain: Chain, fits: _Fits, *, telling: bool, depth: int) -> bool:
        """Whether all packets of the kind, where all came here, have met their end."""
        for rule in chain.rules:
            now = min(fits, *(_fits(match, self.traffic) for match in rule.matches), _Fits.YES)
            if now is _Fits.NO:
                continue
            tells = telling or any(_is_told(match, self.traffic) for match in rule.matches)
            for verdict in rule.verdicts:
                ended = self._meet(chain, rule, verdict, now, telling=tells, depth=depth)
                if ended is not None:
                    return ended
        return False

    def _meet(
        self,
        chain: Chain,
        rule: Rule,
        verdict: Verdict,
        fits: _Fits,
        *,
        telling: bool,
        depth: int,
    ) -> bool | None:
        """None: packets go on to what follows; False: back to where the chain was entered from."""
        if verdict.only is not None:
            fits = min(fits, _fits(verdict.only, self.traffic))
            telling = telling or _is_told(verdict.only, self.traffic)
        if fits is _Fits.NO:
            return None
        surely = fits is _Fits.YES
        match verdict.action:
            case Action.ACCEPT:
                self.admits |= fits in (_Fits.ADDRESSES, _Fits.SOME)
                return True if surely else None
            case Action.DROP:
                if surely:
                    self.end(Dropped(chain, rule, surely=True))
                elif telling and self.dropped is None and self._counts(fits):
                    self.dropped = Dropped(chain, rule, surely=False)
                return True if surely else None
            case Action.RETURN:
                return False if surely else None
        inner = self.chains.get((chain.family, chain.table, verdict.target))
        if inner is None or depth >= _DEEPEST:
            return None
        if self.through(inner, fits, telling=telling, depth=depth + 1) and surely:
            return True
        return False if surely and verdict.action is Action.GOTO else None

    def _counts(self, fits: _Fits) -> bool:
        by_port = self.traffic.port is not None
        return fits in (_Fits.OPEN, _Fits.SOME) or (fits is _Fits.ADDRESSES and by_port)


def _is_told(match: Match, traffic: Traffic) -> bool:
    return not match.negated and any(
        test.field in traffic.telling and test.values is not None and _fits_test(test, traffic)
        for tests in match.alternatives
        for test in tests
    )


def _fits(match: Match, traffic: Traffic) -> _Fits:
    found = max(
        (
            min((_fits_test(test, traffic) for test in tests), default=_Fits.YES)
            for tests in match.alternatives
        ),
        default=_Fits.NO,
    )
    if match.negated and found in (_Fits.YES, _Fits.NO):
        return _Fits.NO if found is _Fits.YES else _Fits.YES
    return found


def _fits_test(test: Condition, traffic: Traffic) -> _Fits:
    if test.version not in (0, traffic.version):
        return _Fits.NO
    if test.field is Field.PORTS_UNREAD:
        return _Fits.SOME if traffic.port is not None else _Fits.PART
    if test.values is None or test.field is Field.ODD:
        return _Fits.OPEN
    names = [value for value in test.values if isinstance(value, str)]
    spans = [value for value in test.values if not isinstance(value, str)]
    match test.field:
        case Field.IIF:
            return _of_links(traffic.iifs, names)
        case Field.OIF:
            return _of_links(traffic.oifs, names)
        case Field.VERSION:
            return _Fits.YES if f"ipv{traffic.version}" in names else _Fits.NO
        case Field.STATE:
            return _Fits.YES if traffic.state in names else _Fits.NO
        case Field.PROTOCOL:
            if not traffic.protocol:
                return _Fits.PART
            return _Fits.YES if traffic.protocol in names else _Fits.NO
        case Field.PORT:
            if traffic.port is None:
                return _Fits.PART
            return _of_spans([(traffic.port, traffic.port)], spans)
        case Field.SOURCE:
            return _of_prefixes(traffic.sources, spans)
        case _:
            return _of_prefixes(traffic.targets, spans)


def _of_links(links: frozenset[str], names: Iterable[str]) -> _Fits:
    """Of packets that have no such link a rule that asks for one is not."""
    fitting = {link for link in links if any(_is_named(link, name) for name in names)}
    if not fitting:
        return _Fits.NO
    return _Fits.YES if fitting == links else _Fits.SOME


def _is_named(link: str, name: str) -> bool:
    return link.startswith(name[:-1]) if name.endswith("*") else link == name


def _of_prefixes(prefixes: Iterable[Prefix], spans: list[Span]) -> _Fits:
    have = [(int(prefix[0]), int(prefix[-1])) for prefix in prefixes]
    return _of_spans(have, spans) if have else _Fits.ADDRESSES


def _of_spans(have: list[Span], spans: list[Span]) -> _Fits:
    inside = [any(a <= first and last <= b for a, b in spans) for first, last in have]
    if all(inside):
        return _Fits.YES
    touched = any(a <= last and first <= b for first, last in have for a, b in spans)
    return _Fits.SOME if touched else _Fits.NO
