"""What the parts that lead to other nodes are planned from, and what they tell each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from limpet.cluster.kinds.network import Network
from limpet.cluster.membership import Membership
from limpet.cluster.topology.paths import PeerPath
from limpet.cluster.topology.view import View, view_of
from limpet.datapath.admitted import Admitted
from limpet.datapath.event import PeersPlanned, SegmentsChanged, Tell
from limpet.datapath.own_node import OwnNode


class Peers:
    """Runs on the event loop. The parts are strangers to each other: they meet here."""

    def __init__(
        self, membership: Membership, own: OwnNode, wake: Callable[[str], None], tell: Tell
    ) -> None:
        """Tells SegmentsChanged before a round that brings them. `wake`: a round soon."""
        self._tell = tell
        self.own = own
        self.wake = wake
        self.paths: Mapping[str, PeerPath] = {}
        self.shut_out: frozenset[str] = frozenset()
        """Peers of whom the kernel may let in nothing in clear."""
        self.view = view_of(membership.snapshot, membership.uid, {}, own.side())
        """The view that all plans of the last round were made of."""
        self.admitted: Mapping[str, Admitted] = {}
        """By the peer's uid, planned from `view`."""
        self.down: frozenset[str] = frozenset()
        """Devices by which no peer may be routed to now."""
        self._follow: Callable[[Network | None], None] = lambda _: None
        self._membership = membership
        self._tunnel_only: frozenset[str] = frozenset()
        self._made = False

    def begin(
        self, paths: Mapping[str, PeerPath], follow: Callable[[Network | None], None]
    ) -> None:
        """Before the first round. `paths`: those that were proven last. `follow`: makes the tunnels
        that a network names; called before a view is made of that."""
        self.paths, self._follow = paths, follow

    def set_paths(self, paths: Mapping[str, PeerPath]) -> None:
        """`paths` by the peer's uid; another mapping than the last one if anything is different."""
        self.paths = paths
        self.wake("a path changed")

    def set_tunnel_only(self, uids: frozenset[str]) -> None:
        """Peers that send through tunnels only; of others more is let in with the next round."""
        self._tunnel_only = uids
        self.wake("peers turned to tunnels, or from them")

    def next_view(self) -> View:
        """The view of now; it is `view` when `settle` is told so."""
        membership, before = self._membership, self.view
        self._follow(membership.network)
        view = view_of(
            membership.snapshot,
            membership.uid,
            self.paths,
            self.own.side(),
            before=before,
            tunnel_only=self._tunnel_only,
        )
        if view.tunnel_only is not self.shut_out:
            self.shut_out |= view.tunnel_only
        mine = view.segments.get(membership.uid, ()) if view.grant is not None else ()
        held = before.segments.get(membership.uid, ())
        if mine != held or view.network != before.network:
            self._tell(SegmentsChanged(mine))
        return view

    def settle(self, view: View, admitted: Mapping[str, Admitted]) -> None:
        """Peers are let in as planned from `view`: so is all else that is planned for them."""
        before = self.view
        self.view, self.admitted = view, admitted
        by_paths = view.paths is not before.paths
        if by_paths or view.snapshot is not before.snapshot:
            self._tell(PeersPlanned(by_paths))

    def set_devices(self, *, down: frozenset[str], made: bool) -> None:
        """Notes tunnels' devices. `made`: one is new, and what led to the one before is gone."""
        self.down = down
        self._made |= made

    def take_made(self) -> bool:
        """Whether a device was made since the last call."""
        made, self._made = self._made, False
        return made
