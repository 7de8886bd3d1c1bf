"""The filter of what peers may send, in the kernel as it was planned last."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass

from limpet.base.addresses import Endpoint
from limpet.base.errors import KernelError
from limpet.base.layered_map import differing
from limpet.base.ownership import NFT_OVERLAY_TABLE
from limpet.cluster.topology.view import View
from limpet.datapath.overlay.filter.elements import closed_ends, filter_commands
from limpet.datapath.overlay.filter.flows_apply import EarlyFlows
from limpet.datapath.overlay.filter.ruleset import FORGED_COUNTER, plan_filter, plan_tag_filter
from limpet.datapath.overlay.state import OverlayPlan
from limpet.linux.nftables import Nftables
from limpet.linux.sysctl import read_sysctl


@dataclass(frozen=True, slots=True)
class PutFilter:
    """What changes, or all of it."""

    view: View
    after: OverlayPlan
    commands: str = ""
    """Empty: the whole."""


class PeerFilter:
    """In the network namespace of the calling thread."""

    def __init__(
        self, bridges: Callable[[], Collection[str]], peer_port: int, *, tenants: bool = False
    ) -> None:
        """`bridges`: of our pods. `peer_port`: of the exchange. `tenants`: others than who has this
        node write where Services lead; else it is taken to be so once the kernel tracks
        connections, as whoever translates addresses has it do."""
        self.in_place = False
        """The kernel has had the filter of the last plan, as far as is known."""
        self._bridges, self._peer_port, self._tenants = bridges, peer_port, tenants
        self._nft = Nftables(NFT_OVERLAY_TABLE)
        self._tags = Nftables(NFT_OVERLAY_TABLE, family="netdev")
        self._links: frozenset[tuple[str, int]] = frozenset()
        self._closed: set[Endpoint] = set()
        """Where pods may not send any more, though flows that they began may lead there."""
        self.early_flows = EarlyFlows()

    def close(self) -> None:
        """The tables stay."""
        self.early_flows.close()
        self._nft.close()
        self._tags.close()

    def forged_packets(self) -> int:
        """Dropped since the filter was put whole the last time."""
        return sum(nft.read_counter(FORGED_COUNTER) for nft in (self._nft, self._tags))

    def forget_flows(self) -> None:
        """Once the filter is put: what pods have begun to where they may not send any more."""
        if self.in_place:
            self.early_flows.forget(self._closed)
            self._closed.clear()

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
            changed = differing(before.parts, after.parts)
            self._note_closed(view, before, after, changed)
            commands = filter_commands(view, before, after, changed)
            return PutFilter(view, after, commands) if commands else None
        texts = self._texts(view, after)
        with contextlib.suppress(KernelError):  # putting it says what is wrong
            if all(nft.read_ruleset(text) == text for nft, text in texts):
                self._note_closed(view, before, after, differing(before.parts, after.parts))
                self._took(texts)
                return None
        return PutFilter(view, after)

    def put(self, change: PutFilter) -> None:
        """Raises: KernelError."""
        if change.commands:
            with contextlib.suppress(KernelError):  # it is put as a whole then
                self._nft.run(change.commands, what="the filter of peers")
                return
        self.in_place = False
        # While nothing was there a flow may have begun to any of them.
        self._note_closed(change.view, OverlayPlan(), change.after, change.after.parts)
        texts = self._texts(change.view, change.after)
        for nft, text in texts:
            nft.keep(text)
        self._took(texts)

    def _took(self, texts: list[tuple[Nftables, str]]) -> None:
        """The kernel has these."""
        self.in_place = bool(texts[0][1])
        if not self.in_place:
            self._closed.clear()

    def _note_closed(
        self, view: View, before: OverlayPlan, after: OverlayPlan, uids: Collection[str]
    ) -> None:
        if view.network is not None:
            ports = {view.network.vxlan_port, self._peer_port} - {0}
            self._closed |= closed_ends(before, after, uids, ports)

    def _texts(self, view: View, plan: OverlayPlan) -> list[tuple[Nftables, str]]:
        """What each table should be."""
        bridges = self._bridges()
        self._tenants = self._tenants or _tracks()
        devices = (*plan.state.devices, view.own.tunnel, view.own.ipsec)
        peers = plan_filter(
            view,
            plan,
            bridges=bridges,
            devices=[each for each in devices if each and _is_there(each)],
            peer_port=self._peer_port,
            tenants=self._tenants,
        )
        return [(self._nft, peers), (self._tags, plan_tag_filter(view, plan, bridges))]


def _tracks() -> bool:
    """Whether the kernel tracks a connection of this network namespace."""
    return read_sysctl("net/netfilter/nf_conntrack_count") not in (None, "0")


def _is_there(ifname: str) -> bool:
    """A chain at a device that is not there would be refused with all that comes with it."""
    try:
        return bool(socket.if_nametoindex(ifname))
    except OSError:
        return False
