"""What is heard of Services at an API server that is slow, and at one that was away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from limpet.base.bounds.tenants import SERVICE_TARGETS_OF_ONE
from limpet.base.bounds.words import FILE
from limpet.cloud.workloads import crowding, service_source
from limpet.cloud.workloads.change_journal import MOST_BYTES
from limpet.cloud.workloads.service_source import ServiceSource, _Untold, load_catalog
from limpet.dns.kept_services import KeptServices
from limpet.kubernetes.access.access import Access, parse_server
from limpet.services.catalog import Catalog, left_out_in_words
from limpet.services.kept import LOST, encode_items
from limpet.services.values import (
    DOUBTED,
    READY,
    SERVING,
    Endpoint,
    EndpointPort,
    EndpointSlice,
    ServiceName,
)
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

    def __init__(self, *services: dict[str, Any]) -> None:
        self.has_endpoints = asyncio.Event()
        self._services = services or (SERVICE,)
        self.slices = [SLICE]
        self.is_away = False
        self._connections = list[asyncio.StreamWriter]()

    def go_away(self) -> None:
        """Whoever is connected or connects is sent away."""
        self.is_away = True
        for each in self._connections:
            each.transport.abort()

    def come_back(self, *, ready: bool) -> None:
        """With endpoints that are ready or not; it does not know any more what was before."""
        self.is_away = False
        endpoint = {"addresses": ["10.1.0.2"], "conditions": {"ready": ready}}
        self.slices = [{**SLICE, "endpoints": [endpoint]}]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.append(writer)
        while not self.is_away:
            target = (await take_request(reader)).split(b" ")[1].decode()
            if "resourceVersionMatch" in target:
                writer.write(answer(b'{"kind":"Status","code":410,"reason":"Expired"}', "410 Gone"))
                await writer.drain()
                continue
            if "watch=1" in target:
                writer.write(STREAM)
                await writer.drain()
                await reader.read()  # until the other goes
                return
            if "endpointslices" in target:
                await self.has_endpoints.wait()
            items = self.slices if "endpointslices" in target else self._services
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


def test_what_was_ready_before_a_cut_is_in_doubt_for_a_while_and_then_what_the_server_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any cut, and at once at the end: else it would last for minutes."""
    monkeypatch.setattr(service_source, "CUT_S", 0.0)
    path, catalog, told = tmp_path / "kept", Catalog(), list[str]()

    def conditions(of: Catalog = catalog) -> list[int]:
        return [each.conditions for piece in of.all_slices() for each in piece.endpoints]

    async def cut(server: Server, source: ServiceSource, *, ready: bool) -> None:
        server.go_away()
        await until(lambda: not source.is_connected)
        server.come_back(ready=ready)
        source.network_changed()  # at once, not after a pause
        await until(lambda: source.is_connected)

    async def scenario() -> None:
        server = Server()
        server.has_endpoints.set()
        async with serving(server.serve, None) as at:
            access = Access(parse_server(f"http://{at}"), "test")
            source = ServiceSource(
                catalog, path, lambda: access, tell=lambda _names, why: told.append(why),
                random=lambda: 0.0, gather_s=0.0,
            )  # fmt: skip
            source.start()
            await until(lambda: source.is_connected)
            await cut(server, source, ready=False)
            assert conditions() == [DOUBTED]
            await cut(server, source, ready=False)
            assert conditions() == [DOUBTED], "what was in doubt still is"
            await until(lambda: path.exists() and conditions(load_catalog(path)) == [DOUBTED])
            await cut(server, source, ready=True)
            assert conditions() == [READY | SERVING]

            await cut(server, source, ready=False)
            assert conditions() == [DOUBTED]
            source._doubting.set_in(0.0)
            await until(lambda: conditions() == [0])
            assert told[-1] == "endpoints are not ready"
            await until(lambda: conditions(load_catalog(path)) == [0])
            await cut(server, source, ready=False)
            assert conditions() == [0], "it was not ready before"
            await source.stop()

    asyncio.run(scenario())


