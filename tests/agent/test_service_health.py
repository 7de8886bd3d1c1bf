"""A load balancer asks whether a node has an endpoint of a Service (healthCheckNodePort)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from limpet.agent.serving import health
from limpet.agent.serving.health import ServiceHealth
from limpet.base.bounds.strangers import (
    HEALTH_CONNECTIONS,
    HEALTH_CONNECTIONS_OF_ONE,
    HEALTH_PORTS,
    HEALTH_REQUEST,
    HEALTH_S,
)
from limpet.services.catalog import Catalog
from limpet.services.rotation import Here
from limpet.services.values import (
    DOUBTED,
    READY,
    SERVING,
    TERMINATING,
    Endpoint,
    EndpointSlice,
    Exposure,
    Service,
)
from tests.beds.namespaces import NetnsFactory
from tests.waiting import until

PORT = 31234


def balanced(name: str, port: int, *, is_local: bool = True) -> Service:
    exposure = Exposure(is_local=is_local, health_check_node_port=port)
    return Service("shop", name, type="LoadBalancer", exposure=exposure)


def piece(name: str, *endpoints: Endpoint) -> EndpointSlice:
    return EndpointSlice("shop", f"{name}-1", name, 4, (), endpoints)


async def ask(address: str, port: int) -> tuple[int, str, dict[str, object]]:
    """Status, weight, and what is said."""
    reader, writer = await asyncio.open_connection(address, port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n")
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    lines = head.split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    return int(lines[0].split()[1]), headers["X-Load-Balancing-Endpoint-Weight"], json.loads(body)


class World:
    def __init__(self) -> None:
        self.catalog = Catalog()
        self.here = Here("here")
        self.health = ServiceHealth(self.catalog, lambda: self.here)

    def put(self, item: Service | EndpointSlice) -> None:
        self.health.changed(self.catalog.put(item))


def test_it_is_told_how_many_of_its_endpoints_are_ready_here(make_netns: NetnsFactory) -> None:
    async def play() -> None:
        world = World()
        world.put(balanced("web", PORT))
        world.put(
            piece(
                "web",
                Endpoint("10.244.0.1", node="here"),
                Endpoint("10.244.0.2", SERVING | TERMINATING, node="here"),
                Endpoint("10.244.0.3", READY | SERVING, node="here"),
                Endpoint("10.244.1.1", node="far"),
            )
        )
        await until(lambda: world.health.ports == {PORT})
        for address in ("127.0.0.1", "::1"):
            status, weight, said = await ask(address, PORT)
            assert (status, weight) == (200, "2")
            assert said["service"] == {"namespace": "shop", "name": "web"}
            assert said["localEndpoints"] == 2
        world.here = Here("here", gone={"10.244.0.1"})
        assert (await ask("127.0.0.1", PORT))[:2] == (200, "1")
        world.put(piece("web", Endpoint("10.244.0.3", DOUBTED, node="here")))
        assert (await ask("127.0.0.1", PORT))[:2] == (200, "1")
        world.put(piece("web", Endpoint("10.244.1.1", node="far")))
        assert (await ask("127.0.0.1", PORT))[:2] == (503, "0")
        world.put(piece("web", *(Endpoint(f"10.244.0.{n}", node="here") for n in (3, 4))))
        world.put(EndpointSlice("shop", "web-6", "web", 6, (), (Endpoint("fd00::1", node="here"),)))
        assert (await ask("::1", PORT))[:2] == (200, "2"), "a pod of both families is one"
        await world.health.stop()

    with make_netns().entered():
        asyncio.run(play())


def test_ports_follow_services_and_one_that_is_taken_holds_up_no_other(
    make_netns: NetnsFactory,
) -> None:
    async def play() -> None:
        world = World()
        with socket.create_server(("127.0.0.1", PORT)):
            world.put(balanced("taken", PORT))
            world.put(balanced("other", PORT + 1))
            world.put(balanced("everywhere", PORT + 2, is_local=False))
            with capture_logs() as logs:
                await until(lambda: world.health.ports == {PORT + 1})
                await until(lambda: world.health.troubles.keys() == {PORT})
            assert [(each["service"], each["by_others"]) for each in logs] == [("shop/taken", True)]
        world.put(balanced("other", PORT + 3))
        await until(lambda: world.health.ports == {PORT, PORT + 3})
        assert world.health.troubles == {}
        # Who says nothing, or nonsense, gets no answer and holds up nobody.
        _reader, idle = await asyncio.open_connection("127.0.0.1", PORT + 3)
        idle.write(b"\0" * 20_000)
        assert (await ask("127.0.0.1", PORT + 3))[0] == 503
        for name in ("taken", "other"):
            world.health.changed(world.catalog.remove_service("shop", name))
        await until(lambda: world.health.ports == frozenset())
        idle.close()
        await world.health.stop()

    with make_netns().entered():
        asyncio.run(play())


def test_a_port_passes_to_whoever_wants_it_too_when_its_service_is_heard_to_be_gone(
    make_netns: NetnsFactory,
) -> None:
    """A list tells what is there first, and at its end what is there no more."""

    async def play() -> None:
        world = World()
        world.put(balanced("before", PORT))
        await until(lambda: world.health.ports == {PORT})
        world.put(balanced("after", PORT))
        world.health.changed(world.catalog.remove_service("shop", "before"))
        await asyncio.sleep(0)
        await until(lambda: world.health.ports == {PORT})
        _, _, said = await ask("127.0.0.1", PORT)
        assert said["service"] == {"namespace": "shop", "name": "after"}
        await world.health.stop()

    with make_netns().entered():
        asyncio.run(play())


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("does", ["opens", "closes"])
def test_whenever_it_is_stopped_no_port_is_left(
    make_netns: NetnsFactory, does: str, turns: int
) -> None:
    """So many turns of the loop after it has done so with one of two ports."""
    both = {PORT, PORT + 1}

    async def play() -> None:
        world = World()
        for port in both:
            world.put(balanced(f"at-{port}", port))
        while not world.health.ports:
            await asyncio.sleep(0)
        if does == "closes":
            await until(lambda: world.health.ports == both)
            for port in both:
                world.health.changed(world.catalog.remove_service("shop", f"at-{port}"))
            while world.health.ports == both:
                await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        await world.health.stop()

    with make_netns().entered():
        asyncio.run(play())
        gc.collect()  # an open socket that nobody holds is an error of the tests
        for port in both:
            with socket.create_server(("::", port), family=socket.AF_INET6):
                pass


async def answered(amount: int, sources: int) -> int:
    """How many connections of so many addresses are answered when all are open."""
    opened = [
        await asyncio.open_connection(
            "127.0.0.1", PORT, local_addr=(f"127.0.2.{number % sources + 1}", 0)
        )
        for number in range(amount)
    ]
    found = 0
    for reader, writer in opened:
        with contextlib.suppress(ConnectionError):
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            found += (await reader.read()).startswith(b"HTTP/1.1 503 ")
        writer.close()
    return found


def test_a_node_answers_at_so_many_ports_and_says_of_which_it_does_not(
    make_netns: NetnsFactory,
) -> None:
    """Whoever may write Services would take all of its descriptors."""

    async def play() -> None:
        world, first = World(), 20_000
        for number in range(HEALTH_PORTS.most):
            world.put(balanced(f"web-{number}", first + number))
        await until(lambda: len(world.health.ports) == HEALTH_PORTS.most)
        assert world.health.troubles == {}
        over = first + HEALTH_PORTS.most
        world.put(balanced("more", over))
        await until(lambda: world.health.troubles)
        assert world.health.troubles == {over: "this node answers at 1,024 such ports"}

        world.health.changed(world.catalog.remove_service("shop", "web-7"))
        world.health.changed([("shop", "more")])
        await until(lambda: over in world.health.ports)
        assert world.health.troubles == {}
        await world.health.stop()

    with make_netns().entered():
        asyncio.run(play())


def test_who_asks_nothing_keeps_nobody_out(make_netns: NetnsFactory) -> None:
    async def play() -> None:
        world = World()
        world.put(balanced("web", PORT))
        await until(lambda: world.health.ports == {PORT})
        for bound, sources in ((HEALTH_CONNECTIONS, 64), (HEALTH_CONNECTIONS_OF_ONE, 1)):
            assert await answered(bound.most, sources) == bound.most
            assert await answered(bound.most + 1, sources) == bound.most
        await world.health.stop()

    with make_netns().entered():
        asyncio.run(play())


def test_what_is_too_large_or_no_http_1_is_not_answered(make_netns: NetnsFactory) -> None:
    async def answer_to(request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
        writer.write(request)
        with contextlib.suppress(ConnectionError):
            said = await reader.read()
            writer.close()
            return said
        return b""

    async def play() -> None:
        world = World()
        world.put(balanced("web", PORT))
        await until(lambda: world.health.ports == {PORT})
        head = b"GET / HTTP/1.1\r\nHost: "
        for size in (HEALTH_REQUEST.most, HEALTH_REQUEST.most + 1):
            said = await answer_to(head + b"x" * (size - len(head) - 4) + b"\r\n\r\n")
            assert bool(said) is (size == HEALTH_REQUEST.most)
        assert await answer_to(b"GET / HTTP/0.9\r\n\r\n") == b""
        assert await answer_to(b"GET /\r\n\r\n") == b""
        await world.health.stop()

    with make_netns().entered():
        asyncio.run(play())


def test_who_asks_nothing_is_waited_for_no_longer(
    make_netns: NetnsFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        world = World()
        world.put(balanced("web", PORT))
        await until(lambda: world.health.ports == {PORT})
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
        assert await reader.read() == b""
        writer.close()
        await world.health.stop()

    monkeypatch.setattr(health, "HEALTH_S", replace(HEALTH_S, most=0))
    with make_netns().entered():
        asyncio.run(play())
