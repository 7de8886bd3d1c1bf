"""What the controller does with a database or a configuration that it cannot use; its commands."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from limpet.base.errors import LimpetError
from tests.controller.machines import Controller, Node, join_all

MakeController = Callable[..., Controller]


def stopped_after_a_start(make_controller: MakeController) -> Controller:
    controller = make_controller().start()
    asyncio.run(_join_one(controller))
    assert controller.stop() == 0
    return controller


async def _join_one(controller: Controller) -> None:
    (node,) = await join_all(controller, "a")
    await node.close()


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("controller.db*")}


def spoil(database: Path, at: int, data: bytes) -> None:
    content = bytearray(database.read_bytes())
    content[at : at + len(data)] = data
    database.write_bytes(content)


@pytest.mark.parametrize(
    ("at", "data", "words"),
    [
        (0, b"garbage!", "no SQLite database"),
        (60, struct.pack(">I", 9), "format 9"),
        (68, b"else", "not one of Limpet's"),
        (4096, b"\xff" * 4096, "damaged"),
    ],
)
def test_a_database_that_cannot_be_used_is_refused_and_not_touched(
    make_controller: MakeController, at: int, data: bytes, words: str
) -> None:
    controller = stopped_after_a_start(make_controller)
    spoil(controller.database, at, data)
    before = files(controller.database.parent)

    code, said = controller.run()

    assert code == 1
    assert words in said
    assert "not touched" in said
    assert said.count("\n") == 1
    after = files(controller.database.parent)
    assert {name: after[name] for name in before} == before


def test_a_database_that_was_cut_short_is_refused_and_not_touched(
    make_controller: MakeController,
) -> None:
    controller = stopped_after_a_start(make_controller)
    content = controller.database.read_bytes()
    controller.database.write_bytes(content[: len(content) // 2])

    code, said = controller.run()

    assert code == 1
    assert "limpet controller restore" in said
    assert controller.database.read_bytes() == content[: len(content) // 2]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"pod_cidrs": ["10.0.0.0/16", "10.0.0.0/17"]},
            "more than one of IPv4 (name one that is large enough for all)",
        ),
        (
            {"pod_cidrs": ["10.0.0.0/16"], "service_cidrs": ["10.0.128.0/20"]},
            "service_cidrs: 10.0.128.0/20 overlaps 10.0.0.0/16 of pod_cidrs "
            "(choose prefixes that lie apart)",
        ),
        (
            {"pod_cidrs": ["10.0.0.0/16"], "segment_length_v4": 12},
            "no /12 fits into 10.0.0.0/16 (choose 16 to 30)",
        ),
        ({"segment_length_v4": 31}, "a segment holds a gateway and a pod, so at most 30"),
        ({"segment_length_v6": 64, "pod_cidrs": ["fd00::/65"]}, "no /64 fits into fd00::/65"),
        (
            {"pod_cidrs": ["169.254.0.0/17"]},
            "which no pod may use (choose another, such as 10.244.0.0/16)",
        ),
        (
            {"pod_cidrs": ["10.244.0.0/16"], "listen": "10.244.9.1:7470"},
            "listen = 10.244.9.1 overlaps 10.244.0.0/16 of the cluster",
        ),
        ({"pod_cidrs": ["10.0.0.1/16"]}, "host bits"),
        ({"pod_cidrs": []}, "at least one prefix is needed, for example 10.244.0.0/16"),
        ({"patience_s": 0}, "not a number of seconds above 0"),
        ({"segment_quota": 0}, "whole number from 1"),
        ({"listen": "here"}, "not an address and port"),
        ({"bogus": 1}, "unknown key 'bogus'"),
    ],
)
def test_a_configuration_that_makes_no_cluster_is_refused_in_words(
    make_controller: MakeController, settings: dict[str, object], words: str
) -> None:
    controller = make_controller(**settings)

    code, said = controller.run()

    assert code == 1
    assert words in said
    assert said.count("\n") == 1
    assert not controller.database.exists()


def test_what_the_segments_were_cut_by_cannot_change_and_the_rest_can(
    make_controller: MakeController,
) -> None:
    controller = stopped_after_a_start(make_controller)
    controller.settings["segment_length_v4"] = 25
    code, said = controller.run()
    assert code == 1
    assert "can't change" in said

    del controller.settings["segment_length_v4"]
    controller.settings["service_cidrs"] = ["10.96.0.0/12"]
    controller.start()
    shown = controller.ask("network.show")
    assert shown["service_cidrs"] == ["10.96.0.0/12"]
    assert shown["generation"] == 2


def test_a_second_controller_on_one_database_does_not_start(controller: Controller) -> None:
    code, said = controller.run()
    assert code == 1
    assert "a controller runs on this database" in said


def test_every_command_prints_json_and_a_table(controller: Controller) -> None:
    async def join() -> Node:
        (node,) = await join_all(controller, "a")
        await node.publish()
        await node.close()
        return node

    node = asyncio.run(join())
    for words in (
        ["token", "create", "--ttl", "5m", "--label", "example.org/a=b", "--role", "cloud"],
        ["node", "list"],
        ["node", "show", "a"],
        ["node", "label", "a", "site=north", "example.org/floor=2"],
        ["node", "set", "a", "--role", "cloud", "--role", "relay"],
        ["node", "replace", "a"],
        ["node", "replace", "a", "--cancel"],
        ["segment", "list"],
        ["network", "show"],
        ["pod", "list"],
        ["controller", "recovery"],
        ["controller", "rotate-key"],
    ):
        table = controller.command(*words)
        assert (table.returncode, table.stdout != "" or words == ["pod", "list"]) == (0, True), (
            words
        )
        as_json = controller.command(*words, "--output", "json")
        assert isinstance(json.loads(as_json.stdout), dict), words
    assert controller.ask("node.show", node="a")["labels"] == {
        "site": "north",
        "example.org/floor": "2",
    }
    assert controller.command("node", "set", "a", "--add-role", "edge").stdout == (
        "roles: cloud, edge, relay\nbehind: -\n"
    )
    assert controller.command("node", "set", "a", "--remove-role", "cloud").stdout == (
        "roles: edge, relay\nbehind: -\n"
    )
    assert controller.command("node", "label", "a", "example.org/floor-").stdout == "site=north\n"
    assert controller.command("node", "remove", "a").stdout == f"a ({node.uid}) removed\n"
    assert "awaits" not in controller.command("node", "list").stdout


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["node", "show", "nobody"], 1),
        (["node", "remove", "nobody"], 1),
        (["node", "label", "nobody", "a=b"], 1),
        (["token", "create", "--role", "king"], 1),
        (["token", "create", "--ttl", "soon"], 2),
        (["node", "label", "a", "example.org/=x"], 1),
        (["node", "label", "a", "example.org/a/b=x"], 1),
        (["node", "label", "a", "x"], 2),
        (["node", "set", "nobody", "--role", "edge"], 1),
        (["node", "set", "nobody", "--add-role", "king"], 1),
        (["node", "set", "nobody"], 2),
        (["node", "set", "nobody", "--role", "edge", "--add-role", "cloud"], 2),
        (["controller", "backup", "/nowhere/at/all"], 1),
        (["controller", "restore", "/nowhere/at/all"], 1),
    ],
)
def test_a_command_that_fails_says_why_in_a_line(
    controller: Controller, words: list[str], code: int
) -> None:
    done = controller.command(*words)
    assert done.returncode == code
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr


def test_without_a_controller_the_commands_say_so(make_controller: MakeController) -> None:
    controller = make_controller()
    controller.write_config()
    done = controller.command("node", "list")
    assert done.returncode == 1
    assert "ask the controller at" in done.stderr


def test_the_socket_of_the_commands_is_for_its_owner_alone(controller: Controller) -> None:
    assert controller.socket.stat().st_mode & 0o777 == 0o600
    assert controller.database.stat().st_mode & 0o777 == 0o600


def test_a_command_of_another_version_is_refused_in_words(controller: Controller) -> None:
    with pytest.raises(LimpetError, match=r"node.fly: this controller knows no such command \(an"):
        controller.ask("node.fly")
    with pytest.raises(LimpetError, match="unknown field `faster`"):
        controller.ask("node.list", faster=True)
