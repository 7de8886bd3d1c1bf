"""Both ends of a tunnel choose the same backend."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from limpet.cluster.kinds.network import TunnelBackend
from limpet.cluster.topology.reach import backend_between
from tests.unit.cluster_values import grant, network

NAMES = st.sampled_from(["cranes", "harbour", "quarry"])
BACKENDS = st.sampled_from(TunnelBackend)
IPSEC, WIREGUARD = TunnelBackend.IPSEC, TunnelBackend.WIREGUARD


@given(
    st.dictionaries(NAMES, BACKENDS),
    BACKENDS,
    st.lists(NAMES, unique=True),
    st.lists(NAMES, unique=True),
)
def test_both_ends_choose_the_same_and_only_by_what_they_share(
    by_community: dict[str, TunnelBackend],
    of_network: TunnelBackend,
    ones: list[str],
    others: list[str],
) -> None:
    made = network(tunnel_backend=of_network, community_backends=by_community)
    one, other = grant(1, communities=tuple(ones)), grant(2, communities=tuple(others))

    chosen = backend_between(made, one, other)

    assert chosen is backend_between(made, other, one)
    shared = {by_community[name] for name in set(ones) & set(others) if name in by_community}
    assert chosen in (shared or {of_network})


def test_of_several_shared_communities_the_first_by_name_counts() -> None:
    made = network(community_backends={"quarry": WIREGUARD, "harbour": IPSEC})
    one, other = (grant(n, communities=("quarry", "cranes", "harbour")) for n in (1, 2))

    assert backend_between(made, one, other) is IPSEC
