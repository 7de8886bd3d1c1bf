"""A gateway is asked for a port: a real one, that speaks PCP, NAT-PMP and UPnP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from ipaddress import IPv4Address, ip_address
from pathlib import Path

import pytest

from limpet.base.addresses import Endpoint
from limpet.base.bounds.servers import GATEWAY_MEMORY, GATEWAY_TALK_S
from limpet.linux.nftables import Nftables
from limpet.linux.underlay import default_gateway
from limpet.nat import port_control, port_mapping, upnp
from limpet.nat import port_control_codec as wire
from limpet.nat.port_control_codec import PortControlError
from limpet.nat.port_mapping import PortMapping
from limpet.nat.upnp_apart import map_apart
from tests.beds.namespaces import Netns, NetnsFactory, connect_namespaces
from tests.waiting import PATIENCE_S, until, until_answered

PORT = 20888
GATEWAY, NODE = IPv4Address("192.168.7.1"), IPv4Address("192.168.7.2")
OUTSIDE = IPv4Address("192.0.1.1")
"""Of no host anywhere; the addresses for examples miniupnpd takes for private ones."""

TABLE = """
table inet miniupnpd {
    chain forward {
        type filter hook forward priority filter
        jump mapped
    }
    chain mapped {
    }
    chain prerouting {
        type nat hook prerouting priority dstnat
        jump redirected
    }
    chain redirected {
    }
    chain postrouting {
        type nat hook postrouting priority srcnat
        jump returned
        oifname "wan" masquerade
    }
    chain returned {
    }
}
"""


class Site:
    """A node, its gateway, and a host outside."""

    def __init__(self, make_netns: NetnsFactory, folder: Path) -> None:
        self.folder = folder
        self.node, self.gateway, self.outside = map(make_netns, ("node", "gateway", "outside"))
        for netns in (self.node, self.gateway, self.outside):
            netns.sysctl("net/ipv6/conf/all/disable_ipv6", "1")
        connect_namespaces(self.node, "eth0", self.gateway, "lan")
        connect_namespaces(self.outside, "eth0", self.gateway, "wan")
        self.gateway.sysctl("net/ipv4/ip_forward", "1")
        self.gateway.ip(f"addr add {GATEWAY}/24 dev lan", f"addr add {OUTSIDE}/24 dev wan")
        self.node.ip(f"addr add {NODE}/24 dev eth0", f"route add default via {GATEWAY}")
        self.outside.ip("addr add 192.0.1.2/24 dev eth0")
        self._undo = ExitStack()

    def serve(self, *, upnp: bool, others: bool) -> None:
        """The gateway speaks UPnP, and PCP and NAT-PMP."""
        script = Path(__file__).parents[2] / "scripts" / "fetch-miniupnpd"
        done = subprocess.run([script], capture_output=True, text=True, timeout=250)
        assert done.returncode == 0, done.stderr
        with self.gateway.entered():
            nft = Nftables("miniupnpd")
            nft.put_table(TABLE)
            nft.close()
        conf = self.folder / "miniupnpd.conf"
        conf.write_text(
            "\n".join(
                (
                    "ext_ifname=wan",
                    f"ext_ip={OUTSIDE}",
                    "listening_ip=lan",
                    "ipv6_disable=yes",
                    f"enable_upnp={'yes' if upnp else 'no'}",
                    f"enable_natpmp={'yes' if others else 'no'}",
                    "http_port=5000",
                    "upnp_table_name=miniupnpd",
                    "upnp_nat_table_name=miniupnpd",
                    "upnp_forward_chain=mapped",
                    "upnp_nat_chain=redirected",
                    "upnp_nat_postrouting_chain=returned",
                    "uuid=7a1c9c3e-6f0e-4a52-9a36-3f1d3f7f1c55",
                    "allow 1024-65535 192.168.7.0/24 1024-65535",
                    "deny 0-65535 0.0.0.0/0 0-65535",
                    "",
                )
            )
        )
        command = [
            *("nsenter", f"--net={self.gateway.path}", done.stdout.strip(), "-d"),
            *("-f", str(conf), "-P", str(self.folder / "pid")),
        ]
        with (self.folder / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        self._undo.callback(process.wait, timeout=30)
        self._undo.callback(process.kill)  # asked to end, it may take half a minute

    def close(self) -> None:
        self._undo.close()

    @property
    def mapped(self) -> bool:
        """The gateway leads something to the node."""
        return str(NODE) in self.rules

    @property
    def rules(self) -> str:
        """The gateway's, as text."""
        with self.gateway.entered():
            nft = Nftables("miniupnpd")
            text = nft.list_table() or ""
            nft.close()
        return text

    def gets_through(self, to: Endpoint) -> bool:
        """What comes from outside gets to the node's port."""
        with (
            self.node.open_socket(4, socket.SOCK_DGRAM) as inside,
            self.outside.open_socket(4, socket.SOCK_DGRAM) as sender,
        ):
            inside.bind((str(NODE), PORT))
            inside.settimeout(PATIENCE_S)
            sender.sendto(b"from outside", (str(to[0]), to[1]))
            return inside.recv(100) == b"from outside"

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        """In the node, threads too."""

        async def main() -> None:
            await scenario()

        with self.node.entered():
            asyncio.run(main())


