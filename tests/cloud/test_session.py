"""A node and the real controller, which is killed, restored and cut off between the words."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from limpet.base.decoding import decode_json
from limpet.cloud.link import ControllerLink, ControllerRefusedError
from limpet.cloud.pod_reports import keep_bindings
from limpet.cloud.second_road.state import PUBLISHED_THERE, UNTOLD_THERE
from limpet.cluster.api import (
    Code,
    HelloAnswer,
    InterfaceAddresses,
    PublishAnswer,
    PublishRequest,
    Refused,
    encode,
)
from limpet.cluster.documents import Sealed, Source
from limpet.cluster.identity import Identity
from limpet.cluster.kinds import GRANT, POLICY
from limpet.controller.registry.records import AUTHORITY, AuthorityRecord
from limpet.controller.store.database import copy_database, read_item
from tests.beds.rogue import Authority, answer, says, serving, take_request
from tests.cloud.bed import Member, Running
from tests.controller.machines import Controller
from tests.unit.cluster_values import PINNED, node_key, seal_grant, told
from tests.waiting import until, until_answered

MakeController = Callable[..., Controller]
Joiner = Callable[[str], Member]


@pytest.fixture
def member(tmp_path: Path, controller: Controller) -> Joiner:
    """Makes nodes that have joined."""

    def make(name: str) -> Member:
        made = Member(tmp_path / name, name)
        made.join(controller)
        return made

    return make


WEB = "NetworkPolicy/shop/web"
CLOSED = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "web", "namespace": "shop"},
    "spec": {"podSelector": {}},
}


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(body())  # type: ignore[arg-type]


async def shown(controller: Controller, uid: str) -> dict[str, object]:
    return await asyncio.to_thread(controller.ask, "node.show", node=uid)


# What is told and heard


def test_nodes_hear_of_each_other_and_of_every_change(
    controller: Controller, member: Joiner
) -> None:
    one, two = member("one"), member("two")

    async def body() -> None:
        async with one.running() as first, two.running() as second:
            first.announce("192.0.2.1")
            second.announce("192.0.2.2")
            await until(lambda: second.addresses_of(one.identity.uid) == ("192.0.2.1",))
            await until(lambda: first.addresses_of(two.identity.uid) == ("192.0.2.2",))
            first.announce("192.0.2.7")
            await until(lambda: second.addresses_of(one.identity.uid) == ("192.0.2.7",))
            await asyncio.wrap_future(first.membership.replica.file.durable())
        async with two.running(controllers=["127.0.0.1:1"]) as offline:
            assert offline.addresses_of(one.identity.uid) == ("192.0.2.7",)

    run(body)


def test_a_node_gets_as_many_segments_as_it_wants_and_the_quota_allows(
    make_controller: MakeController, tmp_path: Path
) -> None:
    controller = make_controller(segment_quota=3).start()
    node = Member(tmp_path / "n", "n")
    node.join(controller)

    async def body() -> None:
        async with node.running(segment_demand=lambda _grant: (4,)) as running:
            await until(lambda: running.session.state.segment_refused != "")
            assert "quota" in running.session.state.segment_refused
            assert running.session.state.refused == ""
            assert running.session.state.connected
            assert len([each for each in running.segments if ":" not in each]) == 3
            granted = running.segments
            await asyncio.to_thread(controller.kill)
            await until(lambda: not running.session.state.connected)
            assert running.session.state.segment_refused == ""
            await asyncio.to_thread(controller.start)
        async with node.running(controllers=["127.0.0.1:1"]) as offline:
            assert offline.segments == granted

    run(body)
    held = {each["segment"] for each in controller.ask("segment.list")["segments"]}
    assert len(held) == 4


def test_who_hears_and_publishes_by_another_road_asks_its_controller_for_segments_alone(
    member: Joiner,
) -> None:
    one, two = member("one"), member("two")

    async def body() -> None:
        async with (
            two.running() as hearer,
            one.running(
                elsewhere=("presence",),
                segment_demand=lambda grant: (4,) if len(grant.segments) == 2 else (),
            ) as running,
        ):
            running.announce("192.0.2.1")
            hearer.announce("192.0.2.2")
            await until(lambda: len(running.segments) == 3)
            uid = running.membership.uid
            # What it has of its own to publish would have come before it asked.

            def granted() -> tuple[object, ...]:
                entry = hearer.membership.snapshot.nodes.get(uid)
                return () if entry is None else entry.grant.segments

            await until(lambda: len(granted()) == 3)
            assert hearer.addresses_of(uid) == ()
            assert running.addresses_of(hearer.membership.uid) == ()

    run(body)


def test_who_hears_by_another_road_hears_policies_of_its_controller_also_under_the_next_key(
    controller: Controller, member: Joiner
) -> None:
    one, two = member("one"), member("two")

    async def body() -> None:
        async with (
            two.running() as hearer,
            one.running(elsewhere=PUBLISHED_THERE, untold=UNTOLD_THERE) as running,
        ):
            hearer.announce("192.0.2.2")
            await running.connected()
            assert running.membership.replica.has_heard_all
            await asyncio.to_thread(controller.ask, "policy.apply", documents=[CLOSED])
            await until(lambda: policies_of(running) == {WEB: 0})
            await asyncio.to_thread(controller.ask, "rotate-key")
            await until(lambda: policies_of(running) == {WEB: 1})
            left = running.membership.signed_by_former_keys()
            assert {each.kind for each in left} <= {GRANT.name}  # which the other road tells
            await asyncio.to_thread(controller.ask, "policy.delete", namespace="shop", name="web")
            await until(lambda: policies_of(running) == {})
            # All else is the other road's.
            assert running.addresses_of(hearer.membership.uid) == ()

    run(body)


def policies_of(running: Running) -> dict[str, int]:
    """Those that hold, and the numbers of the keys that have signed them."""
    known = running.membership.replica.known.of(POLICY.name)
    return {name: each.era for name, each in known.items() if each.value.document is not None}


def test_an_appetite_that_comes_later_is_heard(controller: Controller, member: Joiner) -> None:
    node = member("n")
    wanted: list[int] = []

    def segment_demand(_grant: object) -> tuple[int, ...]:
        return tuple(wanted.pop() for _ in wanted[:1])

    async def body() -> None:
        async with node.running(segment_demand=segment_demand) as running:
            await running.connected()
            before = running.segments
            wanted.append(6)
            running.session.wake()
            await until(lambda: len(running.segments) == len(before) + 1)

    run(body)


def test_a_node_whose_disk_was_put_back_goes_on_above_what_it_has_told(
    controller: Controller, member: Joiner, tmp_path: Path
) -> None:
    node = member("n")
    shutil.copytree(node.folder, tmp_path / "copy")

    async def body() -> None:
        async with node.running() as running:
            for number in range(1, 5):
                running.announce(f"192.0.2.{number}")
            await until_told(controller, node, "192.0.2.4", running)
            told = running.membership.presence
            assert told is not None
        shutil.rmtree(node.folder)
        shutil.copytree(tmp_path / "copy", node.folder)
        async with node.running(boot_id="next") as running:
            running.announce("192.0.2.9")
            await until_told(controller, node, "192.0.2.9", running)
            again = running.membership.presence
            assert again is not None
            assert again.sequence > told.sequence
            assert not running.membership.cloned

    run(body)


async def until_told(controller: Controller, node: Member, address: str, running: Running) -> None:
    """The controller has the node's presence with this address."""
    uid = node.identity.uid

    async def has_it() -> bool:
        return running.session.state.error == "" and address in str(await shown(controller, uid))

    await until_answered(has_it)


