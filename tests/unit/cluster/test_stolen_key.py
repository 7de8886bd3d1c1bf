"""A key of the cluster is in somebody's hands: what nodes take before and after it was rotated."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from ipaddress import ip_network
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.base.bounds.signers import MAX_ERA
from limpet.cluster.documents import Document, Known, Sealed, Source
from limpet.cluster.exchange.digest import item_of
from limpet.cluster.keys import (
    ClusterKey,
    RevokedKeyError,
    SealError,
    endorse,
    public_key_of,
)
from limpet.cluster.kinds import GRANT, NETWORK, POLICY, PRESENCE
from limpet.cluster.kinds.grant import Role
from limpet.cluster.kinds.policy import SignedPolicy
from limpet.cluster.merge import merge
from limpet.cluster.replica import Outcome, Replica
from limpet.cluster.seal import open_sealed, seal
from limpet.cluster.snapshot.file import SnapshotFile
from tests.unit.cluster_values import (
    CLUSTER_KEY,
    NOTHING,
    PINNED,
    documents,
    grant,
    network,
    node_key,
    presence,
    seal_grant,
    seal_network,
)

KEYS = (CLUSTER_KEY, node_key(201), node_key(202))
THIEF = node_key(203)
MOST = (1 << 47) - 1


def chain(*private_keys: bytes) -> tuple[ClusterKey, ...]:
    endorsed = [endorse(public_key_of(key), before) for before, key in pairwise(private_keys)]
    return (ClusterKey(public_key_of(private_keys[0])), *endorsed)


def network_of(*private_keys: bytes, generation: int = 1, **changes: Any) -> Sealed:
    """Signed by the last of them; each rotation is ten revisions after the one before."""
    rotated_at = tuple(range(10, 10 * len(private_keys), 10))
    changes = {"revision": 10 * len(rotated_at), "rotated_at": rotated_at, **changes}
    said = network(generation, keys=chain(*private_keys), **changes)
    return seal_network(said, private_keys[-1])


def grant_of(number: int, era: int, key: bytes | None = None, **changes: Any) -> Sealed:
    changes = {"revision": 10 * era + 1, **changes}
    return seal_grant(grant(number, era=era, **changes), key or KEYS[era])


def a_node(folder: Path, *said: Sealed) -> Replica:
    folder.mkdir(parents=True, exist_ok=True)
    replica = Replica(SnapshotFile(folder / "snapshot.log", own_uid=grant(1).uid), PINNED)
    replica.offer(said, source=Source.CLOUD)
    return replica


def offer(node: Replica, *said: Sealed, source: Source = Source.NEIGHBOUR) -> list[Outcome]:
    return node.offer(said, source=source)


ROTATED = (network_of(*KEYS[:2]), grant_of(1, 1), grant_of(2, 1))
BEFORE = (network_of(KEYS[0]), grant_of(1, 0), grant_of(2, 0))


def test_a_former_key_signs_nothing_that_a_node_takes_which_knows_of_the_next(
    tmp_path: Path,
) -> None:
    node = a_node(tmp_path, *BEFORE, *ROTATED)
    before = node.known
    policy = seal(POLICY, SignedPolicy("NetworkPolicy/shop/web", 10**6, {}), KEYS[0]).sealed
    flannel = grant(9, roles=frozenset({Role.FLANNEL}))

    for forged in (
        network_of(KEYS[0], generation=MOST),
        network_of(KEYS[0], THIEF, generation=MOST),
        seal_network(network(MOST, keys=chain(*KEYS[:2])), KEYS[0]),
        grant_of(1, 0, generation=MOST),
        grant_of(1, 1, KEYS[0], generation=MOST),
        grant_of(2, 0, generation=MOST, tombstone=True),
        grant_of(3, 0),
        grant_of(3, 1, KEYS[0]),
        grant_of(3, 2, KEYS[0]),
        grant_of(3, 2, KEYS[1]),
        seal_grant(flannel, KEYS[0]),
        policy,
    ):
        for source in Source:
            assert offer(node, forged, source=source) != [Outcome.FRESH]

    assert node.known == before


def test_what_a_node_holds_stays_in_force_until_it_is_replaced(tmp_path: Path) -> None:
    node = a_node(tmp_path, *BEFORE, grant_of(3, 0))

    offer(node, *ROTATED)

    assert [each.value.era for each in node.known.of(GRANT.name).values()] == [1, 1, 0]
    assert node.known.value(GRANT.name, grant(3).uid).segments == grant(3).segments


def test_a_node_knows_after_a_reboot_which_keys_are_revoked(tmp_path: Path) -> None:
    first = a_node(tmp_path, *BEFORE, *ROTATED)
    first.file.durable().result()
    first.file.close()

    again = a_node(tmp_path)

    assert again.known == first.known
    assert offer(again, network_of(KEYS[0], THIEF, generation=MOST)) == [Outcome.BAD]
    assert offer(again, grant_of(3, 0)) == [Outcome.BAD]


def test_a_node_that_was_away_for_two_rotations_takes_the_chain_from_anybody(
    tmp_path: Path,
) -> None:
    now = (network_of(*KEYS), grant_of(1, 2), grant_of(2, 2))
    for source in (Source.CLOUD, Source.NEIGHBOUR):
        node = a_node(tmp_path / source.value, *BEFORE)
        assert offer(node, *now, source=source) == [Outcome.FRESH] * 3
        assert offer(node, *ROTATED) == [Outcome.STALE] * 3


def test_a_used_up_generation_does_not_lock_out_what_the_next_key_has_signed(
    tmp_path: Path,
) -> None:
    node = a_node(
        tmp_path,
        *BEFORE,
        network_of(KEYS[0], generation=MOST),
        grant_of(1, 0, generation=MOST, revision=MOST, segments=(ip_network("10.244.99.0/24"),)),
        grant_of(2, 0, generation=MOST, tombstone=True),
    )

    assert offer(node, *ROTATED) == [Outcome.FRESH] * 3

    assert node.known.value(NETWORK.name, NETWORK.name).keys == chain(*KEYS[:2])
    assert node.known.value(GRANT.name, grant(1).uid).segments == grant(1).segments
    assert node.known.value(GRANT.name, grant(2).uid) is not None
    assert node.known.revision == 11


def test_a_version_that_nobody_could_go_on_above_is_no_version() -> None:
    with pytest.raises(ValueError, match="no number from 0 to"):
        network_of(KEYS[0], generation=MOST + 1)


def test_who_took_a_thiefs_successor_first_and_who_did_not_accuse_each_other(
    tmp_path: Path,
) -> None:
    true, forged = ROTATED[0], network_of(KEYS[0], THIEF, generation=MOST)
    for number, (one, other) in enumerate(((true, forged), (forged, true))):
        node = a_node(tmp_path / str(number), BEFORE[0], one)
        node.offer([other], source=Source.NEIGHBOUR, teller="uid-of-it")
        (alarm,) = node.alarms.all()
        assert alarm.teller == "uid-of-it"
        assert alarm.kind == NETWORK.name
        assert node.known.find((NETWORK.name, NETWORK.name)) == open_sealed(one, NOTHING)


def test_of_a_thiefs_long_row_only_the_word_where_it_parts_from_ours_is_looked_at(
    tmp_path: Path,
) -> None:
    """Nobody has given the others a word: were each of them checked, it would accuse nobody."""
    node = a_node(tmp_path, *BEFORE, *ROTATED)
    private = [node_key(number) for number in range(100, 100 + MAX_ERA.most)]
    others = (ClusterKey(public_key_of(key), bytes(64)) for key in private[1:])
    row = (*chain(KEYS[0], private[0]), *others)
    long = seal_network(network(keys=row, revision=5), private[-1])
    unfounded = seal_network(network(keys=(row[0], *row[2:]), revision=5), private[-1])

    assert offer(node, unfounded) == [Outcome.BAD]
    assert node.alarms.all() == []
    assert offer(node, long) == [Outcome.BAD]
    assert [alarm.kind for alarm in node.alarms.all()] == [NETWORK.name]


def test_a_late_neighbour_that_tells_what_was_in_force_is_not_accused(tmp_path: Path) -> None:
    node = a_node(tmp_path, *BEFORE, *ROTATED)

    assert offer(node, network_of(KEYS[0]), *BEFORE) == [Outcome.STALE] * 4

    assert offer(node, grant_of(3, 0)) == [Outcome.BAD]
    assert node.alarms.all() == []
    assert offer(node, grant_of(4, 0, revision=11)) == [Outcome.BAD]
    assert [alarm.kind for alarm in node.alarms.all()] == [GRANT.name]


def test_only_the_key_directly_before_speaks_for_a_key() -> None:
    keys = (*chain(*KEYS[:2]), endorse(public_key_of(THIEF), KEYS[0]))
    with pytest.raises(SealError):
        open_sealed(seal_network(network(keys=keys), THIEF), NOTHING)
    with pytest.raises(RevokedKeyError):
        open_sealed(
            network_of(KEYS[0], THIEF), merge(NOTHING, [open_sealed(ROTATED[0], NOTHING)])[0]
        )


def test_a_node_chooses_no_era_for_what_it_says_itself() -> None:
    known = merge(NOTHING, documents(1))[0]
    with pytest.raises(SealError, match="one key"):
        open_sealed(seal(PRESENCE, presence(1, era=1), node_key(1)).sealed, known)


# Nodes that hold the same documents hold the same, whatever the order


def _signed(era: int, number: int, generation: int, *, tombstone: bool) -> Document:
    said = grant(number, era=era, generation=generation, tombstone=tombstone)
    return seal(GRANT, said, KEYS[era])


signed = st.builds(
    _signed,
    st.integers(0, 2),
    st.integers(1, 3),
    st.sampled_from([1, 2, MOST]),
    tombstone=st.booleans(),
)
networks = st.builds(
    lambda era, generation: seal(
        NETWORK, network(generation, keys=chain(*KEYS[: era + 1])), KEYS[era]
    ),
    st.integers(0, 2),
    st.sampled_from([1, 2, MOST]),
)


def _merged(parts: Sequence[Document]) -> Known:
    return reduce(lambda known, part: merge(known, [part])[0], parts, NOTHING)


@settings(max_examples=80)
@given(st.lists(signed | networks, max_size=8), st.data())
def test_documents_of_any_key_merge_to_the_same_in_any_order(
    parts: list[Document], data: Any
) -> None:
    order = data.draw(st.permutations(parts))

    assert _merged(order) == _merged(parts) == merge(NOTHING, parts)[0]


@settings(max_examples=80)
@given(st.lists(signed, min_size=2, max_size=2))
def test_neighbours_compare_as_they_merge(pair: list[Document]) -> None:
    one, other = (each.rank._replace(digest=each.rank.digest[:4]) for each in pair)

    assert (one > other) == (item_of(pair[0])[1:] > item_of(pair[1])[1:])


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_nodes_that_heard_of_the_rotation_end_alike_whatever_they_are_told_then(
    data: Any,
) -> None:
    told = [
        *ROTATED,
        network_of(*KEYS),
        grant_of(1, 2),
        grant_of(2, 2),
        network_of(KEYS[0], generation=MOST),
        network_of(KEYS[0], THIEF, generation=MOST),
        network_of(*KEYS[:2], KEYS[2], generation=2),
        grant_of(2, 0, generation=MOST, tombstone=True),
        grant_of(3, 0, generation=MOST),
    ]
    ends = []
    for _ in range(2):
        known = merge(NOTHING, [open_sealed(ROTATED[0], NOTHING)])[0]
        # What could not be checked yet is told again: neighbours compare.
        for sealed in [*data.draw(st.permutations(told)), *told, *told]:
            try:
                document = open_sealed(sealed, known)
            except SealError:
                continue
            known = merge(known, [document])[0]
        ends.append(known)

    assert ends[0] == ends[1]
