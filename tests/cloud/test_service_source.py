"""What is heard of Services at an API server that is slow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path

from limpet.cloud.workloads.service_source import ServiceSource, load_catalog
from limpet.kubernetes.access.access import Access, parse_server
from limpet.services.catalog import Catalog
from limpet.services.values import ServiceName
from tests.beds.rogue import STREAM, answer, serving, take_request
from tests.waiting import until

METADATA = {"namespace": "shop", "resourceVersion": "10"}
SERVICE = {
    "metadata": {**METADATA, "name": "web", "uid": "1"},
    "spec": {"clusterIP": "10.96.0.7", "ports": [{"port": 80}]},
}
SLICE = {
    "metadata": {
        **METADATA,
        "name": "web-1",
        "uid": "2",
        "labels": {"kubernetes.io/service-name": "web"},
    },
    "addressType": "IPv4",
    "endpoints": [{"addresses": ["10.1.0.2"]}],
    "ports": [{"port": 8080}],
}


class Server:
    """Lists Services at once, and their endpoints when it is told to; then nothing happens."""

    def __init__(self) -> None:
        self.has_endpoints = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            target = (await take_request(reader)).split(b" ")[1].decode()
            if "watch=1" in target:
                writer.write(STREAM)
                await writer.drain()
                await reader.read()  # until the other goes
                return
            if "endpointslices" in target:
                await self.has_endpoints.wait()
            items = [SLICE if "endpointslices" in target else SERVICE]
            listed = {"metadata": {"resourceVersion": "10"}, "items": items}
            writer.write(answer(json.dumps(listed).encode()))
            await writer.drain()


def test_no_service_is_told_or_kept_before_its_endpoints_can_be_known(tmp_path: Path) -> None:
    path, catalog, told = tmp_path / "kept", Catalog(), []

    def tell(names: Iterable[ServiceName], _why: str) -> None:
        told.append(set(names))

    async def scenario() -> None:
        server = Server()
        async with serving(server.serve, None) as at:
            access = Access(parse_server(f"http://{at}"), "test")
            source = ServiceSource(
                catalog, path, lambda: access, tell=tell, random=lambda: 0.0, gather_s=0.0
            )
            source.start()
            await until(lambda: catalog.service("shop", "web"))
            await asyncio.sleep(0.05)
            assert told == []
            assert not path.exists()

            server.has_endpoints.set()
            await until(lambda: told == [{("shop", "web")}])
            await until(path.exists)
            await source.stop()

    asyncio.run(scenario())
    assert len(list(load_catalog(path).all_slices())) == 1