@pytest.fixture(name="site")
def _site(make_netns: NetnsFactory, tmp_path: Path) -> Iterator[Site]:
    site = Site(make_netns, tmp_path)
    yield site
    site.close()


class Told:
    """What the mapping says, each time."""

    def __init__(self) -> None:
        self.endpoints: list[tuple[Endpoint, ...]] = []

    async def last_is(self, wanted: tuple[Endpoint, ...]) -> None:
        """Raises: TimeoutError."""
        await until(lambda: self.endpoints[-1:] == [wanted])


async def asked(mapping: PortMapping) -> None:
    """Returns when the gateway has been asked in every way that it may know."""
    await until(lambda: mapping.report().problem != "not asked yet")


async def answering(site: Site, call: Callable[[], Awaitable[object]]) -> None:
    """Returns when the gateway has begun to answer."""

    async def answers() -> bool:
        try:
            await call()
        except (PortControlError, OSError):
            return False
        return True

    await until_answered(answers)


def test_the_gateway_leads_a_port_to_the_tunnel_until_it_is_given_back(site: Site) -> None:
    site.serve(upnp=False, others=True)

    async def scenario() -> None:
        await answering(site, lambda: port_control.ask_pmp(GATEWAY, 30000, 30000, 60))
        told = Told()
        mapping = PortMapping(PORT, told.endpoints.append)
        mapping.start()
        await told.last_is(((OUTSIDE, PORT),))
        assert mapping.report().by == "pcp"
        assert site.gets_through((OUTSIDE, PORT))

        await mapping.stop()
        await port_control.ask_pmp(GATEWAY, 30000, 0, 0)
        assert not site.mapped

    site.run(scenario)


def test_a_gateway_that_has_forgotten_is_asked_again_when_the_network_changes(site: Site) -> None:
    site.serve(upnp=False, others=True)

    async def scenario() -> None:
        await answering(site, lambda: port_control.ask_pmp(GATEWAY, 30000, 30000, 60))
        told = Told()
        mapping = PortMapping(PORT, told.endpoints.append)
        mapping.start()
        await told.last_is(((OUTSIDE, PORT),))

        site.close()
        site.serve(upnp=False, others=True)
        await answering(site, lambda: port_control.ask_pmp(GATEWAY, 30000, 30000, 60))
        assert f":{PORT}" not in site.rules
        mapping.network_changed()
        await until(lambda: f":{PORT}" in site.rules)
        assert site.gets_through((OUTSIDE, PORT))
        assert told.endpoints == [((OUTSIDE, PORT),)]
        await mapping.stop()

    site.run(scenario)


def test_what_a_gateway_leads_to_us_goes_on_until_it_ends_while_it_does_not_answer(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_mapping, "_RENEWED_AFTER", 0.0)
    monkeypatch.setattr(port_mapping, "_SHORTEST_S", 0.01)
    monkeypatch.setattr(port_mapping, "_RENEW_AGAIN_S", 0.01)
    site.serve(upnp=False, others=True)

    async def scenario() -> None:
        told = Told()
        await answering(site, lambda: port_control.ask_pmp(GATEWAY, 30000, 30000, 60))
        mapping = PortMapping(PORT, told.endpoints.append)
        mapping.start()
        await told.last_is(((OUTSIDE, PORT),))

        site.close()
        await until(lambda: "pcp: " in mapping.report().problem)
        assert mapping.report().by == "pcp"
        site.serve(upnp=False, others=True)
        await until(lambda: not mapping.report().problem)
        assert told.endpoints == [((OUTSIDE, PORT),)]

        site.close()
        await until(lambda: "pcp: " in mapping.report().problem)
        assert mapping._held is not None
        mapping._held = replace(mapping._held, ends_s=0.0)
        await told.last_is(())
        await mapping.stop()

    site.run(scenario)


