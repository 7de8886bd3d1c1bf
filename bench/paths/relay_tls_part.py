"""A relay, or a node behind it, in a process of its own: `python -m bench.paths.relay_tls_part …`.

Serves questions as `bench.nodes.part` has it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from bench.nodes.part import serve
from limpet.base.process.log import configure_log
from limpet.base.settings import PeerSettings, RelaySettings
from limpet.cluster.datagrams.peer_socket import PeerSocket
from limpet.cluster.identity import load_identity
from limpet.cluster.membership import Membership
from limpet.cluster.snapshot.file import SnapshotFile
from limpet.datapath.event import nobody
from limpet.relay.client.tls_client import TlsRelays
from limpet.relay.server.service import RelayService
from limpet.relay.server.tls_server import RelayTlsServer

_LOOK_EVERY_S = 0.01
_PUBLIC = (ip_address("203.0.114.1"),)
"""A relay has one; nothing here is sent to it."""
_TUNNEL_PORT = 51820


class _Lag:
    """How long other work of the loop waits for its turn, and what all of it costs."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lags_s: list[float] = []

    def __enter__(self) -> _Lag:
        self._again()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def told(self) -> dict[str, float]:
        """Since it was told last."""
        lags_s, self._lags_s = sorted(self._lags_s) or [0.0], []
        return {
            "lag_p50_ms": round(lags_s[len(lags_s) // 2] * 1e3, 1),
            "lag_p99_ms": round(lags_s[len(lags_s) * 99 // 100] * 1e3, 1),
            "cpu_s": round(time.process_time(), 2),
        }

    def _again(self) -> None:
        due_s = self._loop.time() + _LOOK_EVERY_S
        self._timer = self._loop.call_at(due_s, self._look, due_s)

    def _look(self, due_s: float) -> None:
        self._lags_s.append(self._loop.time() - due_s)
        self._again()


async def _relay(membership: Membership) -> None:
    settings = RelaySettings(tls_listen=(("0.0.0.0", 443),))
    membership.announce(
        addresses=_PUBLIC,
        port=PeerSettings().port,
        vtep_macs={},
        link_mtu_bytes=1500,
        tunnel_port=_TUNNEL_PORT,
    )
    courier = PeerSocket(
        membership.identity,
        port=PeerSettings().port,
        is_member=membership.is_member,
        is_removed=membership.removal_of,
    )
    courier.start()
    service = RelayService(membership, courier, settings, resync_s=60.0, tell=lambda _: None)
    service.start()
    server = RelayTlsServer(service.attach_stream, membership, settings.tls_listen, nobody)
    await server.start()

    async def answer(_question: dict[str, Any]) -> Any:
        return server.report().refused | lag.told()

    with _Lag() as lag:
        await serve(answer)
    await server.stop()
    await service.stop()
    courier.stop()


async def _node(membership: Membership, tunnel_port: int) -> None:
    relays = TlsRelays(membership, tunnel_port=tunnel_port, tell=lambda _: None)

    async def answer(question: dict[str, Any]) -> Any:
        if "peer" not in question:
            return {"lost": [each.lost for each in relays.report().values()]} | lag.told()
        where = ((ip_address(question["address"]), 443),)
        end = await relays.end_for(question["relay"], where, question["peer"])
        return end.endpoint[1]

    with _Lag() as lag:
        await serve(answer)
    await relays.stop()


def main() -> None:
    configure_log("error")
    folder = Path(sys.argv[1])
    identity = load_identity(folder)
    assert identity is not None
    file = SnapshotFile(folder / "snapshot.log", own_uid=identity.uid)
    membership = Membership(identity, file, boot_id="bench")
    tunnel_port = int(sys.argv[2])
    asyncio.run(_node(membership, tunnel_port) if tunnel_port else _relay(membership))


if __name__ == "__main__":
    main()
