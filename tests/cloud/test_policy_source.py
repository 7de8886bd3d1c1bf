"""What is heard of policies at an API server that has one which nobody can read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from limpet.cloud.workloads.policy_source import PolicySource
from limpet.kubernetes.access.access import Access, parse_server
from limpet.policies.heard import ReadPolicies, decode_heard
from limpet.policies.policy import Key
from tests.beds.rogue import STREAM, answer, serving, take_request
from tests.waiting import until

NAMESPACE = {"metadata": {"name": "shop", "uid": "1", "resourceVersion": "10"}}


def policy(name: str, spec: Any) -> dict[str, Any]:
    metadata = {"namespace": "shop", "name": name, "uid": name, "resourceVersion": "10"}
    return {"metadata": metadata, "spec": spec}


DOORS = policy("doors", {"podSelector": {}})


def hear(
    heard: ReadPolicies, path: Path, *policies: dict[str, Any], becomes: Callable[[], bool]
) -> None:
    """A server's whole list, until it has become so."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            target = (await take_request(reader)).split(b" ")[1].decode()
            if "watch=1" in target:
                writer.write(STREAM)
                await writer.drain()
                await reader.read()  # until the other goes
                return
            items = list(policies) if "networkpolicies" in target else []
            items = [NAMESPACE] if "namespaces" in target else items
            listed = {"metadata": {"resourceVersion": "10"}, "items": items}
            writer.write(answer(json.dumps(listed).encode()))
            await writer.drain()

    def ignore(_why: str) -> None:
        """Nobody is there to be told."""

    async def scenario() -> None:
        async with serving(talk, None) as at:
            access = Access(parse_server(f"http://{at}"), "test")
            source = PolicySource(
                heard, path, lambda: access, tell=ignore, random=lambda: 0.0, gather_s=0.0
            )
            source.start()
            await until(becomes)
            await source.stop()

    asyncio.run(scenario())


def test_a_policy_that_cannot_be_read_any_more_goes_on_over_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    first = ReadPolicies()
    hear(first, path, DOORS, becomes=lambda: first.is_whole and bool(first.policies))
    heard = decode_heard(path.read_bytes())
    before = heard.policies[Key("shop", "doors")]

    broken = policy("doors", "closed"), policy("other", "closed")
    hear(heard, path, *broken, becomes=lambda: len(heard.problems) == 2)

    assert heard.policies[Key("shop", "doors")] == before
    assert "goes on as it was" in heard.problems[Key("shop", "doors")]
    assert "all pods of shop are closed" in heard.problems[Key("shop", "other")]