async def send_what_is_counted_and_not_written(identity: Identity) -> None:
    """More of the node's presences than are taken of it, however slow the disk is."""
    link = ControllerLink(identity)
    nonsense = PublishRequest(Sealed("presence", b"", b""))
    try:
        while True:
            with contextlib.suppress(ControllerRefusedError):
                await link.ask("PUT", "/v1/documents", nonsense, PublishAnswer, revision=0)
    finally:
        link.close()


def test_a_node_that_was_put_off_tells_its_newest_presence_by_itself(
    controller: Controller, member: Joiner
) -> None:
    node = member("n")

    async def body() -> None:
        async with node.running() as running:
            await running.connected()
            flood = asyncio.create_task(send_what_is_counted_and_not_written(node.identity))
            numbers = itertools.cycle(range(1, 250))

            def is_put_off() -> bool:
                running.announce(f"192.0.2.{next(numbers)}")
                return running.session.state.refused != ""

            await until(is_put_off)
            flood.cancel()
            assert "documents come too often" in running.session.state.refused
            assert running.session.state.segment_refused == ""
            running.announce("198.51.100.1")
            running.announce("198.51.100.2")
            await until_told(controller, node, "198.51.100.2", running)
            await until(lambda: not running.session.state.refused)

    run(body)


def test_a_node_that_has_lost_its_own_grant_gets_it_from_the_controller(
    controller: Controller, member: Joiner
) -> None:
    node = member("n")
    for name in ("snapshot.log", "own.log"):
        (node.folder / name).unlink()

    async def body() -> None:
        async with node.running() as running:
            assert running.membership.own is None
            await running.connected()
            assert "10.244.0.0/24" in running.segments

    run(body)


