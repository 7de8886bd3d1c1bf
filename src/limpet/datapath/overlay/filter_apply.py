"""The filter of what peers may send, in the kernel as it was planned last."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from limpet.base.addresses import UnderlayLink
from limpet.base.errors import KernelError
from limpet.base.layered_map import differing
from limpet.base.ownership import NFT_OVERLAY_TABLE
from limpet.cluster.topology.view import View
from limpet.datapath.overlay.filter import (
    FORGED_COUNTER,
    filter_commands,
    plain_links,
    plan_filter,
)
from limpet.datapath.overlay.state import OverlayPlan
from limpet.linux.nftables import Nftables

_TAGGED = "meta protocol { 8021q, 8021ad }"
"""The first tag is taken away, and there is another one."""
_OF_NO_VLAN = "@nh,0,16 & 0xfff == 0x0 @ll,112,16 & 0xfff == 0x0"
"""VLAN 0 in the next tag and in the first. A VLAN behind a priority is what some switches send."""


def plan_tag_filter(view: View, plan: OverlayPlan) -> str:
    """A table of family netdev that lets no frame past the filter of peers in tags of no VLAN;
    empty where no link has that filter.

    A tag of VLAN 0 says a priority only, and the kernel takes away as many of them as there are.
    But only one of them before the hook `ingress`, where a chain of family `inet` sees no IP as yet
    and lets the frame through. Source: net/core/dev.c, __netif_receive_skb_core.
    """
    links = plain_links(view)
    if view.network is None or not plan.state.devices or not links:
        return ""
    return f"""table netdev {NFT_OVERLAY_TABLE} {{
\tcounter {FORGED_COUNTER} {{
\t}}

\tchain overlay_tags {{
\t\ttype filter hook ingress devices = {{ {", ".join(links)} }} priority 0; policy accept;
\t\t{_TAGGED} {_OF_NO_VLAN} counter name {FORGED_COUNTER} drop
\t}}
}}
"""


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
        self._links: set[tuple[str, int]] = set()

    def close(self) -> None:
        """The tables stay."""
        self._nft.close()
        self._tags.close()

    def forged_packets(self) -> int:
        """Dropped since the filter was put whole the last time."""
        return sum(nft.read_counter(FORGED_COUNTER) for nft in (self._nft, self._tags))

    def set_links(self, links: Iterable[UnderlayLink]) -> None:
        """A link takes the filter's hook with it, also when another of its name comes after it."""
        identities = {(link.ifname, link.ifindex) for link in links}
        self.in_place &= identities == self._links
        self._links = identities

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
        devices = (*plan.state.devices, view.own.tunnel, view.own.ipsec)
        peers = plan_filter(
            view,
            plan,
            bridges=self._bridges(),
            devices=[each for each in devices if each and _is_there(each)],
            peer_port=self._peer_port,
        )
        return [(self._nft, peers), (self._tags, plan_tag_filter(view, plan))]


def _is_there(ifname: str) -> bool:
    """A chain at a device that is not there would be refused with all that comes with it."""
    try:
        return bool(socket.if_nametoindex(ifname))
    except OSError:
        return False
