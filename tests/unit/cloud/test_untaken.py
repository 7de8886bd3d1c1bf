"""What an API server has told of nodes that change it too often."""

from __future__ import annotations

import asyncio

import pytest

from limpet.base.bounds.neighbours import CHANGES_AT_ONCE
from limpet.cloud.second_road import untaken as untaken_module
from limpet.cloud.second_road.untaken import Untaken
from limpet.cluster.documents import Document, Sealed
from limpet.cluster.kinds import GRANT, PRESENCE
from limpet.cluster.seal import seal
from tests.unit.cluster_values import node_key, presence


def said(number: int, sequence: int) -> Document:
    return seal(PRESENCE, presence(number, sequence), node_key(number))


def test_what_a_node_changes_on_and_on_has_no_room_and_what_others_change_has() -> None:
    untaken = Untaken()
    for sequence in range(CHANGES_AT_ONCE.most):
        assert untaken.has_room(0.0, said(1, sequence))
        untaken.note_change(said(1, sequence).key, 0.0)

    assert not untaken.has_room(0.0, said(1, 99))
    assert untaken.has_room(0.0, said(2, 99))
    assert untaken.has_room(60.0, said(1, 99)), "later it has"


def test_what_came_too_often_is_looked_at_again_as_it_was_told_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(untaken_module, "_AGAIN_S", 0.01)
    name = (PRESENCE.name, "a")

    async def scenario() -> None:
        untaken = Untaken()
        for body in (b"first", b"last"):
            untaken.put_late(name, Sealed(PRESENCE.name, body, b""))
        assert [each.body for each in (await untaken.some_late()).values()] == [b"last"]
        untaken.forget(name)
        assert not untaken.late

    asyncio.run(scenario())


def test_what_the_cluster_has_signed_counts_at_any_time() -> None:
    """A node that floods could not be removed else."""
    untaken, key = Untaken(), (GRANT.name, presence(1).uid)
    for _ in range(2 * CHANGES_AT_ONCE.most):
        untaken.note_change(key, 0.0)
    assert untaken._rates.has_room(key, 0.0)
