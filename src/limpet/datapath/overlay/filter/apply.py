"""The filter of what peers may send, in the kernel as it was planned last."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass

from limpet.base.errors import KernelError
from limpet.base.layered_map import differing
from limpet.base.ownership import NFT_OVERLAY_TABLE
from limpet.cluster.topology.view import View
from limpet.datapath.overlay.filter.elements import filter_commands
from limpet.datapath.overlay.filter.ruleset import FORGED_COUNTER, plan_filter, plan_tag_filter
from limpet.datapath.overlay.state import OverlayPlan
from limpet.linux.nftables import Nftables


@dataclass(frozen=True, slots=True)
class PutFilter:
    """What changes, or all of it."""

    view: View
    after: OverlayPlan
    commands: str = ""
    """Empty: the whole."""


class PeerFilter:
    """In the network namespace of the calling thread."""

    def __init__(self, bridges: Callable[[], Collection[str]], peer_port: int) -> None:
        """`bridges`: of our pods. `peer_port`: of the exchange."""
        self.in_place = False
        """The kernel has had the filter of the last plan, as far as is known."""
        self._bridges, self._peer_port = bridges, peer_port
        self._nft = Nftables(NFT_OVERLAY_TABLE)
        self._tags = Nftables(NFT_OVERLAY_TABLE, family="netdev")
        self._links: frozenset[tuple[str, int]] = frozenset()

    def close(self) -> None:
        """The tables stay."""
        self._nft.close()
        self._tags.close()

    def forged_packets(self) -> int:
        """Dropped since the filter was put whole the last time."""
        return sum(nft.read_counter(FORGED_COUNTER) for nft in (self._nft, self._tags))

    def set_links(self, links: frozenset[tuple[str, int]]) -> None:
        """Their names and numbers: one takes the filter's hook with it, also when another of its
        name comes after it."""
        self.in_place &= links == self._links
        self._links = links

    def diff(self, view: View, before: OverlayPlan, after: OverlayPlan) -> PutFilter | None:
        """From the filter of `before` to that of `after`, planned from `view`.

        The kernel is looked at only if it may not have that of `before`.
        """
        if self.in_place:
            commands = filter_commands(view, before, after, differing(before.parts, after.parts))
            return PutFilter(view, after, commands) if commands else None
        texts = self._texts(view, after)
        with contextlib.suppress(KernelError):  # putting it says what is wrong
            if all(nft.read_ruleset(text) == text for nft, text in texts):
                self.in_place = bool(texts[0][1])
                return None
        return PutFilter(view, after)

    def put(self, change: PutFilter) -> None:
        """Raises: KernelError."""
        if change.commands:
            with contextlib.suppress(KernelError):  # it is put as a whole then
                self._nft.run(change.commands, what="the filter of peers")
                return
        self.in_place = False
        texts = self._texts(change.view, change.after)
        for nft, text in texts:
            nft.keep(text)
        self.in_place = bool(texts[0][1])

    def _texts(self, view: View, plan: OverlayPlan) -> list[tuple[Nftables, str]]:
        """What each table should be."""
        bridges = self._bridges()
        devices = (*plan.state.devices, view.own.tunnel, view.own.ipsec)
        peers = plan_filter(
            view,
            plan,
            bridges=bridges,
            devices=[each for each in devices if each and _is_there(each)],
            peer_port=self._peer_port,
        )
        return [(self._nft, peers), (self._tags, plan_tag_filter(view, plan, bridges))]


def _is_there(ifname: str) -> bool:
    """A chain at a device that is not there would be refused with all that comes with it."""
    try:
        return bool(socket.if_nametoindex(ifname))
    except OSError:
        return False
