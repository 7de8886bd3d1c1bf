"""What a node says of pods of its own that are gone: signed, bounded, told among nodes only."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.base.bounds.members import ABSENT_ADDRESSES
from limpet.cluster.documents import Source
from limpet.cluster.keys import SealError
from limpet.cluster.kinds import ABSENCE, KINDS
from limpet.cluster.kinds.absence import Absence
from limpet.cluster.merge import merge
from limpet.cluster.seal import open_sealed, seal
from tests.unit.cluster.exchange.exchange_world import World, known_of, node, remember
from tests.unit.cluster_values import NOTHING, documents, grant, node_key

UID = grant(1).uid


def test_only_the_node_itself_says_it_and_it_goes_with_its_grant() -> None:
    known = merge(NOTHING, documents(1))[0]
    said = seal(ABSENCE, Absence(UID, 1, ("10.244.1.5",)), node_key(1))
    assert open_sealed(said.sealed, known).value == Absence(UID, 1, ("10.244.1.5",))
    with pytest.raises(SealError, match="nobody that this node trusts"):
        open_sealed(seal(ABSENCE, Absence(UID, 2), node_key(2)).sealed, known)
    with pytest.raises(SealError):
        open_sealed(said.sealed, NOTHING)
    known = merge(known, [said])[0]
    removed, _changed = merge(known, documents(1, generation=2, tombstone=True))
    assert removed.find(said.key) is None


@given(
    st.dictionaries(
        st.sampled_from(("uid", "sequence", "addresses")),
        st.recursive(st.none() | st.integers() | st.text(max_size=5), st.lists, max_leaves=4),
    )
)
def test_nonsense_is_refused_in_words(body: dict[str, object]) -> None:
    try:
        said = ABSENCE.parse(body)
    except (ValueError, KeyError, TypeError, AttributeError):
        return
    assert len(said.addresses) <= ABSENT_ADDRESSES.most


def test_there_is_a_bound() -> None:
    many = [f"10.0.{n // 250}.{n % 250 + 1}" for n in range(ABSENT_ADDRESSES.most + 1)]
    with pytest.raises(ValueError, match="at most"):
        ABSENCE.parse({"uid": UID, "sequence": 1, "addresses": many})
    body = msgspec.json.encode(ABSENCE.parse({"uid": UID, "sequence": 1, "addresses": many[1:]}))
    assert len(body) < 1 << 14


def test_neighbours_hear_it_and_the_later_one_counts() -> None:
    assert KINDS["absence"].among_nodes
    world = World(7)
    for number in (1, 2, 3):
        world.add(number, known_of(node(each) for each in (1, 2, 3)))
    for sequence, addresses in ((0, ("10.244.1.5",)), (1, ())):
        said = seal(ABSENCE, Absence(UID, sequence, addresses), node_key(1))
        world.change(1, [remember(said)], Source.SELF)
        world.run(3.0)
        assert world.is_settled()
        assert world.hosts[3].known.value("absence", UID).addresses == addresses
