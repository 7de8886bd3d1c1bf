"""A kind that nothing has heard of gets all that a kind gets, from some ten lines."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.cluster.documents import Document, Key, Kind, Source
from limpet.cluster.keys import SealError
from limpet.cluster.kinds import GRANT, KINDS
from limpet.cluster.kinds.network import cluster_keys
from limpet.cluster.merge import merge
from limpet.cluster.seal import open_sealed, seal
from limpet.controller.registry.tables import Tables
from tests.cloud.bed import Member, Running
from tests.controller.machines import Controller, served_here
from tests.faults.test_power_loss import RecordingDisk, folder
from tests.faults.test_snapshot_power_loss import Run, judge, opened, outcomes
from tests.unit.cluster.exchange.exchange_world import World, known_of, node, remember
from tests.unit.cluster_values import CLUSTER_KEY, NOTHING, documents, grant, merged, node_key
from tests.waiting import until

__all__ = ["folder"]

# A kind that the cluster signs


@dataclass(frozen=True)
class Toy:
    name: str
    version: int
    colour: str = "red"
    revision: int = 0
    tombstone: bool = False


TOY = Kind("toy", lambda found: Toy(**found), signers=cluster_keys)
KINDS.register(TOY)

# And one that each node signs: it stands under the node's grant, as `UID/what` or `UID`

NOTE = Kind(
    "note",
    lambda found: Toy(**found),
    signers=lambda note, known: [known.value(GRANT.name, note.name[:24]).public_key],
    under=GRANT.name,
)
KINDS.register(NOTE)


def toy(name: str, version: int, *, tombstone: bool = False) -> Document:
    return seal(TOY, Toy(name, version, tombstone=tombstone), CLUSTER_KEY)


def note(number: int, version: int, what: str = "/todo") -> Document:
    return seal(NOTE, Toy(grant(number).uid + what, version), node_key(number))


# Signed


def test_it_is_signed_by_the_cluster_and_passes_for_nothing_else() -> None:
    signed = toy("ball", 1)
    assert open_sealed(signed.sealed, NOTHING) == signed
    with pytest.raises(SealError, match="nobody that this node trusts"):
        open_sealed(seal(TOY, Toy("ball", 1), node_key(1)).sealed, NOTHING)
    with pytest.raises(SealError, match="read toy"):
        open_sealed(
            seal(NOTE, Toy("ball", 1), CLUSTER_KEY).sealed.__class__("toy", b"{}", b""), NOTHING
        )


def test_what_a_node_signs_stands_under_its_grant_and_goes_with_it() -> None:
    signed, known = note(1, 1), merge(NOTHING, documents(1))[0]
    assert open_sealed(signed.sealed, known) == signed
    with pytest.raises(SealError, match="nobody that this node trusts"):
        open_sealed(seal(NOTE, Toy(signed.name, 2), node_key(2)).sealed, known)
    known = merge(known, [signed])[0]
    removed, changed = merge(known, documents(1, generation=2, tombstone=True))
    assert removed.find(signed.key) is None
    assert signed.key in changed


# Merged in any order


@given(
    st.lists(
        st.builds(toy, st.sampled_from("ab"), st.integers(0, 3), tombstone=st.booleans()),
        max_size=8,
    ),
    st.data(),
)
def test_it_is_merged_in_any_order(toys: list[Document], data: st.DataObject) -> None:
    known = [merge(NOTHING, [each])[0] for each in toys]
    shuffled = data.draw(st.permutations(known + known[:2]))
    both = reduce(merged, known, NOTHING)

    assert reduce(merged, shuffled, NOTHING) == both
    for each in toys:
        found = both.find(each.key)
        assert found is not None
        assert found.tombstone >= each.tombstone


# Kept over a power cut


def test_it_is_kept_over_a_power_cut_at_any_instant(folder: Path) -> None:
    path, run = folder / "cluster" / "snapshot.log", Run()
    path.parent.mkdir()
    file = opened(path, RecordingDisk(run.operations))
    file.read(NOTHING.pinned)
    for version in range(1, 16):
        news = merge(NOTHING, [toy("ball", version), toy(f"doll-{version}", 1, tombstone=True)])[0]
        run.add(news)
        file.put(news)
        assert run.ask(file).exception(10) is None
    file.close()

    for cut, files in outcomes(run, samples=2, seed=0):
        assert judge(run, cut, files, folder / "cut" / "snapshot.log") == ""


# Told by a neighbour


def test_it_is_told_by_neighbours_and_removed_for_all_by_a_tombstone() -> None:
    world = World(1)
    for number in (1, 2, 3):
        world.add(number, known_of(node(each) for each in (1, 2, 3)))
    first, said = remember(toy("ball", 1)), remember(note(2, 1))
    world.change(1, [first], Source.CLOUD)
    world.change(2, [said], Source.SELF)
    world.run(3.0)
    assert world.is_settled()
    assert world.hosts[3].known.find(first.key) == first
    assert world.hosts[3].known.find(said.key) == said

    world.add(4, known_of(node(each) for each in (1, 2, 3, 4)))  # hears by comparing alone
    world.change(1, node(4), Source.CLOUD)
    world.run(30.0)
    assert world.hosts[4].known.find(first.key) == first

    world.change(4, [remember(toy("ball", 1, tombstone=True))], Source.CLOUD)
    world.change(3, [remember(toy("ball", 9))], Source.CLOUD)
    world.run(30.0)
    assert world.is_settled()
    assert all(host.known.value("toy", "ball") is None for host in world.hosts.values())


# Stored and fed by a controller to an agent, kept there, and removed


def value(running: Running, document: Key) -> Toy | None:
    """As this agent knows it."""
    found: Toy | None = running.membership.replica.known.value(*document)
    return found


def test_it_is_stored_and_fed_to_agents_which_keep_it_and_publish_their_own(tmp_path: Path) -> None:
    controller = Controller(tmp_path / "controller")
    one, two = Member(tmp_path / "one", "one"), Member(tmp_path / "two", "two")
    ball = ("toy", "ball")

    def sign(tables: Tables) -> Toy:
        """The next version; the last one is a tombstone."""
        version = (found.version if (found := tables.find(ball)) is not None else 0) + 1
        made = Toy("ball", version, "blue", tables.next_revision(), tombstone=version == 2)
        tables.sign(TOY, made)
        return made

    async def play() -> None:
        async with served_here(controller) as cluster:
            for member in (one, two):
                await asyncio.to_thread(member.join, controller)
            mine = Toy(f"{one.identity.uid}/todo", 1, "green")
            said = ("note", mine.name)
            async with one.running() as a, two.running() as b:
                blue = await cluster.change(sign)
                await until(lambda: value(a, ball) == blue == value(b, ball))
                a.membership.replica.publish(seal(NOTE, mine, one.identity.private_key))
                a.session.wake()
                await until(lambda: value(b, said) == mine)

        # All start anew, the controller last.
        async with one.running() as a, two.running() as b:
            assert value(a, ball) == blue
            assert value(b, said) == mine
            async with served_here(controller) as cluster:
                await cluster.change(sign)
                await until(lambda: value(a, ball) is None)
                assert value(b, said) == mine
                await cluster.remove("one")
                await until(lambda: value(b, said) is None)

    asyncio.run(play())