def test_which_pod_holds_which_address_is_told_again_to_a_controller_that_forgot_it(
    controller: Controller, member: Joiner, tmp_path: Path
) -> None:
    node = member("n")
    done = controller.command("controller", "backup", str(tmp_path / "backup"))
    assert done.returncode == 0, done.stderr
    pod = InterfaceAddresses("limpet", "default", "web", "eth0", ("10.244.0.7",))
    keep_bindings(node.folders.data_dir, [pod])

    def pods() -> list[str]:
        return [each["pod"] for each in controller.ask("pod.list")["pods"]]

    async def body() -> None:
        async with node.running():
            await until(lambda: pods() == ["web"])
        controller.stop()
        done = controller.command("controller", "restore", str(tmp_path / "backup"))
        assert done.returncode == 0, done.stderr
        controller.start()
        assert pods() == []
        async with node.running():
            await until(lambda: pods() == ["web"])

    run(body)


# The controller goes and comes


def test_a_controller_that_was_killed_is_found_again_and_nothing_was_forgotten_meanwhile(
    controller: Controller, member: Joiner
) -> None:
    one, two = member("one"), member("two")

    async def body() -> None:
        async with one.running() as first, two.running() as second:
            first.announce("192.0.2.1")
            await until(lambda: second.addresses_of(one.identity.uid) == ("192.0.2.1",))
            await asyncio.to_thread(controller.kill)
            await until(lambda: not second.session.state.connected)
            assert second.addresses_of(one.identity.uid) == ("192.0.2.1",)
            first.announce("192.0.2.2")
            await until(lambda: second.session.state.error != "")
            await asyncio.to_thread(controller.start)
            await until(lambda: second.addresses_of(one.identity.uid) == ("192.0.2.2",))
            assert second.session.state.error == ""

    run(body)


def test_a_change_of_the_nodes_links_connects_at_once(
    controller: Controller, member: Joiner
) -> None:
    node = member("n")

    async def body() -> None:
        async with node.running() as running:
            await running.connected()
            since_s = running.session.state.since_s
            running.session.network_changed()
            await until(lambda: running.session.state.since_s > since_s)
            await running.connected()

    run(body)


@pytest.mark.parametrize("how", ["by hand", "by command"])
def test_a_controller_restored_from_an_old_backup_learns_the_grants_from_the_nodes(
    make_controller: MakeController, tmp_path: Path, how: str
) -> None:
    controller = make_controller(restore_margin=4).start()
    one, away = Member(tmp_path / "one", "one"), Member(tmp_path / "away", "away")
    one.join(controller)
    copy_database(controller.database, tmp_path / "backup")
    away.join(controller)  # which is lost

    async def body() -> None:
        wanted = [4, 6]

        def segment_demand(_grant: object) -> tuple[int, ...]:
            return (wanted.pop(),) if wanted else ()

        async with one.running(segment_demand=segment_demand) as running:
            await until(lambda: len(running.segments) == 4)
            await until(lambda: away.identity.uid in running.membership.snapshot.nodes)
            everything = running.segments
            await asyncio.to_thread(put_back)
            await running.connected()
            await until(lambda: held(controller) >= everything)
            # Its own grants are told with the hello, what it knows of others after that.
            await until(lambda: names_in(controller) == {"one", "away"})
            # Which grants go on, and none that somebody has.
            async with away.running() as other:
                await other.connected()
                others = other.segments
                assert not others & everything
            wanted.append(4)
            running.session.wake()
            await until(lambda: len(running.segments) == 5)
            assert not running.segments & others

    def put_back() -> None:
        if how == "by command":
            controller.stop()
            done = controller.command("controller", "restore", str(tmp_path / "backup"))
            assert done.returncode == 0, done.stderr
        else:
            controller.kill()
            for leftover in controller.database.parent.glob("controller.db*"):
                leftover.unlink()
            shutil.copy(tmp_path / "backup", controller.database)
        controller.start()

    run(body)


