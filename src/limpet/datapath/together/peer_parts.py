"""The parts of the loop that lead to other nodes, put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from limpet.base.settings import PeerSettings
from limpet.cluster.membership import Membership, News
from limpet.cluster.topology.paths import PeerPath
from limpet.datapath.loop import Account, Loop
from limpet.datapath.overlay.apply import OverlayKernel
from limpet.datapath.overlay.filter.apply import PeerFilter
from limpet.datapath.overlay.part import OverlayPart
from limpet.datapath.own_node import OwnNode
from limpet.datapath.peers import Peers
from limpet.datapath.tunnel.part import TunnelPart
from limpet.datapath.tunnel.setup import TunnelSetup
from limpet.datapath.tunnel.traffic.watch import TunnelWatch
from limpet.linux.netlink.socket import RouteSocket


class PeerParts:
    """In the network namespace of the thread that makes it."""

    def __init__(
        self,
        loop: Loop,
        membership: Membership,
        settings: PeerSettings,
        tunnels: TunnelSetup,
        *,
        route: RouteSocket,
        vtep_path: Path,
        peer_filter: PeerFilter,
        before_sysctl: Callable[[str], None],
    ) -> None:
        """`peer_filter`: in the same network namespace, closed with these. `before_sysctl`: a
        setting of the node is about to change.

        Raises: LimpetError.
        """
        self.loop = loop
        self.own = OwnNode(membership, settings, route, loop.tell)
        self.peers = Peers(membership, self.own, self.wake, loop.tell)
        self.overlay = OverlayPart(
            self.peers,
            OverlayKernel(route),
            peer_filter,
            before_sysctl=before_sysctl,
        )
        self.tunnels = TunnelPart(self.peers, route, membership.identity, tunnels)
        self.watch = TunnelWatch(route, self.tunnels, loop.tell)
        self._membership = membership
        self._vtep_path = vtep_path
        loop.add(self.tunnels, self.overlay)

    def start(self, paths: Mapping[str, PeerPath]) -> None:
        """The first round, by paths that were proven last. Raises: LimpetError when it cannot be
        known what the kernel has."""
        self.peers.begin(paths, self.tunnels.follow)
        self.overlay.begin(self._membership, self._vtep_path)
        self.tunnels.begin(self._membership.network)
        self.own.read_links()
        left = ((uid, path.left_on(self.own.links)) for uid, path in paths.items())
        here = {uid: path for uid, path in left if path is not None}
        if here != paths:
            self.peers.set_paths(here)  # the node was elsewhere, or has less than it had
        self.loop.run("start", self.overlay)
        self.watch.start()

    def close(self) -> None:
        """What is in the kernel stays; the loop has ended before."""
        self.watch.stop()
        self.overlay.close()
        self.tunnels.close()

    def wake(self, why: str) -> None:
        """A round of both soon."""
        self.loop.wake(self.overlay, why)

    def look_at_filter(self) -> None:
        """The filter is compared with the plan soon."""
        self.overlay.suspect_nftables()
        self.wake("a bridge of pods is new")

    @property
    def failures(self) -> list[str]:
        """Failures of the last round."""
        return [failure for account in self.accounts for failure in account.failures]

    @property
    def accounts(self) -> tuple[Account, Account]:
        return self.loop.account(self.tunnels), self.loop.account(self.overlay)

    def hear(self, news: News) -> None:
        """The cluster's documents changed: a round soon."""
        self.wake(f"{len(news.uids) or 'network'} changed, {news.source.value}")
