"""Other networks behind nodes of the cluster, kept in step with the grants."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from limpet.base.addresses import Prefix
from limpet.base.node_state import RoutedNetworks
from limpet.cluster.membership import Membership, News
from limpet.cluster.nodes import NodeEntry
from limpet.datapath.overlay.routed_prefixes import leads_to_itself, reached_behind


class _Held(NamedTuple):
    """Prefixes behind one peer."""

    prefixes: tuple[Prefix, ...]
    barriers: tuple[Prefix, ...]
    """Those that become unreachable while there is no path to the peer."""


class RoutedPrefixes:
    """Runs on the event loop. News of one node cost what that node costs."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._networks: tuple[Prefix, ...] = ()
        """Subnets that the machine is in."""
        self._here: tuple[Prefix, ...] = ()
        self._of_peers: dict[str, _Held] = {}
        """By uid; only peers that have any."""
        self._note(membership.snapshot.nodes)

    @property
    def networks(self) -> RoutedNetworks:
        """Every prefix that this node may reach behind peers, and those behind itself."""
        held = self._of_peers.values()
        return RoutedNetworks(
            peers=_each_once(each.prefixes for each in held),
            here=self._here,
            barriers=_each_once(each.barriers for each in held),
        )

    def set_networks(self, networks: tuple[Prefix, ...]) -> bool:
        """Subnets of this machine's links are never behind another. True: `networks` are others."""
        if networks == self._networks:
            return False
        self._networks = networks
        return self._renew(self._membership.snapshot.nodes)

    def hear(self, news: News) -> bool:
        """True: `networks` are others."""
        everything = news.network or self._membership.uid in news.uids
        return self._renew(self._membership.snapshot.nodes if everything else news.uids)

    def _renew(self, uids: Iterable[str]) -> bool:
        before, here = self._held(uids), self._here
        self._note(uids)
        return (self._held(uids), self._here) != (before, here)

    def _held(self, uids: Iterable[str]) -> list[tuple[str, _Held]]:
        return [(uid, held) for uid in uids if (held := self._of_peers.get(uid)) is not None]

    def _note(self, uids: Iterable[str]) -> None:
        grant = self._membership.grant
        self._here = grant.prefixes_behind if grant is not None else ()
        for uid in uids:
            entry = self._membership.snapshot.nodes.get(uid)
            if entry is not None and (found := self._of(entry)):
                barriers = tuple(each for each in found if not leads_to_itself(entry, each))
                self._of_peers[uid] = _Held(found, barriers)
            else:
                self._of_peers.pop(uid, None)

    def _of(self, entry: NodeEntry) -> tuple[Prefix, ...]:
        network, own = self._membership.network, self._membership.grant
        if network is None or own is None:
            return ()
        return reached_behind(network, own, self._networks, entry)


def _each_once(held: Iterable[tuple[Prefix, ...]]) -> tuple[Prefix, ...]:
    return tuple(sorted({prefix for prefixes in held for prefix in prefixes}, key=_position))


def _position(prefix: Prefix) -> tuple[int, int, int]:
    return (prefix.version, int(prefix.network_address), prefix.prefixlen)
