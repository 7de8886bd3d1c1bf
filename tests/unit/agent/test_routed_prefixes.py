"""Which networks behind nodes pods reach with their own addresses, as the news come in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.agent.routed_prefixes import RoutedPrefixes
from limpet.base.addresses import Prefix
from limpet.base.node_state import RoutedNetworks
from limpet.cluster.documents import Source
from limpet.cluster.identity import Identity
from limpet.cluster.kinds.grant import Role
from limpet.cluster.kinds.network import DefaultCommunity
from limpet.cluster.topology.paths import OwnSide
from limpet.cluster.topology.view import view_of
from limpet.datapath.overlay.plan import plan_peer
from tests.beds.member import membership_of
from tests.effort import examples
from tests.unit.cluster_values import (
    CLUSTER_KEY,
    PINNED,
    grant,
    network,
    node_key,
    presence,
    seal_grant,
    seal_network,
    seal_presence,
)

CLOUD, VPN, LAN = map(ip_network, ("10.1.0.0/16", "10.20.0.0/24", "192.168.50.0/24"))
NOTHING: tuple[Prefix, ...] = ()


class Member:
    """A node with the first key, and what it was told of the networks behind nodes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        identity = Identity(folder, node_key(1), "node-1", PINNED, ("c:7470",))
        self.membership = membership_of(identity)
        self.told: list[RoutedNetworks] = []
        self.behind = RoutedPrefixes(self.membership)
        self.membership.subscribe(lambda news: self.note(changed=self.behind.hear(news)))

    def note(self, *, changed: bool) -> None:
        if changed:
            self.told.append(self.behind.networks)

    def hear(self, number: int, *, at: str = "", **changes: Any) -> None:
        told = [seal_grant(grant(number, **changes), CLUSTER_KEY)]
        if at:
            generation = changes.get("generation", 1)
            words = presence(number, generation, addresses=(ip_address(at),))
            told.append(seal_presence(words, node_key(number)))
        self.membership.offer(told, source=Source.CLOUD)

    def hear_network(self, generation: int = 1, **changes: Any) -> None:
        sealed = seal_network(network(generation, **changes), CLUSTER_KEY)
        self.membership.offer([sealed], source=Source.CLOUD)

    def has_link(self, *interfaces: str) -> None:
        networks = tuple(ip_interface(each).network for each in interfaces)
        self.note(changed=self.behind.set_networks(networks))


def on_a_member(folder: Path, body: Callable[[Member], None]) -> None:
    async def run() -> None:
        member = Member(folder)
        try:
            body(member)
            await asyncio.wrap_future(member.membership.replica.file.durable())
        finally:
            member.membership.close()

    asyncio.run(run())


def test_what_is_behind_whom_is_told_once_and_followed_until_the_node_is_removed(
    tmp_path: Path,
) -> None:
    def body(member: Member) -> None:
        member.hear_network()
        member.hear(2, at="203.0.113.2", prefixes_behind=(CLOUD,))
        assert member.told == []  # nothing is granted to this node
        member.hear(1, prefixes_behind=(VPN,))
        assert member.told[-1] == RoutedNetworks((CLOUD,), (VPN,), (CLOUD,))
        member.hear(3, at="203.0.113.3")
        member.hear(4, at="192.168.50.4", prefixes_behind=(LAN,))
        assert member.told[-1] == RoutedNetworks((CLOUD, LAN), (VPN,), (CLOUD,))
        member.hear(4, at="203.0.113.4", generation=2, prefixes_behind=(LAN,))
        assert member.told[-1].barriers == (CLOUD, LAN)
        member.hear(2, generation=2, tombstone=True)
        assert member.told[-1] == RoutedNetworks((LAN,), (VPN,), (LAN,))
        assert len(member.told) == 4

    on_a_member(tmp_path, body)


def test_what_this_node_has_itself_is_not_behind_another(tmp_path: Path) -> None:
    def body(member: Member) -> None:
        member.hear_network()
        member.hear(1)
        member.hear(2, at="203.0.113.2", prefixes_behind=(CLOUD, LAN))
        member.has_link("192.168.50.7/25", "2001:db8::7/64")
        assert set(member.told[-1].peers) == {CLOUD}
        member.has_link("192.168.51.7/24")
        assert set(member.told[-1].peers) == {CLOUD, LAN}

    on_a_member(tmp_path, body)


def test_what_is_behind_a_node_of_another_community_is_none_of_ours(tmp_path: Path) -> None:
    def body(member: Member) -> None:
        member.hear_network(default_community=DefaultCommunity.NONE)
        member.hear(1)
        member.hear(2, prefixes_behind=(CLOUD,))
        assert member.told == []
        member.hear(2, generation=2, prefixes_behind=(CLOUD,), roles=frozenset({Role.CLOUD}))
        assert member.told[-1].peers == (CLOUD,)
        member.hear(2, generation=3, prefixes_behind=(CLOUD,))
        assert member.told[-1].peers == NOTHING
        member.hear_network(2)
        assert member.told[-1].peers == (CLOUD,)

    on_a_member(tmp_path, body)


def test_nodes_of_the_cloud_leave_the_ways_between_their_own_pods_alone(tmp_path: Path) -> None:
    cloud = frozenset({Role.CLOUD})

    def body(member: Member) -> None:
        member.hear_network()
        member.hear(1, roles=cloud)
        member.hear(2, roles=cloud, prefixes_behind=(CLOUD,))
        member.hear(3, prefixes_behind=(LAN,))
        assert set(member.told[-1].peers) == {CLOUD, LAN}
        member.hear(1, generation=2, roles=cloud, prefixes_behind=(VPN,))
        assert set(member.told[-1].peers) == {LAN}

    on_a_member(tmp_path, body)


PREFIXES = st.sampled_from([CLOUD, VPN, LAN, *map(ip_network, ("10.1.2.0/24", "fd01::/48"))])


@settings(max_examples=examples(40))
@given(
    st.dictionaries(st.integers(2, 4), st.lists(PREFIXES, max_size=3, unique=True)),
    st.lists(PREFIXES, max_size=1),
    st.lists(st.sampled_from(["192.168.50.7/25", "10.1.2.7/32", "203.0.113.9/24"]), max_size=2),
    st.lists(st.sampled_from(Role), min_size=4, max_size=4),
)
def test_it_is_what_the_peers_are_let_in_with(
    tmp_path_factory: Any,
    others: dict[int, list[Any]],
    own: list[Any],
    links: list[str],
    roles: list[Role],
) -> None:
    def body(member: Member) -> None:
        member.hear_network()
        for number, prefixes in {1: own, **others}.items():
            role = frozenset({roles[number - 1]})
            member.hear(number, prefixes_behind=tuple(prefixes), roles=role)
        member.has_link(*links)
        side = OwnSide(networks=tuple(ip_interface(each).network for each in links))
        view = view_of(member.membership.snapshot, member.membership.uid, {}, side)
        let_in = set()
        for uid, entry in view.snapshot.nodes.items():
            if uid != view.uid:
                lost = dict(plan_peer(view, uid).without)
                let_in |= {each for each in entry.grant.prefixes_behind if each not in lost}
        assert set(member.behind.networks.peers) == let_in

    on_a_member(tmp_path_factory.mktemp("behind"), body)
