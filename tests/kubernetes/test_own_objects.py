"""A node that hears an API server tells its controller what it holds when that may not know it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from limpet.cloud.second_road import own_objects
from limpet.cloud.second_road.own_objects import Carrier, OwnObjects
from limpet.cluster.identity import Identity
from limpet.cluster.kinds import NETWORK
from limpet.kubernetes.access.access import Access, parse_server
from limpet.kubernetes.client import Client
from tests.beds.member import membership_of
from tests.beds.rogue import answer, says, serving
from tests.unit.cluster_values import (
    CLUSTER_KEY,
    PINNED,
    grant,
    network,
    node_key,
    seal_grant,
    seal_network,
)
from tests.waiting import until

NOT_THERE = answer(
    b'{"kind":"Status","code":404,"reason":"NotFound","message":"none","details":{"name":"node-1"}}',
    "404 Not Found",
)


def status(granting: str) -> Carrier:
    condition = {"type": "Granting", "status": granting, "message": "nodes are awaited"}
    return Carrier(status=msgspec.Raw(msgspec.json.encode({"conditions": [condition]})))


def test_a_recovery_that_begins_soon_after_a_hello_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first hello was for another fault; who recovers waits for this node."""
    monkeypatch.setattr(own_objects, "_WAIT_S", 0.0)
    monkeypatch.setattr(own_objects, "_AGAIN_S", 3600.0)
    membership = membership_of(
        Identity(tmp_path, node_key(1), "node-1", PINNED, ()),
        seal_network(network(), CLUSTER_KEY),
        seal_grant(grant(1), CLUSTER_KEY),
    )
    hellos: list[str] = []

    async def run() -> None:
        async with serving(says(NOT_THERE), None) as at:
            client = Client(Access(parse_server(f"http://{at}"), "test"))
            own = OwnObjects(membership, lambda: hellos.append("hello"), random=lambda: 0.0)
            task = asyncio.create_task(own.run(client))
            own.doubt()
            await until(lambda: len(hellos) == 1)
            own.hear(NETWORK.name, status("False"))
            await until(lambda: len(hellos) == 2)
            task.cancel()
            await asyncio.wait((task,))
            client.close()

    asyncio.run(run())
    membership.close()
