"""Nothing that a peer sends in clear is refused, however its and our news cross on the way."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address

from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath
from limpet.paths.ladder.tunnel_only import UNANSWERED_S, TunnelOnly
from tests.effort import examples

PEER = "peer"
TUNNEL = PeerPath(transports.TUNNEL, endpoint=(ip_address("203.0.113.1"), 51820))
CLEAR = PeerPath(transports.VXLAN, underlay=ip_address("10.0.0.1"))
LATEST_S = 3.0
"""Answers that come later are none."""


@dataclass
class Pair:
    """This node, and a peer that turns to a way in clear when it is answered there."""

    now_s: float = 0.0
    ours: TunnelOnly = field(default_factory=TunnelOnly)
    kernel: frozenset[str] = frozenset()
    """Whom it lets in nothing of; some time after `ours`."""
    theirs: PeerPath = TUNNEL
    on_the_way: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def later(self, delay_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.on_the_way, (self.now_s + delay_s, next(self.numbers), what))

    def sleep(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.on_the_way and self.on_the_way[0][0] <= until_s:
            self.now_s, _number, what = heapq.heappop(self.on_the_way)
            what()
            assert self.theirs is TUNNEL or PEER not in self.kernel
        self.now_s = until_s

    def apply(self) -> None:
        self.kernel = self.ours.uids

    def ask_in_clear(self, there_s: float, back_s: float, *, turns: bool) -> None:
        """The peer asks; it may turn to that way when it is answered."""

        def turn() -> None:
            self.theirs = CLEAR if turns else self.theirs

        def asked() -> None:
            self.ours.asked(PEER, self.now_s)
            if PEER not in self.kernel:
                self.later(back_s, turn)

        self.later(there_s, asked)

    def tell(self, back_s: float) -> None:
        """The peer says its way with an answer."""
        way = self.theirs
        self.later(back_s, lambda: self.ours.told(PEER, way, self.now_s))

    def leave(self) -> None:
        self.theirs = TUNNEL


delays = st.sampled_from([0.0, 0.1, 1.0, 2.0, LATEST_S])
pauses = st.sampled_from([0.05, 0.5, 1.5, LATEST_S, UNANSWERED_S, 2 * UNANSWERED_S])
steps = st.one_of(
    st.builds(lambda s: lambda pair: pair.sleep(s), pauses),
    st.builds(
        lambda there_s, back_s, turns: lambda pair: pair.ask_in_clear(there_s, back_s, turns=turns),
        delays,
        delays,
        st.booleans(),
    ),
    st.builds(lambda back_s: lambda pair: pair.tell(back_s), delays),
    st.just(Pair.leave),
    st.just(lambda pair: pair.ours.seal()),
    st.just(Pair.apply),
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(steps, max_size=16))
def test_the_kernel_lets_a_peer_in_whenever_it_sends_in_clear(
    taken: list[Callable[[Pair], None]],
) -> None:
    pair = Pair()
    for step in taken:
        step(pair)
        assert pair.theirs is TUNNEL or PEER not in pair.kernel
    pair.sleep(10 * UNANSWERED_S)


def test_a_peer_that_sends_through_a_tunnel_is_one_of_these_until_it_asks_in_clear() -> None:
    ours = TunnelOnly()
    ours.asked(PEER, 0.0)
    ours.told(PEER, TUNNEL, UNANSWERED_S - 1)
    assert not ours.waits  # it may have turned to a way in clear since it said so
    ours.told(PEER, TUNNEL, UNANSWERED_S)
    assert ours.waits
    ours.seal()
    assert (ours.uids, ours.waits) == (frozenset({PEER}), False)
    assert ours.asked(PEER, 100.0)
    assert ours.uids == frozenset()
    assert not ours.asked(PEER, 101.0)


def test_who_says_nothing_or_a_way_in_clear_is_none_of_these() -> None:
    ours = TunnelOnly()
    for way in (None, CLEAR):
        ours.told(PEER, way, 1000.0)
        ours.seal()
        assert ours.uids == frozenset()
    ours.told(PEER, TUNNEL, 1001.0)
    ours.told(PEER, CLEAR, 1002.0)
    assert not ours.waits
