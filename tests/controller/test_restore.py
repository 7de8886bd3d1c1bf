"""Back-up, restore, and what a controller may grant when it has forgotten some of its grants."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from limpet.cluster.api import Code, HelloAnswer, HelloRequest, token_id
from limpet.cluster.documents import Known
from limpet.cluster.keys import SealError
from limpet.cluster.kinds import GRANT, KINDS
from limpet.cluster.merge import merge
from limpet.cluster.seal import open_sealed
from limpet.controller.store.database import connect, copy_database
from tests.controller.machines import (
    Controller,
    Node,
    Refusal,
    join_all,
    network_in,
)

MakeController = Callable[..., Controller]


def held(*nodes: Node) -> list[str]:
    return [str(segment) for node in nodes for segment in node.grant.segments]


async def close(*nodes: Node) -> None:
    await asyncio.gather(*(node.close() for node in nodes))


def restore(controller: Controller, backup: Path) -> None:
    controller.stop()
    done = controller.command("controller", "restore", str(backup))
    assert done.returncode == 0, done.stderr
    controller.start()


def back_up(controller: Controller, target: Path) -> None:
    done = controller.command("controller", "backup", str(target))
    assert done.returncode == 0, done.stderr
    assert target.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("disk", ["is there", "is gone"])
def test_after_a_restore_no_segment_is_granted_twice_also_while_its_node_is_away(
    make_controller: MakeController, tmp_path: Path, disk: str
) -> None:
    controller = make_controller(restore_margin=4).start()

    async def body() -> None:
        (known,) = await join_all(controller, "known")
        back_up(controller, tmp_path / "backup")
        # All of this is lost: a node that stays away, and segments of one that was known.
        (away,) = await join_all(controller, "away")
        await known.request_segments(4)
        await close(known, away)
        if disk == "is gone":
            controller.stop()
            for path in controller.database.parent.glob("controller.db*"):
                path.unlink()
        restore(controller, tmp_path / "backup")

        (new,) = await join_all(controller, "new")
        await new.request_segments(4)
        assert not set(held(new)) & set(held(known, away))
        assert len(controller.ask("node.list")["nodes"]) == 2

        recovery = controller.ask("recovery")
        assert recovery["recovering"]
        assert [each["name"] for each in recovery["waiting_for"]] == ["known"]
        before = known.grant.segments
        with pytest.raises(Refusal) as caught:
            await known.request_segments(4)
        assert caught.value.code is Code.SAY_HELLO
        await known.hello()
        assert set(before) <= set(known.grant.segments)
        assert not controller.ask("recovery")["recovering"]

        # The one that was away comes at last, when everything else goes on as ever.
        before = away.grant.segments
        await away.hello()
        assert set(before) <= set(away.grant.segments)
        everything = held(known, away, new)
        assert len(everything) == len(set(everything))
        await close(known, away, new)

    asyncio.run(body())


def test_a_peer_shows_the_grant_of_a_node_that_is_away(
    make_controller: MakeController, tmp_path: Path
) -> None:
    controller = make_controller(restore_margin=4).start()

    async def body() -> None:
        (peer,) = await join_all(controller, "peer")
        back_up(controller, tmp_path / "backup")
        (away,) = await join_all(controller, "away")
        await close(peer, away)
        restore(controller, tmp_path / "backup")

        answer = await peer.hello()
        assert answer.show_above is not None
        assert await peer.show([away.sealed]) == 1
        assert await peer.show([away.sealed]) == 0
        segments = controller.ask("segment.list")["segments"]
        assert {each["segment"] for each in segments if each["node"] == "away"} == set(held(away))
        await close(peer)

    asyncio.run(body())


def test_a_node_shows_what_it_knows_of_others_before_its_report_ends_the_recovery(
    make_controller: MakeController, tmp_path: Path
) -> None:
    controller = make_controller(restore_margin=1).start()

    async def body() -> None:
        (peer,) = await join_all(controller, "peer")
        back_up(controller, tmp_path / "backup")
        away = await join_all(controller, "away-1", "away-2", "away-3")
        await close(peer, *away)
        controller.stop()
        for path in controller.database.parent.glob("controller.db*"):
            path.unlink()
        restore(controller, tmp_path / "backup")

        peer.revision = max(node.grant.revision for node in away)
        with pytest.raises(Refusal) as caught:
            await peer.hello()
        assert caught.value.code is Code.SHOW
        assert controller.ask("recovery")["recovering"]
        assert await peer.show([node.sealed for node in away]) == 3
        await peer.hello()
        (new,) = await join_all(controller, "new")
        assert not set(held(new)) & set(held(*away))
        await close(peer, new)

    asyncio.run(body())


def test_a_back_up_that_was_made_while_a_node_was_waited_for_is_restored_as_any(
    make_controller: MakeController, tmp_path: Path
) -> None:
    controller = make_controller(restore_margin=4).start()

    async def body() -> None:
        peer, away = await join_all(controller, "peer", "away")
        await close(peer, away)
        back_up(controller, tmp_path / "first")
        restore(controller, tmp_path / "first")
        await peer.hello()
        await peer.request_segments(4)
        await close(peer)
        back_up(controller, tmp_path / "second")
        restore(controller, tmp_path / "second")

        await peer.hello()

        (waits,) = controller.ask("recovery")["waiting_for"]
        assert waits["name"] == "away"
        await close(peer)

    asyncio.run(body())


def test_a_database_that_was_put_back_by_hand_is_found_out_and_grants_nothing(
    make_controller: MakeController, tmp_path: Path
) -> None:
    controller = make_controller(restore_margin=4).start()

    async def body() -> None:
        one, two = await join_all(controller, "one", "two")
        copy_database(controller.database, tmp_path / "copy")
        await one.request_segments(4, 6)
        lost = held(one, two)
        await close(one, two)
        controller.stop()
        for leftover in controller.database.parent.glob("controller.db*"):
            leftover.unlink()
        shutil.copy(tmp_path / "copy", controller.database)
        controller.start()

        with pytest.raises(Refusal) as caught:
            await one.request_segments(4)
        assert caught.value.code is Code.SHOW
        assert caught.value.refused.above is not None
        await one.hello()
        assert set(held(one, two)) == set(lost)
        with pytest.raises(Refusal) as caught:
            await one.request_segments(4)
        assert caught.value.code is Code.RECOVERING
        assert controller.command("controller", "recovery").returncode == 1

        await two.hello()
        await one.request_segments(4)
        everything = held(one, two)
        assert len(everything) == len(set(everything))
        assert controller.command("controller", "recovery").returncode == 0
        await close(one, two)

    asyncio.run(body())


def test_a_claim_to_know_more_stops_nobody_else(controller: Controller) -> None:
    async def body() -> None:
        liar, honest = await join_all(controller, "liar", "honest")
        liar.revision = 10**12
        with pytest.raises(Refusal) as caught:
            await liar.request_segments(4)
        assert caught.value.code is Code.SHOW
        await honest.request_segments(4)
        await close(liar, honest)

    asyncio.run(body())


def test_a_removal_that_the_back_up_does_not_know_is_learnt_from_a_peer(
    make_controller: MakeController, tmp_path: Path
) -> None:
    controller = make_controller().start()

    async def body() -> None:
        gone, peer = await join_all(controller, "gone", "peer")
        back_up(controller, tmp_path / "backup")
        controller.ask("node.remove", node="gone")
        with pytest.raises(Refusal) as caught:
            await gone.hello()
        tombstone = caught.value.refused.document
        assert tombstone is not None
        await close(gone, peer)
        restore(controller, tmp_path / "backup")

        await peer.hello()
        assert await peer.show([tombstone]) == 1
        with pytest.raises(Refusal) as caught:
            await gone.hello()
        assert caught.value.code is Code.REMOVED
        await close(gone, peer)

    asyncio.run(body())


def test_a_token_that_was_used_after_the_back_up_is_void(
    make_controller: MakeController, tmp_path: Path
) -> None:
    controller = make_controller().start()

    async def body() -> None:
        token = controller.token()
        back_up(controller, tmp_path / "backup")
        async with Node(controller.url, "a") as node:
            await node.join(token)
        restore(controller, tmp_path / "backup")
        with pytest.raises(Refusal) as caught:
            await Node(controller.url, "b").join(token)
        assert caught.value.code is Code.BAD_TOKEN

    asyncio.run(body())


def test_a_back_up_brings_no_token_back_that_was_removed_or_confirmed_since(
    make_controller: MakeController, tmp_path: Path
) -> None:
    controller = make_controller().start()

    async def body() -> None:
        removed, confirmed = controller.token(), controller.token()
        async with Node(controller.url, "a") as node:
            await node.join(confirmed)
            back_up(controller, tmp_path / "backup")
            await node.confirm()
        controller.ask("token.remove", ids=[token_id(removed)])
        restore(controller, tmp_path / "backup")
        for token in (removed, confirmed):
            with pytest.raises(Refusal) as caught:
                await Node(controller.url, "a").join(token)
            assert caught.value.code is Code.BAD_TOKEN
        assert controller.ask("token.list")["tokens"] == []

    asyncio.run(body())


def test_a_person_ends_a_recovery_by_force(make_controller: MakeController, tmp_path: Path) -> None:
    controller = make_controller(restore_margin=3).start()

    async def body() -> None:
        (node,) = await join_all(controller, "a")
        await node.close()
        back_up(controller, tmp_path / "backup")
        restore(controller, tmp_path / "backup")
        assert controller.ask("recovery")["held_back"] == 6
        done = controller.command("controller", "recovery", "--force")
        assert done.returncode == 0
        assert "6 segments given free" in done.stdout
        assert controller.ask("segment.list")["segments"][-1]["state"] == "held"

    asyncio.run(body())


def test_after_a_restore_that_was_cut_off_another_back_up_is_restored_as_it_is(
    make_controller: MakeController, tmp_path: Path
) -> None:
    """SQLite plays a log that the power cut has left into whatever comes beside it."""
    controller = make_controller().start()

    async def body() -> None:
        (first,) = await join_all(controller, "first")
        back_up(controller, tmp_path / "older")
        (second,) = await join_all(controller, "second")
        back_up(controller, tmp_path / "newer")
        await close(first, second)

    asyncio.run(body())
    controller.stop()
    coming = controller.database.with_name("controller.db.restoring")
    cut_off_a_restore(tmp_path / "older", coming)
    coming.with_name(coming.name + ".new").write_bytes(b"half a copy")

    done = controller.command("controller", "restore", str(tmp_path / "newer"))
    assert done.returncode == 0, done.stderr
    assert [*coming.parent.glob("*.restoring*")] == []
    controller.start()
    assert {each["name"] for each in controller.ask("node.list")["nodes"]} == {"first", "second"}


def cut_off_a_restore(backup: Path, coming: Path) -> None:
    """What is on the disk when the power goes amid `limpet controller restore`."""
    running = coming.with_name("running")
    copy_database(backup, running)
    with contextlib.closing(connect(running)) as connection:
        connection.execute("UPDATE item SET version = version + 1000")
        for suffix in ("", "-wal"):
            shutil.copy(f"{running}{suffix}", f"{coming}{suffix}")
    assert coming.with_name(coming.name + "-wal").stat().st_size > 0
    running.unlink()


@pytest.mark.parametrize("left", ["", "-wal"])
def test_what_a_restore_that_was_cut_off_has_left_is_told_at_the_start(
    make_controller: MakeController, left: str
) -> None:
    controller = make_controller().start()
    controller.stop()
    coming = controller.database.with_name("controller.db.restoring")
    coming.with_name(coming.name + left).write_bytes(b"x")

    code, words = controller.run()

    assert code == 1
    assert "a restore was cut off" in words
    assert f"remove {coming}*" in words


def test_a_copy_that_was_cut_off_is_named_by_the_next_of_that_name(
    controller: Controller, tmp_path: Path
) -> None:
    unfinished = tmp_path / "backup.new"
    unfinished.touch()

    done = controller.command("controller", "backup", str(tmp_path / "backup"))

    assert done.returncode == 1
    assert f"remove {unfinished}" in done.stderr
    unfinished.unlink()
    back_up(controller, tmp_path / "backup")


def test_a_restore_is_refused_while_the_controller_runs(
    controller: Controller, tmp_path: Path
) -> None:
    back_up(controller, tmp_path / "backup")
    done = controller.command("controller", "restore", str(tmp_path / "backup"))
    assert done.returncode == 1
    assert "systemctl stop limpet-controller" in done.stderr
    controller.ask("node.list")


def test_a_restore_of_something_else_changes_nothing(
    make_controller: MakeController, tmp_path: Path
) -> None:
    controller = make_controller().start()
    controller.stop()
    before = controller.database.read_bytes()
    (tmp_path / "garbage").write_bytes(b"x" * 5000)
    done = controller.command("controller", "restore", str(tmp_path / "garbage"))
    assert done.returncode == 1
    assert "no SQLite database" in done.stderr
    assert controller.database.read_bytes() == before
    controller.start()


def test_nodes_follow_a_rotated_key_by_the_former_keys_word(controller: Controller) -> None:
    async def body() -> None:
        (node,) = await join_all(controller, "a")
        before = node.sealed
        done = controller.command("controller", "rotate-key")
        assert done.returncode == 0
        assert node.joined is not None
        request = HelloRequest(node.revision, (before,))
        answer = await node.post("/v1/hello", request, HelloAnswer)
        network = node.network(network_in(answer.documents))
        assert len(network.keys) == 2
        known = Known(KINDS, node.joined.pinned_key)
        for sealed in answer.documents:
            known = merge(known, [open_sealed(sealed, known)])[0]
        grant = known.value(GRANT.name, node.grant.uid)
        assert grant.segments == node.grant.segments
        assert grant.generation == node.grant.generation + 1
        with pytest.raises(SealError):
            open_sealed(before, known)
        (later,) = await join_all(controller, "b")
        assert later.grant.name == "b"
        await close(node, later)

    asyncio.run(body())
