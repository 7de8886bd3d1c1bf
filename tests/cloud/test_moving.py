"""A node is told where its controllers are now: of its own cluster, or nothing changes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from limpet.base.errors import LimpetError
from limpet.cloud.moving import move
from limpet.cluster.identity import load_identity
from limpet.lab.launch import launcher
from tests.cloud.bed import Member
from tests.controller.machines import Controller
from tests.waiting import until

MakeController = Callable[..., Controller]


def at(controller: Controller) -> str:
    return f"127.0.0.1:{controller.port}"


@pytest.fixture
def node(tmp_path: Path, controller: Controller) -> Member:
    made = Member(tmp_path / "node", "edge-1")
    made.join(controller)
    return made


@pytest.fixture
def moved(controller: Controller, make_controller: MakeController) -> Controller:
    """The same cluster's, at another address."""
    controller.stop()
    return make_controller(state_dir=controller.settings["state_dir"]).start()


def refusal(node: Member, *controllers: str, force: bool = False) -> str:
    before = node.identity
    with pytest.raises(LimpetError) as refused:
        move(node.folders, controllers, force=force)
    assert node.identity == before
    return str(refused.value)


def test_a_controller_that_moved_is_asked_before_it_counts_and_a_session_goes_on_there(
    node: Member, controller: Controller, moved: Controller
) -> None:
    async def body() -> None:
        async with node.running() as running:
            await until(lambda: running.session.state.error)
            done = await asyncio.to_thread(move, node.folders, [at(moved)], force=False)
            assert (done.cluster, done.controllers) == ("limpet", (at(moved),))
            assert done.before == (at(controller),)
            running.session.use_controllers(node.identity.controllers)
            await running.connected()
            assert running.session.state.controller == at(moved)
        async with node.running() as again:  # as after a restart
            await again.connected()

    asyncio.run(body())


def test_a_session_with_an_address_that_is_given_up_ends_and_one_that_stays_goes_on(
    node: Member, controller: Controller
) -> None:
    async def body() -> None:
        async with node.running() as running:
            await running.connected()
            since_s = running.session.state.since_s
            running.session.use_controllers(("127.0.0.1:1", at(controller)))
            assert running.session.state.controller == at(controller)
            assert running.session.state.since_s == since_s
            running.session.use_controllers(("127.0.0.1:1",))
            await until(lambda: not running.session.state.connected)

    asyncio.run(body())


def test_the_controller_of_another_cluster_never_counts(
    node: Member, make_controller: MakeController
) -> None:
    other = make_controller().start()
    for force in (False, True):
        assert "not of this node's cluster" in refusal(node, at(other), force=force)


def test_an_address_where_nobody_answers_counts_only_by_force(
    node: Member, controller: Controller
) -> None:
    said = refusal(node, at(controller), "127.0.0.1:1")
    assert "127.0.0.1:1: nothing listens there" in said
    assert f"goes on asking {at(controller)}" in said
    assert "not an address" in refusal(node, "a/b", force=True)

    done = move(node.folders, [at(controller), "127.0.0.1:1"], force=True)
    assert len(done.unreached) == 1
    assert node.identity.controllers == (at(controller), "127.0.0.1:1")


def test_nodes_that_are_told_by_an_api_server_and_machines_without_a_cluster_are_refused(
    node: Member, controller: Controller, tmp_path: Path
) -> None:
    file = node.folder / "cluster.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "by_account": True}))
    assert "asks its API server" in refusal(node, at(controller))

    alone = Member(tmp_path / "alone", "edge-2")
    with pytest.raises(LimpetError, match="in no cluster yet, so it needs a token"):
        move(alone.folders, [at(controller)], force=False)
    assert load_identity(alone.folder) is None


def test_the_command_says_where_the_node_asks_now_and_that_no_agent_runs(
    node: Member, controller: Controller, moved: Controller
) -> None:
    folders = node.folders
    config = folders.state_dir / "agent.toml"
    settings = {"state_dir": folders.state_dir, "run_dir": folders.run_dir}
    settings |= {"data_dir": folders.data_dir, "socket": folders.run_dir / "agent.sock"}
    config.write_text(
        "".join(f"{key} = {json.dumps(str(each))}\n" for key, each in settings.items())
    )

    command = [sys.executable, "-m", "limpet", "join", "--config", str(config)]
    done = launcher().run([*command, "--controller", at(moved)])

    assert done.returncode == 0, done.stderr
    assert (
        done.stdout == f"edge-1 asks its controller at {at(moved)} now (before: {at(controller)})\n"
    )
    assert "no agent runs" in done.stderr
    assert launcher().run([*command, "--controller", at(moved), "--name", "x"]).returncode == 2