def test_what_nodes_got_that_are_away_is_not_granted_again_where_a_peer_knows_it(
    make_controller: MakeController, tmp_path: Path
) -> None:
    controller = make_controller(restore_margin=1).start()
    one, new = Member(tmp_path / "one", "one"), Member(tmp_path / "new", "new")
    one.join(controller)
    done = controller.command("controller", "backup", str(tmp_path / "backup"))
    assert done.returncode == 0, done.stderr
    away = [Member(tmp_path / f"away-{number}", f"away-{number}") for number in range(4)]
    lost = [str(segment) for each in away for segment in each.join(controller).segments]

    async def body() -> None:
        async with one.running() as running:
            await until(lambda: len(running.membership.snapshot.nodes) == 5)
            await asyncio.to_thread(restore_on_new_disk)
            await running.connected()
            await until(lambda: held(controller) >= {*lost, *running.segments})
        joined = await asyncio.to_thread(new.join, controller)
        assert not set(map(str, joined.segments)) & set(lost)

    def restore_on_new_disk() -> None:
        controller.stop()
        for leftover in controller.database.parent.glob("controller.db*"):
            leftover.unlink()
        done = controller.command("controller", "restore", str(tmp_path / "backup"))
        assert done.returncode == 0, done.stderr
        controller.start()

    run(body)


def names_in(controller: Controller) -> set[str]:
    return {each["name"] for each in controller.ask("node.list")["nodes"]}


def held(controller: Controller) -> set[str]:
    segments = controller.ask("segment.list")["segments"]
    return {each["segment"] for each in segments if each["state"] == "held"}


# Removed


def test_a_node_that_is_removed_hears_it(controller: Controller, member: Joiner) -> None:
    node = member("n")

    async def body() -> None:
        async with node.running() as running:
            running.announce("192.0.2.1")
            await running.connected()
            await asyncio.to_thread(controller.ask, "node.remove", node="n")
            await until(lambda: running.session.state.over)
            assert running.membership.removed
        async with node.running() as again:
            assert again.session.state.over

    run(body)


def test_a_node_that_was_removed_while_it_was_away_is_told(
    controller: Controller, member: Joiner
) -> None:
    node, peer = member("n"), member("peer")
    controller.ask("node.remove", node="n")

    async def body() -> None:
        async with node.running() as running, peer.running() as other:
            await until(lambda: running.session.state.over)
            assert not running.session.state.connected
            uid = node.identity.uid  # a list from before may come first, and the news after it
            await until(lambda: other.membership.tombstone_of(uid) is not None)

    run(body)


def test_a_node_that_missed_a_rotation_and_was_then_removed_is_told(
    controller: Controller, member: Joiner
) -> None:
    node = member("n")
    controller.ask("rotate-key")
    controller.ask("node.remove", node="n")

    async def body() -> None:
        async with node.running() as running:
            await until(lambda: running.membership.removed)
            await until(lambda: running.session.state.over)

    run(body)


def stolen_key(controller: Controller) -> bytes:
    """The one with which the cluster signs now."""
    found = read_item(controller.database, AUTHORITY, AUTHORITY)
    assert found is not None
    return decode_json(found, AuthorityRecord).cluster_keys[-1]


