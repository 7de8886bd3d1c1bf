"""Communities as a person makes them, and as nodes hear of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from limpet.cluster.api import WatchLine
from limpet.cluster.kinds import GRANT, NETWORK
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import DefaultCommunity
from tests.controller.machines import (
    Controller,
    Node,
    join_all,
    of_kind,
    until_bookmark,
)


def run(controller: Controller, *words: str) -> str:
    """What a command prints that works."""
    done = controller.command(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(controller: Controller, *words: str) -> str:
    done = controller.command(*words)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr
    return done.stderr


def document(controller: Controller, *words: str) -> Any:
    return json.loads(run(controller, *words, "--output", "json"))


async def told(node: Node, lines: AsyncIterator[WatchLine]) -> list[Grant]:
    """The grants of what changed, up to the next bookmark."""
    found = await until_bookmark(lines)
    return [node.open(sealed) for line in found if (sealed := of_kind(line, GRANT)) is not None]


async def run_async(controller: Controller, *words: str) -> str:
    return await asyncio.to_thread(run, controller, *words)


def test_nodes_hear_of_a_change_in_signed_grants_of_those_alone_that_it_concerns(
    controller: Controller,
) -> None:
    async def body() -> None:
        crane, digger, watcher = await join_all(controller, "crane", "digger", "watcher")
        async with crane, digger, watcher, watcher.watch() as lines:
            await until_bookmark(lines)
            await run_async(controller, "community", "create", "harbour", "crane", digger.uid)
            changed = await told(watcher, lines)
            assert {grant.uid for grant in changed} == {crane.uid, digger.uid}
            assert {(grant.communities, grant.generation) for grant in changed} == {
                (("harbour",), 2)
            }
            await run_async(controller, "community", "remove", "harbour", "digger")
            (left,) = await told(watcher, lines)
            assert (left.uid, left.communities, left.generation) == (digger.uid, (), 3)
            await run_async(controller, "community", "remove", "harbour", "--all")
            (left,) = await told(watcher, lines)
            assert (left.uid, left.communities) == (crane.uid, ())
        found = await asyncio.to_thread(controller.ask, "community.list")
        assert found == {"communities": []}

    asyncio.run(body())


def test_a_node_that_gets_a_label_later_or_joins_with_it_belongs_to_the_community(
    controller: Controller,
) -> None:
    async def body() -> None:
        (crane,) = await join_all(controller, "crane")
        async with crane, Node(controller.url, "gate") as gate, Node(controller.url, "x") as other:
            made = await run_async(
                controller,
                *("community", "create", "harbour", "--selector", "site=harbour,tier!=gate"),
            )
            assert made == "harbour: no node\n"
            await run_async(controller, "node", "label", "crane", "site=harbour")
            assert (await crane.hello(), crane.grant.communities)[1] == ("harbour",)
            await gate.join(controller.token(labels={"site": "harbour", "tier": "gate"}))
            assert not gate.grant.communities
            await run_async(controller, "node", "label", "gate", "tier-")
            assert (await gate.hello(), gate.grant.communities)[1] == ("harbour",)
            await other.join(controller.token(labels={"site": "harbour"}, communities=["harbour"]))
            assert other.grant.communities == ("harbour",)

        shown = document(controller, "community", "show", "harbour")
        assert shown["selector"] == "site=harbour,tier!=gate"
        ways = {each["name"]: (each["by_name"], each["by_selector"]) for each in shown["nodes"]}
        assert ways == {"crane": (False, True), "gate": (False, True), "x": (True, True)}
        listed = run(controller, "community", "list").split("\n")
        assert listed[1].split() == ["harbour", "site=harbour,tier!=gate", "-", "3"]
        assert "name and selector" in run(controller, "community", "show", "harbour")

    asyncio.run(body())


def test_what_can_not_be_done_changes_nothing_and_says_what_to_do(controller: Controller) -> None:
    asyncio.run(_join_and_leave(controller, "crane"))

    unknown = refused(controller, "community", "create", "harbour", "crane", "ghost")
    assert "node ghost: there is none (limpet node list shows all)" in unknown
    assert document(controller, "community", "list") == {"communities": []}
    assert controller.ask("node.show", node="crane")["generation"] == 1
    assert "there are: none" in refused(controller, "community", "add", "harbour", "crane")
    assert "KEY=VALUE" in refused(controller, "community", "create", "h", "--selector", "site")
    assert "limpet community create NAME" in refused(
        controller, "token", "create", "--community", "harbour"
    )
    run(controller, "community", "create", "harbour")
    for words in (
        ("add", "harbour"),
        ("remove", "harbour"),
        ("remove", "harbour", "crane", "--all"),
    ):
        done = controller.command("community", *words)
        assert (done.returncode, done.stdout) == (2, "")


async def _join_and_leave(controller: Controller, *names: str) -> None:
    for node in await join_all(controller, *names):
        await node.close()


def test_what_was_said_holds_when_the_controller_is_killed_and_starts_anew(
    controller: Controller,
) -> None:
    asyncio.run(_join_and_leave(controller, "crane", "digger"))
    run(controller, "community", "create", "harbour", "crane", "--selector", "site=harbour")
    run(controller, "network", "set", "--default-community", "none")
    before = document(controller, "community", "show", "harbour")
    controller.kill()

    controller.start()

    assert document(controller, "community", "show", "harbour") == before
    assert document(controller, "network", "show")["default_community"] == "none"
    run(controller, "node", "label", "digger", "site=harbour")
    assert len(document(controller, "community", "show", "harbour")["nodes"]) == 2


def test_the_default_community_changes_in_the_next_generation_of_the_network(
    controller: Controller,
) -> None:
    async def body() -> None:
        (node,) = await join_all(controller, "crane")
        async with node, node.watch() as lines:
            await until_bookmark(lines)
            await run_async(controller, "network", "set", "--default-community", "none")
            found = [line async for line in _until_network(lines)][-1].document
            assert found is not None
            network = node.network(found)
            assert network.default_community is DefaultCommunity.NONE
            assert network.generation == 2
        await run_async(controller, "network", "set", "--default-community", "none")
        shown = await asyncio.to_thread(controller.ask, "network.show")
        assert shown["generation"] == 2  # nothing was to be changed

    asyncio.run(body())


async def _until_network(lines: AsyncIterator[WatchLine]) -> AsyncIterator[WatchLine]:
    async for line in lines:
        yield line
        if of_kind(line, NETWORK) is not None:
            return


def test_a_default_community_in_the_configuration_counts_and_is_not_changed_by_a_command(
    make_controller: Callable[..., Controller],
) -> None:
    controller = make_controller(default_community="none").start()
    words = refused(controller, "network", "set", "--default-community", "all")
    assert 'default_community = "none"' in words
    run(controller, "network", "set", "--default-community", "none")
    assert controller.stop() == 0

    del controller.settings["default_community"]
    controller.start()

    assert controller.ask("network.show")["default_community"] == "none"
    run(controller, "network", "set", "--default-community", "all")
    assert controller.ask("network.show")["default_community"] == "all"
    assert controller.stop() == 0
    controller.settings["default_community"] = "none"
    controller.start()
    assert controller.ask("network.show")["default_community"] == "none"