def test_a_gateway_that_comes_after_the_node_is_asked_soon(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_mapping, "_SOON_S", 0.01)

    async def scenario() -> None:
        told = Told()
        mapping = PortMapping(PORT, told.endpoints.append)
        mapping.start()
        await asked(mapping)

        site.serve(upnp=False, others=True)
        await told.last_is(((OUTSIDE, PORT),))
        await mapping.stop()

    site.run(scenario)


def test_a_node_that_begins_again_asks_for_its_mapping_of_before(site: Site) -> None:
    """A server refuses who does not know the nonce of a mapping. RFC 6887, 11.3."""
    server = site.gateway.open_socket(4, socket.SOCK_DGRAM)
    server.bind((str(GATEWAY), wire.PORT))
    nonces: list[bytes] = []

    async def first(secret: bytes | None) -> bytes:
        nonces.clear()
        mapping = PortMapping(PORT, lambda _: None, secret)
        mapping.start()
        await until(lambda: nonces)
        await mapping.stop()
        return nonces[0]

    def note() -> None:
        data = server.recv(2000)
        if data[0] == 2:
            nonces.append(data[24:36])

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(server, note)
        before = await first(b"a" * 32)
        assert await first(b"a" * 32) == before
        assert await first(b"b" * 32) != before
        assert await first(None) != await first(None)
        loop.remove_reader(server)
        server.close()

    site.run(scenario)


def test_nat_pmp_gives_a_port_and_takes_it_back(site: Site) -> None:
    site.serve(upnp=False, others=True)

    async def scenario() -> None:
        await answering(site, lambda: port_control.ask_pmp(GATEWAY, PORT, PORT, 600))
        lease = await port_control.ask_pmp(GATEWAY, PORT, PORT, 600)
        assert (lease.address, lease.port) == (OUTSIDE, PORT)
        assert site.gets_through((OUTSIDE, PORT))

        await port_control.ask_pmp(GATEWAY, PORT, 0, 0)
        assert not site.mapped

    site.run(scenario)


def test_a_gateway_with_upnp_only_leads_a_port_to_the_tunnel(site: Site) -> None:
    site.serve(upnp=True, others=False)

    async def scenario() -> None:
        await answering(site, lambda: upnp.find_gateway(GATEWAY, NODE))
        told = Told()
        mapping = PortMapping(PORT, told.endpoints.append)
        mapping.start()
        await told.last_is(((OUTSIDE, PORT),))
        assert mapping.report().by == "upnp"
        assert site.gets_through((OUTSIDE, PORT))

        await mapping.stop()
        assert not site.mapped

    site.run(scenario)


class EndlessGateway:
    """Describes itself by HTTP, and comes to no end."""

    def __init__(self, netns: Netns, piece: bytes, pause_s: float) -> None:
        self._listener = netns.open_socket(4, socket.SOCK_STREAM)
        self._listener.bind((str(GATEWAY), 5000))
        self._listener.listen()
        self._piece, self._pause_s = piece, pause_s
        self._over = threading.Event()
        self.sent = 0
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            connection = self._listener.accept()[0]
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/xml\r\n\r\n")
                while not self._over.wait(self._pause_s):
                    connection.sendall(self._piece)
                    self.sent += len(self._piece)

    def close(self) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def endless_problem(site: Site, piece: bytes, pause_s: float) -> str:
    """What is told of such a gateway."""
    gateway = EndlessGateway(site.gateway, piece, pause_s)
    try:
        with site.node.entered(), pytest.raises(PortControlError) as told:
            map_apart(f"http://{GATEWAY}:5000/description", PORT, PORT, 3600)
    finally:
        gateway.close()
    assert gateway.sent > 0
    return str(told.value)


