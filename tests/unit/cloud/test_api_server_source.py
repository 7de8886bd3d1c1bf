"""What an API server says that is no good is kept for a while, and told in a few words."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from limpet.base.bounds.servers import UNREAD_CAUSE
from limpet.base.bounds.words import NAME
from limpet.cloud.second_road import untaken as untaken_module
from limpet.cloud.second_road.api_server import ApiServerSource
from limpet.cloud.second_road.own_objects import Carrier
from limpet.cluster.documents import Sealed, Source
from limpet.cluster.identity import Identity
from limpet.cluster.keys import ClusterKey, endorse, public_key_of
from limpet.cluster.kinds import GRANT, NETWORK, PRESENCE
from limpet.cluster.membership import Membership
from limpet.cluster.replica import Outcome
from limpet.kubernetes.access.access import plain_access
from limpet.kubernetes.kinds.objects import Metadata
from limpet.kubernetes.kinds.resources import Signed
from limpet.kubernetes.reflector_state import ObjectChanges
from tests.beds.member import member_without_disk, membership_of
from tests.unit.cluster_values import (
    CLUSTER_KEY,
    PINNED,
    grant,
    network,
    node_key,
    seal_grant,
    seal_network,
)
from tests.waiting import until


@pytest.fixture
def kept() -> ApiServerSource:
    """Of a node that hears no API server yet."""
    own = member_without_disk()
    return ApiServerSource(own, lambda: plain_access("http://127.0.0.1:9"), random=lambda: 0.5)


def test_of_what_may_be_good_later_nothing_is_kept_that_is_too_large_ever_to_be(
    kept: ApiServerSource,
) -> None:
    for name, size in (("small", PRESENCE.most_bytes), ("large", PRESENCE.most_bytes + 1)):
        kept._judge(("presence", name), Sealed("presence", bytes(size), b""), Outcome.BAD)

    assert list(kept._untaken.early) == [("presence", "small")]


def test_names_and_causes_of_what_cannot_be_used_are_told_in_a_few_words(
    kept: ApiServerSource,
) -> None:
    kept._note("presence", "n" * 100_000, "c" * 100_000)

    (unusable,) = kept._unusable.items()
    assert sum(map(len, unusable)) < NAME.most + UNREAD_CAUSE.most + 100
    kept._note("presence", "n" * 100_000, "")
    assert not kept._unusable


KEYS = (CLUSTER_KEY, node_key(201))
ENDORSED = (ClusterKey(public_key_of(KEYS[0])), endorse(public_key_of(KEYS[1]), KEYS[0]))
ROTATED = seal_network(
    network(2, keys=ENDORSED, revision=10, rotated_at=(10,)),
    KEYS[1],
)
REMOVED = seal_grant(grant(2, generation=2, revision=11, era=1, tombstone=True), KEYS[1])
WIDER = seal_grant(grant(3, generation=2, revision=12, era=1), KEYS[1])


def told(*documents: Sealed) -> ObjectChanges[Carrier]:
    return ObjectChanges(
        [
            Carrier(
                metadata=Metadata(name=f"object-{number}"),
                document=Signed(each.body, each.signature),
            )
            for number, each in enumerate(documents)
        ]
    )


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Membership]:
    identity = Identity(tmp_path, node_key(1), "node-1", PINNED, ())
    grants = [seal_grant(grant(number), CLUSTER_KEY) for number in (1, 2, 3)]
    made = membership_of(identity, seal_network(network(), CLUSTER_KEY), *grants)
    yield made
    made.close()


@pytest.mark.parametrize("by_neighbour", [False, True])
def test_what_the_clusters_next_key_has_signed_counts_also_where_it_comes_before_the_network(
    member: Membership, by_neighbour: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untaken_module, "_AGAIN_S", 0.01)
    road = ApiServerSource(member, lambda: plain_access("http://127.0.0.1:9"), random=lambda: 0.5)
    member.subscribe(road.hear)

    async def scenario() -> None:
        late = asyncio.create_task(road._offer_late())
        await road._hear(GRANT.name, told(REMOVED, WIDER))
        assert member.tombstone_of(grant(2).uid) is None

        if by_neighbour:
            member.offer([ROTATED], source=Source.NEIGHBOUR)
        else:
            await road._hear(NETWORK.name, told(ROTATED))

        await until(lambda: member.tombstone_of(grant(2).uid) == REMOVED)
        assert member.snapshot.nodes[grant(3).uid].grant.era == 1
        assert not road._untaken.early
        late.cancel()
        await asyncio.wait([late])

    asyncio.run(scenario())


def test_of_what_the_cluster_signs_nothing_is_kept_that_is_of_a_key_that_is_known(
    kept: ApiServerSource,
) -> None:
    forged = seal_grant(grant(2, generation=5), node_key(66))
    kept._judge((GRANT.name, "forged"), forged, Outcome.BAD)
    kept._judge((GRANT.name, "nonsense"), Sealed(GRANT.name, b"{", b""), Outcome.BAD)

    assert not kept._untaken.early
