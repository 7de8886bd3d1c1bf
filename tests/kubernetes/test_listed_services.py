"""Services are listed while somebody looks, not more often than every ten seconds."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from limpet.controller.picture import listed
from limpet.controller.picture.listed import ListedServices
from limpet.kubernetes.access.access import Access, parse_server
from limpet.kubernetes.client import Client
from tests.beds.rogue import answer, serving, take_request
from tests.waiting import until

SERVICE = {
    "metadata": {"namespace": "shop", "name": "web"},
    "spec": {"clusterIPs": ["10.96.0.7"], "ports": [{"port": 80, "protocol": "TCP"}]},
}
SLICE = {
    "metadata": {
        "namespace": "shop",
        "name": "web-a",
        "labels": {"kubernetes.io/service-name": "web"},
    },
    "addressType": "IPv4",
    "ports": [{"port": 8080, "protocol": "TCP"}],
    "endpoints": [{"addresses": ["10.8.0.5"], "nodeName": "crane-1"}],
}


def test_services_are_listed_for_who_looks_and_a_refusal_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    refuses = False

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            target = (await take_request(reader)).split(b" ")[1].decode()
            asked.append(target)
            items: list[Any] = [SLICE] if "endpointslices" in target else [SERVICE]
            found: dict[str, Any] = {"metadata": {"resourceVersion": "10"}, "items": items}
            status = b"200 OK"
            if refuses:
                status, found = (
                    b"403 Forbidden",
                    {"kind": "Status", "message": "no right", "code": 403},
                )
            writer.write(answer(json.dumps(found).encode()).replace(b"200 OK", status, 1))
            await writer.drain()

    async def look() -> None:
        nonlocal refuses
        async with serving(serve, None) as at:
            client = Client(Access(parse_server(f"http://{at}"), "test"))
            services = ListedServices(client)
            assert asked == []
            services.look()
            await until(lambda: services.why == "")
            (service,) = services.catalog
            (found,) = services.catalog.slices(*service.key)
            assert (service.key, found.endpoints[0].node) == (("shop", "web"), "crane-1")
            services.look()
            assert len(asked) == 2

            refuses = True
            monkeypatch.setattr(listed, "LIST_EVERY_S", 0.0)
            services.look()
            await until(lambda: "no right" in services.why)
            assert len(services.catalog) == 1
            services.stop()
            client.close()

    asyncio.run(look())
