"""A relay under frames that no node sends, by TLS and by UDP, of strangers and of members."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from limpet.cluster.datagrams.peer_datagram import BodyKind
from tests.fuzz.live.bed import Thrower, lives_on, no_fault
from tests.relay.relay_agents import Cluster as UdpCluster
from tests.relay.relay_bed import TUNNEL_PORT, RelayBed
from tests.relay.relay_tls_bed import (
    Cluster,
    patient_cluster,
    relay_of,
    site_of,
    tls_client,
)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with patient_cluster(tmp_path, monkeypatch) as made:
        yield made


def test_frames_of_all_kinds_leave_a_relay_by_tls_to_those_who_are_honest(
    cluster: Cluster, chance: random.Random
) -> None:
    thrower = Thrower(chance)

    async def main() -> None:
        async with (
            relay_of(cluster) as relay,
            site_of(cluster, 1) as one,
            site_of(cluster, 2) as other,
        ):
            ends = await one.end_for(other, relay), await other.end_for(one, relay)
            with lives_on(), no_fault():
                await asyncio.to_thread(throw_frames, cluster, relay.address, thrower)
                one.tunnel.sendto(b"there", ends[0])
                assert (await other.receive())[0] == b"there"
                other.tunnel.sendto(b"back", ends[1])
                assert (await one.receive())[0] == b"back"

    asyncio.run(main())

    assert thrower.count > 20


def throw_frames(cluster: Cluster, at: tuple[object, int], thrower: Thrower) -> None:
    """By node 3, which is a member, and by nobody."""
    inputs = thrower.inputs("relay-frames")
    for data in inputs:
        with contextlib.suppress(OSError):
            if thrower.chance.random() < 0.3:
                with socket.create_connection((str(at[0]), at[1]), timeout=5) as stranger:
                    stranger.sendall(data)
                    continue
            with tls_client(cluster, 3, at) as member:  # type: ignore[arg-type]
                member.settimeout(5)
                for _, more in zip(range(10), inputs, strict=False):
                    member.sendall(more or b"\0")


def test_messages_of_all_kinds_leave_a_relay_by_udp_to_those_who_are_honest(
    chance: random.Random,
) -> None:
    thrower = Thrower(chance)
    bed = RelayBed(4)

    async def main() -> None:
        async with UdpCluster(bed.hosts) as cluster:
            *_, member = cluster.agents
            relay = cluster.relay
            stranger = member.host.open_udp(last=2, port=0)
            with lives_on(), no_fault(), stranger:
                for data in thrower.inputs("relay-message", "peer-datagram", "probe-body"):
                    port = chance.choice((TUNNEL_PORT, 21_000, 21_007))
                    where = str(relay.host.address()), port
                    with contextlib.suppress(OSError):
                        stranger.sendto(data, where)
                    with member.host.netns.entered():
                        member.courier.send(
                            chance.choice(list(BodyKind)),
                            data[1:1_000],
                            to_uid=relay.uid,
                            address=relay.host.address(),
                            port=port,
                            by_tunnel=True,
                            to_relay=chance.random() < 0.3,
                        )
                    await asyncio.sleep(0)
                ports = await cluster.join()
                assert len(set(ports)) == 2

    try:
        with bed.hosts[-1].netns.entered():
            asyncio.run(main())
    finally:
        bed.close()

    assert thrower.count > 20