def hear(
    path: Path, *services: dict[str, Any], pieces: Sequence[dict[str, Any]] = (SLICE,)
) -> tuple[Catalog, ServiceSource]:
    """What an agent that begins with what is on the disk has heard of a server's whole list."""
    catalog = load_catalog(path)

    async def scenario() -> ServiceSource:
        server = Server(*services)
        server.slices = list(pieces)
        server.has_endpoints.set()
        async with serving(server.serve, None) as at:
            source = source_at(at, catalog, path)
            source.start()
            await until(lambda: source.is_connected)
            await source.stop()
        return source

    return catalog, asyncio.run(scenario())


def source_at(at: str, catalog: Catalog, path: Path) -> ServiceSource:
    access = Access(parse_server(f"http://{at}"), "test")
    return ServiceSource(
        catalog, path, lambda: access, tell=ignore, random=lambda: 0.0, gather_s=0.0
    )


def ignore(_names: Iterable[ServiceName], _why: str) -> None:
    """Nobody is there to be told."""


def named(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {**METADATA, "name": name, "uid": name}, "spec": spec}


def test_nonsense_costs_itself_and_is_told_and_kept_with_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    odd = named("odd", clusterIP="10.96.0.8", ports=[{"port": 80}, {"port": 70000}])

    catalog, source = hear(path, SERVICE, odd)

    assert [each.name for each in catalog] == ["web", "odd"]
    assert left_out_in_words(catalog.incomplete.values(), source.unread.in_words()) == [
        "of Service shop/odd is left out: ports[1].port 70000: no port from 1 to 65535"
    ]
    assert load_catalog(path).incomplete == catalog.incomplete


def test_a_damaged_file_is_read_as_far_as_it_goes_and_is_whole_when_all_was_told(
    tmp_path: Path,
) -> None:
    """Also where nothing but its end was lost, so that nothing is told that was not known."""
    path = tmp_path / "kept"
    hear(path, SERVICE)
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rindex(b'{"end"')])
    assert load_catalog(path).damage == "it has no end"

    catalog, _ = hear(path, SERVICE)

    assert len(catalog) == 1
    assert catalog.damage == ""
    assert path.read_bytes() == whole


def test_a_server_that_has_lost_its_data_does_not_make_a_damaged_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    hear(path, SERVICE)
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rindex(b'{"end"')])

    more = named("other", clusterIP="10.96.0.8", ports=[{"port": 80}])
    catalog, _ = hear(path, SERVICE, more, pieces=[])

    assert catalog.damage == "it has no end"
    assert len(list(catalog.all_slices())) == 1
    assert catalog.service("shop", "other") is not None
    assert load_catalog(path).damage == "it has no end"