def test_a_gateway_whose_answer_has_no_end_is_told_as_that(site: Site) -> None:
    """It would take the memory of whoever reads it."""
    before_kb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert "gateway" in endless_problem(site, bytes(1 << 20), 0.0)
    most_kb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    # A program that is started counts what the process had that was forked for it, by then.
    forked_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert most_kb <= max(before_kb, forked_kb, GATEWAY_MEMORY.most // 1024)


def test_a_gateway_that_never_comes_to_an_end_is_left(site: Site) -> None:
    """A byte now and then keeps miniupnpc waiting; the time is the process' own to keep."""
    began_s = time.monotonic()
    assert f"within {GATEWAY_TALK_S.most} s" in endless_problem(site, b"x", 0.5)
    assert time.monotonic() - began_s >= GATEWAY_TALK_S.most


def test_a_port_that_another_host_has_is_left_to_it(site: Site) -> None:
    site.serve(upnp=False, others=True)

    async def scenario() -> None:
        await answering(site, lambda: port_control.ask_pmp(GATEWAY, PORT, PORT, 600))
        site.node.ip(f"addr del {NODE}/24 dev eth0", "addr add 192.168.7.3/24 dev eth0")
        lease = await port_control.ask_pcp(GATEWAY, os.urandom(12), PORT, PORT, 600)
        assert lease.port != PORT

    site.run(scenario)


def answer_as_old_gateway(server: socket.socket, outside: str = "100.64.1.1") -> None:
    """It speaks NAT-PMP only, and is behind another NAT itself."""
    data, source = server.recvfrom(2000)
    if data[0] != 0:
        answer = struct.pack(">BBHL", 0, 0x80 | data[1], 1, 0)
    elif data[1] == 0:
        answer = struct.pack(">BBHL4s", 0, 0x80, 0, 0, ip_address(outside).packed)
    else:
        port, _wanted, lifetime_s = struct.unpack(">4xHHL", data)
        answer = struct.pack(">BBHLHHL", 0, 0x81, 0, 0, port, 30001, lifetime_s)
    server.sendto(answer, source)


def test_a_gateway_behind_another_nat_is_of_no_use_and_that_is_said(site: Site) -> None:
    server = site.gateway.open_socket(4, socket.SOCK_DGRAM)
    server.bind((str(GATEWAY), wire.PORT))

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(server, answer_as_old_gateway, server)
        told = Told()
        mapping = PortMapping(PORT, told.endpoints.append)
        mapping.start()
        await asked(mapping)
        assert mapping.report().by == "nat-pmp"
        assert "100.64.1.1" in mapping.report().problem
        assert told.endpoints == []
        await mapping.stop()
        loop.remove_reader(server)
        server.close()

    site.run(scenario)


def test_a_gateway_that_has_no_address_of_the_internet_yet_is_asked_soon(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_mapping, "_SOON_S", 0.01)
    server = site.gateway.open_socket(4, socket.SOCK_DGRAM)
    server.bind((str(GATEWAY), wire.PORT))
    outside = "192.168.100.2"

    async def scenario() -> None:
        nonlocal outside
        loop = asyncio.get_running_loop()
        loop.add_reader(server, lambda: answer_as_old_gateway(server, outside))
        told = Told()
        mapping = PortMapping(PORT, told.endpoints.append)
        mapping.start()
        await asked(mapping)
        assert "192.168.100.2" in mapping.report().problem

        outside = str(OUTSIDE)
        await told.last_is(((OUTSIDE, 30001),))
        assert not mapping.report().problem
        await mapping.stop()
        loop.remove_reader(server)
        server.close()

    site.run(scenario)


def test_without_a_gateway_that_gives_ports_the_reason_is_told(site: Site) -> None:
    async def scenario() -> None:
        told = Told()
        mapping = PortMapping(PORT, told.endpoints.append)
        mapping.start()
        await asked(mapping)
        assert str(GATEWAY) in mapping.report().problem
        assert "upnp" in mapping.report().problem
        assert told.endpoints == []
        await mapping.stop()

    site.run(scenario)


def test_the_gateway_is_the_one_of_the_best_default_route(make_netns: NetnsFactory) -> None:
    one, two = make_netns("one"), make_netns("two")
    connect_namespaces(one, "eth0", two, "eth0")
    with one.entered():
        assert default_gateway() is None
    one.ip(
        "addr add 192.168.7.2/24 dev eth0",
        "route add default via 192.168.7.254 metric 200",
        "route add default via 192.168.7.1 metric 100",
        "route add 10.0.0.0/8 via 192.168.7.9",
    )
    with one.entered():
        found = default_gateway()

    assert found is not None
    assert found == ip_address("192.168.7.1")


def test_where_the_best_default_route_has_no_gateway_no_other_s_is_asked(
    make_netns: NetnsFactory,
) -> None:
    one, two = make_netns("one"), make_netns("two")
    connect_namespaces(one, "eth0", two, "eth0")
    connect_namespaces(one, "ppp0", two, "ppp0")
    one.ip(
        "addr add 192.168.8.2/24 dev eth0",
        "route add default dev ppp0",
        "route add default via 192.168.8.1 metric 700",
    )
    with one.entered():
        assert default_gateway() is None
    one.ip("route del default dev ppp0")
    with one.entered():
        assert str(default_gateway()) == "192.168.8.1"
