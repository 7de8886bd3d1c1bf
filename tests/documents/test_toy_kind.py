"""A kind that nothing has heard of gets all that a kind gets, from some ten lines."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.cloud import publisher
from limpet.cloud.second_road.state import UNTOLD_THERE
from limpet.cluster.documents import ByCluster, Document, Key, Kind, Source
from limpet.cluster.keys import SealError
from limpet.cluster.kinds import GRANT, KINDS, NETWORK
from limpet.cluster.kinds.network import cluster_keys, revoked_keys
from limpet.cluster.merge import merge
from limpet.cluster.seal import open_sealed, seal
from limpet.controller.registry.records import DocumentRecord
from limpet.controller.registry.registry import Registry
from limpet.controller.registry.tables import Tables
from limpet.controller.state.authority import create_cluster
from limpet.controller.store.interface import StorePut
from limpet.controller.store.sqlite import SqliteStore
from limpet.kubernetes.kinds.resources import RESOURCES
from tests.cloud.bed import Member, Running
from tests.controller.machines import Controller, served_here
from tests.faults.test_power_loss import RecordingDisk, folder
from tests.faults.test_snapshot_power_loss import Run, judge, opened, outcomes
from tests.unit.cluster.exchange.exchange_world import World, known_of, node, remember
from tests.unit.cluster_values import CLUSTER_KEY, NOTHING, documents, grant, merged, node_key
from tests.unit.controller.state.cluster_tables import network
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
    era: int = 0


TOY = Kind(
    "toy",
    lambda found: Toy(**found),
    signers=cluster_keys,
    revoked=revoked_keys,
    by_cluster=ByCluster(
        renewed=lambda toy, version, revision: replace(toy, version=version, revision=revision()),
        withdrawn=lambda forged, revision: Toy(forged.name, 1, revision=revision, tombstone=True),
    ),
)
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


# Signed anew by the cluster's next key


def stolen_key(tables: Tables) -> bytes:
    """The one with which the cluster signs now."""
    return tables.authority.cluster_keys[-1]


def test_the_next_key_signs_it_anew_and_a_node_that_joins_later_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "_LEFT_S", 0.1)
    controller = Controller(tmp_path / "controller")
    one, two = Member(tmp_path / "one", "one"), Member(tmp_path / "two", "two")
    ball = Toy("ball", 1, "blue", 1)

    async def play() -> None:
        async with served_here(controller) as cluster:
            await asyncio.to_thread(one.join, controller)
            async with one.running() as a:
                await cluster.change(lambda tables: tables.sign(TOY, ball))
                await until(lambda: value(a, ("toy", "ball")) == ball)
                doll = seal(TOY, Toy("doll", 1), await cluster.change(stolen_key))
                a.membership.offer([doll.sealed], source=Source.NEIGHBOUR)
                assert value(a, doll.key) == doll.value

                await cluster.rotate_key()

                await until(lambda: value(a, ("toy", "ball")) != ball)
                again = value(a, ("toy", "ball"))
                assert again is not None
                assert again == Toy("ball", 2, "blue", again.revision, era=1)
                assert again.revision > 1
                # What the cluster has not signed anew is shown to the controller.
                await until(lambda: value(a, doll.key) is None)
                assert a.membership.signed_by_former_keys() == []
            await asyncio.to_thread(two.join, controller)
        async with two.running() as b:  # what it has heard of while it joined
            assert value(b, ("toy", "ball")) == again
            assert value(b, doll.key) is None

    asyncio.run(play())


def test_what_no_object_at_an_api_server_carries_is_heard_of_the_controller() -> None:
    """`UNTOLD_THERE` was made before the toys were registered."""
    published = {kind.name for kind in KINDS.published() if kind not in (TOY, NOTE)}
    assert set(UNTOLD_THERE) == {NETWORK.name} | (published - RESOURCES.keys())
    assert TOY in KINDS.for_all_nodes()
    assert NOTE not in KINDS.for_all_nodes()


def test_what_another_cluster_has_signed_is_not_read_from_the_store(tmp_path: Path) -> None:
    foreign = seal(TOY, Toy("ball", 1), node_key(201))

    async def play() -> None:
        store = SqliteStore(tmp_path / "store.db")
        first = Registry(store, 0.0)
        await first.start()
        await first.change(lambda tables: create_cluster(tables, network()))
        await first.stop()
        record = msgspec.json.encode(DocumentRecord(foreign.sealed))
        await store.write([StorePut("toy", "ball", record)])

        registry = Registry(store, 0.0)
        await registry.start()
        assert await registry.change(lambda tables: tables.find(foreign.key)) is None
        assert registry.unreadable.keys() == {foreign.key}
        await registry.stop()
        await store.close()

    asyncio.run(play())
