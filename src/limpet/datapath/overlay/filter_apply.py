"""The filter of what peers may send, in the kernel as it was planned last."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable

from limpet.base.addresses import UnderlayLink
from limpet.base.errors import KernelError
from limpet.base.layered_map import differing
from limpet.base.ownership import NFT_OVERLAY_TABLE
from limpet.cluster.topology.view import View
from limpet.datapath.overlay.filter import FORGED_COUNTER, filter_commands, plan_filter
from limpet.datapath.overlay.state import OverlayPlan
from limpet.linux.nftables import Nftables


class PeerFilter:
    """In the network namespace of the calling thread."""

    def __init__(self, bridges: Callable[[], Collection[str]]) -> None:
        """`bridges`: of our pods."""
        self.in_place = False
        """The kernel has had the filter of the last plan, as far as is known."""
        self._bridges = bridges
        self._nft = Nftables(NFT_OVERLAY_TABLE)

    def close(self) -> None:
        """The table stays."""
        self._nft.close()

    def forged_packets(self) -> int:
        """Dropped since the filter was put whole the last time."""
        return self._nft.read_counter(FORGED_COUNTER)

    def links_changed(self, before: Iterable[UnderlayLink], after: Iterable[UnderlayLink]) -> None:
        """A link takes the filter's hook with it, also when another of its name comes after it."""
        self.in_place &= _identities(before) == _identities(after)

    def put(self, view: View, before: OverlayPlan, after: OverlayPlan) -> None:
        """The filter of `after`, planned from `view`. Raises: KernelError.

        Only what changes is put, if the kernel has that of `before`.
        """
        if self.in_place:
            commands = filter_commands(view, before, after, differing(before.parts, after.parts))
            if not commands:
                return
            with contextlib.suppress(KernelError):  # it is put as a whole then
                self._nft.run(commands, what="the filter of peers")
                return
        self.in_place = False
        text = plan_filter(view, after, bridges=self._bridges())
        self._nft.keep(text)
        self.in_place = bool(text)


def _identities(links: Iterable[UnderlayLink]) -> set[tuple[str, int]]:
    return {(link.ifname, link.ifindex) for link in links}