def test_a_server_that_listed_none_is_asked_for_all_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache at the edge fills up after it was asked, and what it tells one by one is not all."""
    monkeypatch.setattr(crowding, "FIRST_S", 0.05)
    path = tmp_path / "kept"
    hear(path, SERVICE)
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rindex(b'{"end"')])
    catalog = load_catalog(path)

    async def scenario() -> None:
        server = Server()
        server.slices = []
        server.has_endpoints.set()
        async with serving(server.serve, None) as at:
            source = source_at(at, catalog, path)
            source.start()
            await until(lambda: source.is_connected)
            assert catalog.damage
            server.slices = [SLICE]
            await until(lambda: not catalog.damage)
            await source.stop()

    asyncio.run(scenario())
    assert path.read_bytes() == whole


def test_what_could_be_read_is_kept_as_a_part_until_all_was_told(tmp_path: Path) -> None:
    """Else a name of what was lost would be denied, and nobody be told that anything was."""
    path = tmp_path / "kept"
    hear(path, SERVICE)
    whole = path.read_bytes()
    service, piece, end = whole.splitlines(keepends=True)
    path.write_bytes(service + bytes(len(piece) - 1) + b"\n" + end)

    keep_part(path)

    assert path.read_bytes() == service + b'{"end":1,"version":1,"part":true}\n'
    catalog = load_catalog(path)
    assert catalog.damage == LOST
    assert catalog.is_part_served, "the next agent goes on with it"
    hear(path, SERVICE)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("content", [b'{"end":0,"version":2}\n', bytes(300)])
def test_of_a_file_of_which_nothing_can_be_read_nothing_is_written_over(
    tmp_path: Path, content: bytes
) -> None:
    """A later Limpet has all of it."""
    path = tmp_path / "kept"
    path.write_bytes(content)

    keep_part(path)

    assert path.read_bytes() == content


def keep_part(path: Path) -> None:
    """As an agent that begins after a boot, with nobody who tells anything."""
    catalog = load_catalog(path)

    async def scenario() -> None:
        source = source_at("127.0.0.1:1", catalog, path)
        source.keep_part()
        source.start()
        await source.stop()

    asyncio.run(scenario())


def test_what_cannot_be_read_any_more_goes_on_as_it_was_known_and_is_told(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    hear(path, SERVICE, named("other", clusterIP="10.96.0.8", ports=[{"port": 80}]))
    broken = named("other", clusterIP="10.96.0.8", ports="eighty")

    catalog, source = hear(path, SERVICE, broken)

    assert catalog.service("shop", "other") is not None
    assert len(source.unread) == 1
    words = source.unread.in_words()[0]
    assert words.startswith("Service shop/other cannot be read: Expected")
    assert "ports" in words

    catalog, source = hear(path, SERVICE)

    assert catalog.service("shop", "other") is None
    assert not len(source.unread)


def test_changes_that_wait_for_a_list_that_never_comes_take_no_memory_without_end() -> None:
    """As where an account may hear of Services and not of EndpointSlices."""
    waits, line = _Untold(), b"x" * 1023
    for _ in range(MOST_BYTES // 1024):
        waits.keep([line])
    assert len(waits.lines) == MOST_BYTES // 1024
    waits.keep([line])
    waits.keep([line])
    assert waits.lines == []


def test_what_was_kept_is_read_back_however_large_it_is(tmp_path: Path) -> None:
    """Of some hundred thousand endpoints; of 16 MiB nothing else would be read."""
    kept, ports = KeptServices(tmp_path, tmp_path), (EndpointPort("http", "TCP", 8080),)
    long = Endpoint("10.1.0.1", hostname="x" * 1000)
    items = [EndpointSlice("shop", f"web-{n}", "web", 4, ports, (long,)) for n in range(18_000)]
    kept.path.write_bytes(encode_items(items))
    assert kept.path.stat().st_size > FILE.most
    assert len(list(load_catalog(kept.path).all_slices())) == len(items)
    news = kept.look()
    assert news is not None
    kept.apply(news)
    assert len(list(kept.catalog.all_slices())) == len(items)


def test_a_namespace_has_a_share_and_others_go_on_and_what_had_no_room_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant whom no quota holds fills its own share; it is said of which object nothing new is
    kept, and once another one is gone that has room: not after ten minutes here."""
    monkeypatch.setattr(crowding, "FIRST_S", 0.05)
    half = SERVICE_TARGETS_OF_ONE.most // 2 // 1000
    many = [{"port": 1 + number, "name": f"p{number}"} for number in range(half)]

    def service(name: str, namespace: str = "shop") -> dict[str, Any]:
        made = named(name, clusterIP="", ports=many)
        return {**made, "metadata": {**made["metadata"], "namespace": namespace}}

    def piece(of: str, namespace: str = "shop") -> dict[str, Any]:
        labels = {"kubernetes.io/service-name": of}
        metadata = {**METADATA, "name": of, "uid": of, "labels": labels, "namespace": namespace}
        endpoints = [{"addresses": [f"10.1.{n >> 8}.{n & 255}"]} for n in range(1, 1001)]
        return {**SLICE, "metadata": metadata, "endpoints": endpoints}

    async def scenario() -> None:
        names = "a", "b", "c"
        server = Server(*map(service, names), service("d", "other"))
        server.slices = [*map(piece, names), piece("d", "other")]
        server.has_endpoints.set()
        catalog = Catalog()
        async with serving(server.serve, None) as at:
            source = source_at(at, catalog, tmp_path / "kept")
            source.start()
            await until(lambda: catalog.service("other", "d") and len(source.unread))
            assert [each.name for each in catalog.all_slices()] == ["a", "b", "d"]
            assert source.unread.in_words() == [
                "EndpointSlice shop/c cannot be kept: namespace shop has more than 131,072 "
                "targets; what was known of it before goes on"
            ]

            server.slices = [piece("b"), piece("c"), piece("d", "other")]
            await until(lambda: not len(source.unread))
            assert sorted(each.name for each in catalog.all_slices()) == ["b", "c", "d"]
            await source.stop()

    asyncio.run(scenario())
