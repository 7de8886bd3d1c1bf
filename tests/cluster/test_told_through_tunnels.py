"""Whom an agent tells of the cluster through a tunnel: with all of its parts, as they are wired."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from ipaddress import ip_address, ip_network

import msgspec
import pytest

from limpet.agent.main import _Agent
from limpet.agent.settings import Settings
from limpet.base.addresses import Address
from limpet.base.settings import Folders
from limpet.cluster.documents import Sealed, Source
from limpet.cluster.identity import ClusterFile, Identity
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath
from limpet.paths.proven import write_paths
from tests.beds.member import membership_of
from tests.beds.namespaces import Bed
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

TUNNELLED, LATER, ROUTED = 2, 3, 4
_UNDERLAY = ip_address("192.0.2.9")


@pytest.fixture
def bed() -> Iterator[Bed]:
    bed = Bed()
    yield bed
    bed.close()


def granted(number: int, generation: int, *segments: str) -> Sealed:
    """`generation`: of two grants the higher counts."""
    found = grant(number, generation=generation, segments=tuple(map(ip_network, segments)))
    return seal_grant(found, CLUSTER_KEY)


def settings_of(bed: Bed) -> Settings:
    """Of the first node, which has joined; it knows three others, and how they were reached last.
    One has no segment yet."""
    state = bed.folder / "state"
    settings = Settings(
        folders=Folders(
            data_dir=bed.folder / "networks",
            state_dir=state,
            run_dir=bed.folder / "run",
            socket=bed.folder / "agent.sock",
        )
    )
    folder = settings.folders.cluster_dir
    folder.mkdir(parents=True)
    (folder / "node.key").write_bytes(node_key(1))
    joined = ClusterFile("node-1", PINNED, ("127.0.0.1:1",))
    (folder / "cluster.json").write_bytes(msgspec.json.encode(joined))
    membership = membership_of(
        Identity(folder, node_key(1), "node-1", PINNED, ()),
        seal_network(network(), CLUSTER_KEY),
        granted(1, 1, "10.244.1.0/24"),
        granted(TUNNELLED, 1, "10.244.2.0/24", "fd00:0:0:2::/64"),
        granted(LATER, 1),
        granted(ROUTED, 1, "10.244.4.0/24"),
        *(
            seal_presence(presence(number, port=7471), node_key(number))
            for number in (TUNNELLED, LATER, ROUTED)
        ),
    )
    membership.replica.file.close()
    tunnel = PeerPath(transports.TUNNEL, underlay=_UNDERLAY, endpoint=(_UNDERLAY, 23001))
    route = PeerPath(transports.ROUTE, device="eth0", next_hops=(_UNDERLAY,), underlay=_UNDERLAY)
    paths = {TUNNELLED: tunnel, LATER: tunnel, ROUTED: route}
    write_paths(folder / "paths.json", {grant(number).uid: path for number, path in paths.items()})
    return settings


def test_who_is_behind_a_tunnel_is_told_inside_it_from_when_its_segment_is_known(bed: Bed) -> None:
    async def scenario() -> None:
        agent = _Agent(settings_of(bed), str)
        await agent.start()
        try:
            side = agent._cluster
            assert side is not None

            def told_at(number: int) -> list[Address]:
                return [each.address for each in side.exchange.places(grant(number).uid)]

            assert told_at(TUNNELLED) == [ip_address("10.244.2.0")]
            assert told_at(LATER) == [ip_address("192.0.2.3")], "nobody knows an address inside"
            assert told_at(ROUTED) == [ip_address("192.0.2.4")]

            side.membership.offer([granted(LATER, 2, "10.244.3.0/24")], source=Source.CLOUD)
            await until(lambda: told_at(LATER) == [ip_address("10.244.3.0")])

            vxlan = PeerPath(transports.VXLAN, underlay=_UNDERLAY)
            side.probing._paths.note(grant(TUNNELLED).uid, vxlan)
            await until(lambda: told_at(TUNNELLED) == [ip_address("192.0.2.2")])
            assert told_at(LATER) == [ip_address("10.244.3.0")]
        finally:
            await agent.stop()

    with bed.namespace("n1").entered():
        asyncio.run(scenario())
