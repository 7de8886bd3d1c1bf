"""IPsec's own thread in the midst of a round: what the newest plan says stands in the end."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path

import pytest

from limpet.base.addresses import Prefix
from limpet.base.ownership import IPSEC_IFNAME
from limpet.datapath.tunnel.diff import DropTunnel
from limpet.datapath.tunnel.ipsec.codec import MORE
from limpet.datapath.tunnel.ipsec.keeper import IpsecKeeper
from limpet.datapath.tunnel.ipsec.state import IpsecPeer
from limpet.datapath.tunnel.state import TunnelState
from tests.beds.overlay_bed import ping
from tests.beds.tunnel_bed import TunnelBed
from tests.datapath.tunnel.ipsec.ipsec_bed import IpsecTunnel
from tests.waiting import PATIENCE_S, wait_until

PREFIX = ip_network("10.244.78.0/24")


class HeldUp:
    """A keeper that stands still before it loads a further child, or once that has an SA.

    It works in a thread of its own and tells nobody where it is: only from within can the instant
    be chosen in which a round changes what it works on.
    """

    def __init__(
        self, keeper: IpsecKeeper, monkeypatch: pytest.MonkeyPatch, *, before: bool
    ) -> None:
        self.begun, self.goes_on, self.done = (threading.Event() for _ in range(3))
        self._before = before
        self._daemon = keeper._daemon
        self._put: Callable[[IpsecPeer, Iterable[Prefix]], None] = keeper._daemon.put
        self._initiate: Callable[[IpsecPeer, str], None] = keeper._daemon.initiate
        self._whole: Callable[[IpsecPeer, frozenset[Prefix]], None] = keeper._initiate
        monkeypatch.setattr(keeper._daemon, "put", self._load)
        monkeypatch.setattr(keeper._daemon, "initiate", self._begin)
        monkeypatch.setattr(keeper, "_initiate", self._told)

    def _load(self, peer: IpsecPeer, more: Iterable[Prefix] = ()) -> None:
        if more and self._before:
            self._wait()
        self._put(peer, more)

    def _begin(self, peer: IpsecPeer, child: str) -> None:
        self._initiate(peer, child)
        if child == MORE:
            wait_until(lambda: any(sa.established for sa in self._daemon.sas()))
            if not self._before:
                self._wait()

    def _wait(self) -> None:
        self.begun.set()
        assert self.goes_on.wait(PATIENCE_S)

    def _told(self, peer: IpsecPeer, prefixes: frozenset[Prefix]) -> None:
        self._whole(peer, prefixes)
        if prefixes:
            self.done.set()


@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("becomes", ["it loses the prefix", "it is removed"])
def test_what_is_taken_from_a_peer_while_a_child_for_it_is_begun_stays_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, becomes: str, before: bool
) -> None:
    bed = TunnelBed(2, tmp_path, kind=IpsecTunnel)
    with bed.undo:
        one, other = bed.tunnels
        assert isinstance(one, IpsecTunnel)
        ping(one.node.pod, other.node.address(4))
        other.node.netns.ip("addr add 10.244.78.1/32 dev limpet0")
        nodes = bed.entries()
        grant = other.node.grant
        more = replace(grant, segments=(*grant.segments, PREFIX))
        grown = {**nodes, other.node.uid: replace(nodes[other.node.uid], grant=more)}
        after = nodes
        if becomes == "it is removed":
            after = {uid: entry for uid, entry in nodes.items() if uid != other.node.uid}

        held = HeldUp(one.kernel._keeper, monkeypatch, before=before)
        one.settle(grown)
        assert held.begun.wait(PATIENCE_S)
        one.settle(after)
        held.goes_on.set()
        assert held.done.wait(PATIENCE_S)

        assert one.left() == []
        if becomes == "it is removed":
            wait_until(lambda: one.sas() == [])


def test_a_tunnel_that_is_dropped_after_its_last_peer_leaves_nothing_to_complain_of(
    tmp_path: Path,
) -> None:
    bed = TunnelBed(2, tmp_path, kind=IpsecTunnel)
    with bed.undo:
        one, other = bed.tunnels
        assert isinstance(one, IpsecTunnel)
        ping(one.node.pod, other.node.address(4))
        one.settle({one.node.uid: bed.entries()[one.node.uid]})
        with one.node.netns.entered():
            one.kernel.observe(TunnelState())
            assert one.kernel.apply([DropTunnel(IPSEC_IFNAME)]) == []

        keeper = one.kernel._keeper
        keeper.hurry(b"")  # wakes it
        wait_until(lambda: not select.select([keeper._wake], [], [], 0)[0])
        keeper._stopping = True
        keeper._look_soon()
        assert keeper._thread is not None
        keeper._thread.join()  # it has done what it was woken for
        assert one.kernel.problem == ""
