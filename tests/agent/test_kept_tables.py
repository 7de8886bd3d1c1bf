"""While the agent is dead, its service manager keeps the socket that tables of policies belong to:
nobody can delete them, and the next agent goes on with them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from limpet.agent.services import give_back
from limpet.base.settings import Folders
from limpet.lab.command import LabError
from limpet.lab.world.node import LabNode
from limpet.lab.world.pod import LabPod
from limpet.services.kept import KEPT_FILE
from tests.agent.test_policies import CLOSED, FROM_CLIENTS, Knock, apply, pod
from tests.beds.namespaces import NetnsFactory
from tests.beds.own_tables import others_can_delete
from tests.beds.services.service_manager import ServiceManager
from tests.conftest import SEGMENTS, NodeFactory

TABLES = ("inet", "bridge")


@pytest.fixture
def node(make_node: NodeFactory) -> LabNode:
    return make_node(segments=SEGMENTS)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[ServiceManager]:
    with ServiceManager(tmp_path) as manager:
        yield manager


def command(node: LabNode) -> list[str]:
    node.write_config()
    inside = ("nsenter", f"--net={node.netns_path}")
    return [*inside, sys.executable, "-m", "limpet", "agent", "--config", str(node.config_path)]


def is_there(node: LabNode) -> bool:
    listed = node.run("nft", "list", "tables")
    return all(f"{family} limpet_policy" in listed for family in TABLES)


def closed(node: LabNode) -> tuple[LabPod, LabPod]:
    """A pod that a policy closes, and who would ask it."""
    found = pod(node, "web", {"app": "web"}), pod(node, "client", {"app": "client"})
    assert apply(node, CLOSED) == "NetworkPolicy shop/closed: in force\n"
    return found


def test_nobody_deletes_the_tables_of_an_agent_that_is_dead_or_begins_anew(
    node: LabNode, manager: ServiceManager
) -> None:
    if others_can_delete():
        pytest.skip("this kernel has no tables that belong to a socket and stay")
    knock = Knock(node)
    manager.start(command(node))
    web, client = closed(node)
    assert not knock(client, web)
    assert [name for name, _ in manager.stored] == ["policies"]

    for number in (signal.SIGKILL, signal.SIGTERM):
        manager.stop(number)
        node.run("nft", "flush", "ruleset")
        for family in TABLES:
            with pytest.raises(LabError, match="Operation not permitted"):
                node.run("nft", "delete", "table", family, "limpet_policy")
        assert is_there(node)
        assert not knock(client, web)
        manager.start(command(node))
        assert len(manager.stored) == 1, "it has taken what was kept"
        assert not knock(client, web)

    # The tables are the next agent's: it changes them.
    apply(node, FROM_CLIENTS)
    assert knock(client, web)
    assert not knock(client, web, 81)


def test_what_an_agent_without_policies_finds_of_before_goes_and_then_what_was_kept(
    node: LabNode, manager: ServiceManager
) -> None:
    manager.start(command(node))
    web, client = closed(node)
    manager.stop()
    (Path(node.settings["state_dir"]) / "policies.json").unlink()

    manager.start(command(node))
    assert "limpet_policy" not in node.run("nft", "list", "tables")
    assert Knock(node)(client, web)
    manager.stop()

    manager.start(command(node))
    assert manager.stored == []


def test_without_a_service_manager_tables_of_a_dead_agent_are_nobodys(
    node: LabNode, manager: ServiceManager
) -> None:
    manager.start(command(node))
    closed(node)
    manager.stop()
    manager.forget()
    for family in TABLES:
        node.run("nft", "delete", "table", family, "limpet_policy")
    assert not is_there(node)


def test_services_that_are_off_are_given_back_where_the_disk_gives_nothing_up(
    make_netns: NetnsFactory, tmp_path: Path
) -> None:
    folders = Folders(
        state_dir=tmp_path / "state", run_dir=tmp_path / "run", data_dir=tmp_path / "networks"
    )
    stuck = folders.cluster_dir / KEPT_FILE / "a folder is not removed as a file is"
    stuck.mkdir(parents=True)

    with make_netns("node").entered():
        give_back(folders, keep=False)

    assert stuck.exists()