def test_a_node_whose_removal_a_thief_forged_is_back_with_the_clusters_next_key(
    controller: Controller, member: Joiner
) -> None:
    node = member("n")
    stolen = stolen_key(controller)

    async def body() -> None:
        async with node.running() as running:
            running.announce("192.0.2.1")
            await running.connected()
            forged = replace(running.grant, tombstone=True, generation=running.grant.generation + 1)
            running.membership.offer([seal_grant(forged, stolen)], source=Source.NEIGHBOUR)
            assert running.membership.removed
            await until(lambda: not running.session.state.connected)

            # Before the rotation nobody is shown what would remove the node for all.
            running.session.network_changed()
            await until(lambda: running.session.state.over)
            assert (await shown(controller, node.identity.uid))["name"] == "n"

            await asyncio.to_thread(controller.ask, "rotate-key")
            running.session.network_changed()
            await until(lambda: not running.membership.removed)
            await running.connected()
            running.announce("192.0.2.2")
            await until_told(controller, node, "192.0.2.2", running)

    run(body)


def test_a_node_whose_removal_was_forged_is_back_after_a_restart(
    controller: Controller, member: Joiner
) -> None:
    node = member("n")
    stolen = stolen_key(controller)

    async def body() -> None:
        async with node.running() as running:
            await running.connected()
            forged = replace(running.grant, tombstone=True)
            running.membership.offer([seal_grant(forged, stolen)], source=Source.NEIGHBOUR)
        await asyncio.to_thread(controller.ask, "rotate-key")
        async with node.running() as again:
            assert again.membership.removed
            await again.connected()
            assert not again.membership.removed

    run(body)


# What is no controller


def test_rubbish_takes_nobody_away_and_the_next_controller_is_asked(
    controller: Controller, member: Joiner, tmp_path: Path
) -> None:
    one, two = member("one"), member("two")
    rogue = Authority(tmp_path / "rogue")

    async def body() -> None:
        async with one.running() as first, two.running() as second:
            first.announce("192.0.2.1")
            await until(lambda: second.addresses_of(one.identity.uid) == ("192.0.2.1",))
        async with serving(says(answer(b"{}")), rogue.server_context()) as bad:
            async with two.running(controllers=[bad]) as running:
                await until(lambda: running.session.state.error != "")
                assert "not of this node's cluster" in running.session.state.error
                assert running.addresses_of(one.identity.uid) == ("192.0.2.1",)
                assert running.segments
            good = f"127.0.0.1:{controller.port}"
            async with two.running(controllers=[bad, good]) as running:
                await running.connected()
                assert running.session.state.controller == good

    run(body)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        ("200 OK", b"{}"),
        (
            "200 OK",
            encode(
                HelloAnswer(9, (Sealed("network", b"", b""), Sealed("grant", b"{}", bytes(64))))
            ),
        ),
        ("403 Forbidden", encode(Refused(Code.REMOVED, "gone"))),
        (
            "403 Forbidden",
            encode(Refused(Code.REMOVED, "gone", document=Sealed("grant", b"{}", bytes(64)))),
        ),
        ("403 Forbidden", encode(Refused(Code.UNKNOWN_NODE, "who?"))),
        ("409 Conflict", encode(Refused(Code.SHOW, "more", above=0))),
        ("409 Conflict", encode(Refused(Code.SAY_HELLO, "hello?"))),
        ("503 Service Unavailable", encode(Refused(Code.TRY_AGAIN, "later"))),
    ],
)
def test_no_answer_ends_the_session_or_takes_anybody_away(
    tmp_path: Path, status: str, body: bytes
) -> None:
    rogue = Authority(tmp_path / "rogue")
    node = Member(tmp_path / "n", "n")
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            await take_request(reader)
            writer.write(answer(body, status))
            await writer.drain()

    async def play() -> None:
        async with serving(serve, rogue.server_context()) as at:
            identity = rogue.identity(at, private_key=node_key(1), pinned_key=PINNED)
            running = Running(node.folders, identity, lambda _grant: (), "boot")
            known = [*told(1), *told(2)]
            running.membership.offer(known, source=Source.NEIGHBOUR)
            before = running.membership.snapshot.nodes
            running.session.start()
            try:
                await until(lambda: connections >= 3)
                state = running.session.state
                assert at in state.error or state.error in body.decode()
                assert not state.over
                assert running.membership.snapshot.nodes == before
            finally:
                await running.session.stop()
                running.close()

    run(play)
