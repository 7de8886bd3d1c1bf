"""The next key of the cluster has signed it, and an API server tells it before the network."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from limpet.base.bounds.servers import EARLY_DOCUMENTS
from limpet.cloud.second_road import api_server, untaken
from limpet.cloud.second_road.api_server import ApiServerSource
from limpet.cluster.documents import Sealed
from limpet.cluster.identity import Identity
from limpet.cluster.keys import ClusterKey, endorse, public_key_of
from limpet.cluster.kinds import KINDS
from limpet.cluster.membership import Membership
from limpet.cluster.seal import read_sealed
from limpet.kubernetes.access.access import Access, parse_server
from limpet.kubernetes.kinds.resources import document_object
from tests.beds.member import membership_of
from tests.beds.rogue import STREAM, answer, chunk, serving, take_request
from tests.unit.cluster_values import (
    CLUSTER_KEY,
    PINNED,
    grant,
    network,
    node_key,
    presence,
    seal_grant,
    seal_network,
    seal_presence,
)
from tests.waiting import until

NEXT_KEY = node_key(201)
ENDORSED = (ClusterKey(PINNED), endorse(public_key_of(NEXT_KEY), CLUSTER_KEY))
ROTATED = seal_network(network(2, keys=ENDORSED, revision=10, rotated_at=(10,)), NEXT_KEY)
ROOM = 4
KNOWN = range(2, 14)
NEWCOMERS = range(14, 20)
NOT_FOUND = b'{"kind":"Status","code":404,"reason":"NotFound","message":"none"}'


def carrier(sealed: Sealed, name: str) -> dict[str, Any]:
    made = document_object(read_sealed(sealed, KINDS), name, name)
    made["metadata"]["resourceVersion"] = "10"
    return made


def signed_anew(number: int) -> Sealed:
    """Each second one of those that are known is removed."""
    removed = number in KNOWN and number % 2 == 1
    segments = () if removed else grant(number).segments
    value = replace(grant(number), generation=2, revision=20 + number, era=1, tombstone=removed)
    return seal_grant(replace(value, segments=segments), NEXT_KEY)


class Server:
    """Lists everything, with the network of before; that of after comes by its watch."""

    def __init__(self) -> None:
        everybody = [*KNOWN, *NEWCOMERS]
        self._items = {
            "clusternetworks": [carrier(seal_network(network(), CLUSTER_KEY), "limpet")],
            "nodegrants": [carrier(signed_anew(each), f"node-{each}") for each in everybody],
            "nodepresences": [
                carrier(seal_presence(presence(each), node_key(each)), f"node-{each}")
                for each in NEWCOMERS
            ],
        }
        self.lists: Counter[str] = Counter()
        self.rotated = asyncio.Event()

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            target = (await take_request(reader)).split(b" ")[1].decode()
            of = target.partition("?")[0].rpartition("/")[2]
            if "watch=1" in target:
                writer.write(STREAM)
                if of == "clusternetworks":
                    await self.rotated.wait()
                    event = {"type": "MODIFIED", "object": carrier(ROTATED, "limpet")}
                    writer.write(chunk(json.dumps(event).encode() + b"\n"))
                await reader.read()  # until the other goes
                return
            if of in self._items:
                self.lists[of] += 1
                listed = {"metadata": {"resourceVersion": "10"}, "items": self._items[of]}
                writer.write(answer(json.dumps(listed).encode()))
            else:
                writer.write(answer(NOT_FOUND, "404 Not Found"))
            await writer.drain()


def own_member(path: Path) -> Membership:
    grants = [seal_grant(grant(number), CLUSTER_KEY) for number in (1, *KNOWN)]
    identity = Identity(path, node_key(1), "node-1", PINNED, ())
    return membership_of(identity, seal_network(network(), CLUSTER_KEY), *grants)


def test_more_than_there_is_room_for_counts_all_the_same_once_the_network_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what newcomers say of themselves, which nobody may have signed before their grants."""
    monkeypatch.setattr(untaken, "EARLY_DOCUMENTS", replace(EARLY_DOCUMENTS, most=ROOM))
    monkeypatch.setattr(untaken, "_AGAIN_S", 0.0)
    monkeypatch.setattr(api_server, "_SPREAD_S", 0.0)
    member = own_member(tmp_path)

    def is_whole() -> bool:
        nodes = member.snapshot.nodes
        return all(
            member.tombstone_of(grant(number).uid) == signed_anew(number)
            if number in KNOWN and number % 2
            else (entry := nodes.get(grant(number).uid)) is not None
            and entry.grant.era == 1
            and (number in KNOWN or entry.presence is not None)
            for number in (*KNOWN, *NEWCOMERS)
        )

    async def scenario() -> None:
        server = Server()
        async with serving(server.talk, None) as at:
            access = Access(parse_server(f"http://{at}"), "test")
            road = ApiServerSource(member, lambda: access, random=lambda: 0.5)
            member.subscribe(road.hear)
            road.start()
            await until(lambda: road.state.connected)
            assert len(road._untaken.early) == ROOM
            assert server.lists == dict.fromkeys(server._items, 1)
            server.rotated.set()
            await until(is_whole)
            assert server.lists["clusternetworks"] == 1
            assert server.lists["nodegrants"] == 2
            assert not road._untaken.early
            await road.stop()

    asyncio.run(scenario())
    member.close()
