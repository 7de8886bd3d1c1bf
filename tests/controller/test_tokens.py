"""Join tokens, shown to a real controller."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

import pytest

from limpet.base.errors import LimpetError
from limpet.cli.main import main
from limpet.cluster.api import Code, parse_token, token_id
from tests.controller.machines import Controller, Node, Refusal


async def refused(work: Awaitable[Any]) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await work
    return caught.value


def test_a_token_lets_one_node_in(controller: Controller) -> None:
    async def body() -> None:
        token = controller.token()
        await Node(controller.url, "a").join(token)
        refusal = await refused(Node(controller.url, "b").join(token))
        assert refusal.code is Code.BAD_TOKEN
        assert "limpet token create" in refusal.refused.error

    asyncio.run(body())


def test_of_many_nodes_with_one_token_one_gets_in(controller: Controller) -> None:
    async def body() -> None:
        token = controller.token()
        outcomes = await asyncio.gather(
            *(Node(controller.url, f"n{n}").join(token) for n in range(8)), return_exceptions=True
        )
        assert sum(not isinstance(each, Exception) for each in outcomes) == 1
        assert len(controller.ask("node.list")["nodes"]) == 1

    asyncio.run(body())


def test_an_expired_token_and_one_that_nobody_made_are_refused(controller: Controller) -> None:
    async def body() -> None:
        expired = controller.token(ttl_s=1e-6)
        assert "expired" in (await refused(Node(controller.url, "a").join(expired))).refused.error
        mark, number, secret, digest = controller.token().split("_")
        forged = "_".join((mark, number, secret[::-1], digest))
        assert (await refused(Node(controller.url, "a").join(forged))).code is Code.BAD_TOKEN
        assert controller.ask("node.list")["nodes"] == []

    asyncio.run(body())


def test_a_token_whose_node_has_confirmed_is_spent_and_before_that_it_is_held(
    controller: Controller,
) -> None:
    async def body() -> None:
        token = controller.token()
        async with Node(controller.url, "a") as first:
            await first.join(token)
            other = Node(controller.url, "a")
            assert (await refused(other.join(token))).code is Code.TRY_AGAIN
            await first.confirm()
            assert (await refused(other.join(token))).code is Code.BAD_TOKEN
        token = controller.token()
        async with Node(controller.url, "b") as second:
            await second.join(token)
            await second.hello()
            assert (await refused(Node(controller.url, "b").join(token))).code is Code.BAD_TOKEN

    asyncio.run(body())


def test_a_token_for_a_name_lets_in_nobody_of_another(
    controller: Controller, person: Person
) -> None:
    assert person("create", "--name", "crane/7") == 1
    assert "crane/7" in person.err
    made = person.json("create", "--name", "crane-7")
    assert person("list") == 0
    assert "crane-7" in person.out

    async def body() -> None:
        thief = await refused(Node(controller.url, "crane-8").join(made["token"]))
        assert thief.code is Code.BAD_TOKEN
        assert "lets in a node called crane-7 alone" in thief.refused.error
        async with Node(controller.url, "crane-7") as node:
            await node.join(made["token"])
            await node.confirm()

    asyncio.run(body())
    [line] = person.json("list", "--all")["tokens"]
    assert (line["node"], line["state"]) == ("crane-7", "used")


# Seen, and taken back


class Person:
    """Runs `limpet token` at the controller's machine, and keeps what it said."""

    def __init__(self, controller: Controller, capsys: pytest.CaptureFixture[str]) -> None:
        self._config = str(controller.config)
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *words: str) -> int:
        self._capsys.readouterr()
        code = main(["token", *words, "--config", self._config])
        self.out, self.err = self._capsys.readouterr()
        assert "Traceback" not in self.err
        return code

    def json(self, *words: str) -> dict[str, Any]:
        """The result, whatever the exit code."""
        self(*words, "--output", "json")
        found: dict[str, Any] = json.loads(self.out)
        return found


@pytest.fixture
def person(controller: Controller, capsys: pytest.CaptureFixture[str]) -> Person:
    return Person(controller, capsys)


async def refused_as_removed(controller: Controller, token: str, name: str = "late") -> None:
    refusal = await refused(Node(controller.url, name).join(token))
    assert refusal.code is Code.BAD_TOKEN
    assert "an administrator removed the token" in refusal.refused.error


def test_a_token_is_alone_on_stdout_and_its_id_beside_it_is_no_secret(person: Person) -> None:
    assert person("create", "--role", "relay", "--label", "site=hq") == 0
    token = person.out.strip()
    parsed = parse_token(token)
    assert person.out == f"{token}\n"
    assert f"limpet token remove {parsed.id}" in person.err

    made = person.json("create")
    assert made["id"] == parse_token(made["token"]).id

    (first, second) = person.json("list")["tokens"]
    assert (first["id"], second["id"]) == (parsed.id, made["id"])
    assert (first["roles"], first["labels"]) == (["relay"], {"site": "hq"})
    assert first["created_by"] == "root at the controller's machine"
    assert first["state"] == "unused"
    assert abs(first["expires_at_s"] - first["created_at_s"] - 86_400) < 1


