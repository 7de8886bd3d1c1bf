"""Ends of the measure of Services: who asks, who is asked, and what of Limpet serves them.

All clocks are `time.monotonic`, which the processes of one machine share.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import select
import socket
import struct
import sys
import threading
import time
from functools import partial
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

from bench.nodes.part import serve
from limpet.base.process.log import configure_log
from limpet.base.settings import SourceSettings
from limpet.cloud.second_road.api_server import find_api_server
from limpet.cloud.workloads.service_source import ServiceSource, load_catalog
from limpet.datapath.loop import Loop
from limpet.datapath.services.part import ServicesContext, ServicesPart
from limpet.datapath.services.state import Surroundings
from limpet.linux.netlink.socket import NETLINK_NETFILTER, NFTABLES_GROUPS, Notifications
from limpet.services.kept import KEPT_FILE
from limpet.services.rotation import Here

NAME_PORTS, FLOW_PORT = (8080, 8081), 8084
"""Who asks the first two gets the port's last digit, and the end; at the last one the bench listens
itself."""
_RESET = struct.pack("ii", 1, 0)
"""A connection that is closed so leaves nothing: no port waits for stray packets of it."""
_PATIENCE_S, _REQUEST_S = 300.0, 10.0
_CONNECTED_S, _ANSWERED_S = 0.01, 0.2
_ASK_AGAIN_S = 0.001
_NFT_NEW_GENERATION = 10 << 8 | 15
"""NFNL_SUBSYS_NFTABLES, NFT_MSG_NEWGEN: something of nftables has changed."""


class _Client:
    def __init__(self) -> None:
        self._own_ports = itertools.cycle(range(2_000, 32_000))
        """Not those that the kernel gives: of what was asked while nobody served, it remembers for
        two minutes that it leads nowhere, and who got the same port then would get there. A
        client that nobody answers comes round after five minutes."""

    async def answer(self, asked: dict[str, Any]) -> Any:
        return getattr(self, asked.pop("do"))(**asked) if asked else {}

    def connect(self, address: str, port: int, for_s: float) -> float:
        """New connections a second, one after the other; each is heard of by the server before the
        next, or those that it has not accepted yet would fill its queue."""
        target, count = (address, port), 0
        end_s = time.monotonic() + for_s
        began_s = now_s = time.monotonic()
        while now_s < end_s:
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            client.settimeout(_REQUEST_S)
            client.connect(target)
            count += 1
            client.recv(1)
            client.close()
            now_s = time.monotonic()
        return count / (now_s - began_s)

    def await_name(self, address: str, port: int, name: str) -> float:
        """When somebody of this name answers there first; asked again and again.

        While nobody serves there, nobody refuses either: how long a connection is waited for is how
        exact this is. Who serves has it made by the kernel at once, and may wait for a processor
        before the answer.
        """
        end_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end_s:
            try:
                own = ("", next(self._own_ports))
                with socket.create_connection((address, port), _CONNECTED_S, own) as client:
                    client.settimeout(_ANSWERED_S)
                    if client.recv(1) == name.encode():
                        return time.monotonic()
            except OSError:
                pass
            time.sleep(_ASK_AGAIN_S)
        raise TimeoutError(f"{address} port {port} was never answered by {name}")


class _Server:
    def __init__(self) -> None:
        for port in NAME_PORTS:
            threading.Thread(target=self._name, args=(port,), daemon=True).start()

    async def answer(self, _asked: dict[str, Any]) -> dict[str, Any]:
        return {}

    @staticmethod
    def _listening(port: int) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("0.0.0.0", port))
        listener.listen(4096)
        return listener

    def _name(self, port: int) -> None:
        listener, name = self._listening(port), str(port)[-1].encode()
        while True:
            try:
                client, _ = listener.accept()
                client.send(name)
                client.close()
            except OSError:
                continue  # it did not wait for the answer


class _Kernel:
    """Hears when nftables of its namespace changes."""

    def __init__(self) -> None:
        self._heard = Notifications(NETLINK_NETFILTER, NFTABLES_GROUPS)

    async def answer(self, asked: dict[str, Any]) -> Any:
        return getattr(self, asked.pop("do"))() if asked else {}

    def forget(self) -> dict[str, Any]:
        """What has changed so far."""
        for _ in self._heard.drain():
            pass
        return {}

    def await_change(self) -> float:
        """When the next one is there, by time.monotonic."""
        while True:
            if not select.select([self._heard], [], [], _PATIENCE_S)[0]:
                raise TimeoutError("nftables did not change")
            now_s = time.monotonic()
            for message in self._heard.drain():
                if message is None or message.type == _NFT_NEW_GENERATION:
                    return now_s


class _Limpet:
    """What an agent does of Services, and nothing else that an agent does."""

    def __init__(self, kubeconfig: str, folder: str) -> None:
        configure_log("error")  # what it says goes past what is answered
        path = Path(folder) / KEPT_FILE
        catalog, loop = load_catalog(path), Loop()
        around = Surroundings(
            pods=(ip_network("10.1.0.0/16"),),
            cluster=(ip_network("10.1.0.0/16"), ip_network("10.2.0.0/16")),
            gateways=(ip_address("10.1.0.1"),),
            is_bridge_filtered=True,
        )
        part = ServicesPart(loop, catalog, ServicesContext(lambda: around, lambda: Here("limpet")))
        loop.add(part)
        loop.start()
        loop.run("start", part)
        settings = SourceSettings(source="kubernetes", kubeconfig=Path(kubeconfig))
        self._loop, self._part = loop, part
        self._source = ServiceSource(
            catalog,
            path,
            partial(find_api_server, settings),
            tell=part.changed,
            random=random.random,
        )
        self._source.start()

    async def answer(self, _asked: dict[str, Any]) -> dict[str, Any]:
        """What the last round could not do."""
        return {"failed": self._loop.account(self._part).failures, "count": self._part.count}


async def _main(role: str, *arguments: str) -> None:
    roles: dict[str, Any] = {"limpet": _Limpet, "client": _Client, "server": _Server}
    roles["kernel"] = _Kernel
    await serve(roles[role](*arguments).answer)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