def test_no_output_and_no_log_has_what_lets_in(controller: Controller, person: Person) -> None:
    token = controller.token()
    secret = token.split("_")[2]
    said = ""
    for output in ("table", "wide", "json", "yaml"):
        assert person("list", "--output", output) == 0
        assert token_id(token) in person.out
        said += person.out + person.err
    assert person("remove", token) == 0  # a whole one, as somebody pasted it
    said += person.out + person.err + controller.log.read_text()
    assert secret not in said
    assert person.out == f"removed {token_id(token)}\n"


def test_a_removed_token_is_refused_in_words_also_by_a_controller_that_was_killed(
    controller: Controller, person: Person
) -> None:
    first, second, kept = (controller.token() for _ in range(3))
    assert person("remove", token_id(first), token_id(second)) == 0
    controller.kill()  # what was answered is on the disk
    controller.start()

    async def body() -> None:
        for token in (first, second):
            await refused_as_removed(controller, token)
        await Node(controller.url, "a").join(kept)

    asyncio.run(body())
    assert person.json("list")["tokens"][0]["id"] == token_id(kept)
    states = {each["id"]: each for each in person.json("list", "--all")["tokens"]}
    assert [states[token_id(each)]["state"] for each in (first, second, kept)] == [
        *("removed", "removed", "held")
    ]
    assert states[token_id(first)]["removed_by"] == "root at the controller's machine"
    assert states[token_id(kept)]["node"] == "a"


def test_the_node_that_was_answered_is_in_and_whoever_removes_its_token_is_told(
    controller: Controller, person: Person
) -> None:
    async def body() -> None:
        token = controller.token()
        async with Node(controller.url, "a") as node:
            await node.join(token)
            assert await asyncio.to_thread(person, "remove", token_id(token)) == 1
            assert person.out == f"removed {token_id(token)}\n"
            assert f"limpet node remove {node.uid}" in person.err

            await refused_as_removed(controller, token, "a")  # who would take its place
            await node.join(token)  # as one whose disk had no room for the answer
            await node.confirm()
            await node.hello()
        assert await asyncio.to_thread(person, "remove", token_id(token), "0000") == 1
        assert f"limpet node remove {node.uid}" in person.err
        assert "token 0000: there is none of that id" in person.err

    asyncio.run(body())


def test_whoever_joins_while_all_tokens_are_removed_is_in_and_named_or_is_out(
    controller: Controller,
) -> None:
    async def body() -> None:
        tokens = [controller.token() for _ in range(24)]
        turns = asyncio.Semaphore(4)

        async def join(name: str, token: str) -> None:
            async with turns:
                await Node(controller.url, name).join(token)

        joins = [asyncio.create_task(join(f"n{n}", each)) for n, each in enumerate(tokens)]
        await asyncio.wait(joins, return_when=asyncio.FIRST_COMPLETED)
        done = await asyncio.to_thread(controller.ask, "token.remove", every=True)
        joined = await asyncio.gather(*joins, return_exceptions=True)
        by = {f"n{n}": token_id(token) for n, token in enumerate(tokens)}
        inside = {f"n{n}" for n, each in enumerate(joined) if not isinstance(each, Exception)}
        assert {each["name"] for each in controller.ask("node.list")["nodes"]} == inside
        assert set(by.values()) == set(done["removed"])
        assert {each["id"] for each in done["let_in"]} == {by[each] for each in inside}
        assert controller.ask("token.list")["tokens"] == []

    asyncio.run(body())


def test_who_asks_is_nothing_that_can_be_said(controller: Controller, person: Person) -> None:
    with pytest.raises(LimpetError, match="who"):
        controller.ask("token.create", ttl_s=60, who="somebody else")
    controller.ask("token.create", ttl_s=60, by="page token ann")
    assert [each["created_by"] for each in person.json("list")["tokens"]] == ["page token ann"]


def test_nobody_removes_all_tokens_by_naming_none(controller: Controller, person: Person) -> None:
    controller.token()
    assert person("remove") == 2
    assert person("remove", "--all", "0000") == 2
    with pytest.raises(LimpetError, match="name some"):
        controller.ask("token.remove")
    assert len(person.json("list")["tokens"]) == 1
    assert person("remove", "--all") == 0
    assert person("remove", "--all") == 0
    assert "no token that lets anybody in" in person.err
    assert person("list") == 0
    assert "no token that lets anybody in" in person.err
