"""The agent is killed, or others take its table away, while Services and endpoints change: what is
valid stays, and what is in the kernel is what the API server says."""

from __future__ import annotations

import json
import os
import random
import re
import select
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from limpet.base.errors import LimpetError
from limpet.base.ownership import NFT_SERVICES_TABLE
from limpet.datapath.services.kube_proxy import HALF_CLOSED, HALF_CLOSED_S
from limpet.datapath.services.plan import Planner, SocketWishes
from limpet.datapath.services.state import Surroundings
from limpet.kubernetes.kinds.services import ServiceView, SliceView, service_of, slice_of
from limpet.lab.launch import launcher
from limpet.lab.world.machine import Machine
from limpet.lab.world.pod import LabPod
from limpet.lab.world.world import World
from limpet.linux.set_elements import SetElements
from limpet.services.catalog import Catalog
from limpet.services.rotation import Here
from tests.beds.namespaces import Netns
from tests.beds.services.service_api import Object, ServiceApi, service, slices
from tests.effort import effort
from tests.lab.bed import a_world, findings
from tests.waiting import PATIENCE_S, wait_until

CHANGES, KILLS = effort((200, 3), (500, 6))
STAYS = ("10.96.0.7", "fd96::7")
AGAIN = 3
"""Rounds with changes of an agent that is there again until kernel and plan agree: of what it has
kept, and of the list of each kind that the API server tells."""
MANY = effort(600, 10_000)
"""Services that change at once; the issue's measure is 10,000."""

TOPOLOGY = """
[controller]
pod_cidrs = ["10.252.0.0/16", "fd00:252::/48"]
[cloud]
addresses = ["203.0.113.10/24"]
[site.harbour]
lan = ["192.168.10.0/24", "fd00:10::/64"]
nodes = { crane-1 = 3 }
"""
PODS = ("one", "two", "client")
METRICS = "127.0.0.1:9111"
FETCH = f"import urllib.request as r; print(r.urlopen('http://{METRICS}/metrics').read().decode())"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with a_world(TOPOLOGY, tmp_path_factory.mktemp("killed-services")) as world:
        yield world


@pytest.fixture
def node(world: World) -> Machine:
    """With two pods that serve, and one that asks; all Services are what its API server says."""
    return world.machine("crane-1")


@pytest.fixture
def api(node: Machine) -> Iterator[ServiceApi]:
    with ServiceApi(Netns(node.name)) as api:
        node.stop_agent()
        node.settings |= {"services": "on", "source": "kubernetes", "log_level": "debug"}
        node.settings |= {"kubernetes_server": api.url, "metrics_listen": [METRICS]}
        # A server that lists nothing at all is not believed: what a test before had would stay.
        api.put(service("first", "10.96.0.250", "fd96::250"))
        node.start_agent()
        # What a test before had is often what the next one puts: it has to be away before that one
        # asks whether it is there.
        agree(node, api)
        yield api


def pod(node: Machine, name: str) -> LabPod:
    return list(node.pods.values())[PODS.index(name)]


def addresses(node: Machine, *names: str) -> list[str]:
    return [str(each.ip) for name in names for each in pod(node, name).addresses]


def wanted(node: Machine, api: ServiceApi, sockets: SocketWishes | None = None) -> Planner:
    """Of one who hears all of it just now."""
    catalog, planner = Catalog(), Planner(sockets)
    segments = {each.network for own in node.pods.values() for each in own.addresses}
    planner.surround(Surroundings(pods=tuple(segments)))
    for item in api.objects["Service"].values():
        if isinstance(item["spec"]["ports"], list):  # else nobody can read it
            found = service_of(msgspec.convert(item, ServiceView))
            assert found is not None
            catalog.put(found)
    for item in api.objects["EndpointSlice"].values():
        catalog.put(slice_of(msgspec.convert(item, SliceView)))
    planner.replan([each.key for each in catalog], catalog, Here("here"))
    return planner


def content(name: str, elements: dict[bytes, bytes]) -> Counter[tuple[bytes, bytes]]:
    """Without the order of slots, which tells what was there before."""
    if "slots" in name:
        return Counter((key[:-4], value) for key, value in elements.items())
    return Counter(elements.items())


def unlike(node: Machine, api: ServiceApi) -> list[str]:
    """Maps of the kernel that are not as planned by one who begins with nothing."""
    planner = wanted(node, api)
    with Netns(node.name).entered():
        sets = SetElements(NFT_SERVICES_TABLE)
        try:
            held = {name: sets.read(name) for name in planner.want().elements}
        finally:
            sets.close()
    return [x for x in held if content(x, held[x]) != content(x, planner.elements[x])]


def agree(node: Machine, api: ServiceApi) -> None:
    found: list[str] = []

    def is_so() -> bool:
        found[:] = unlike(node, api)
        return not found

    try:
        wait_until(is_so, "kernel and plan agree")
    except AssertionError as error:
        log = "\n".join(node.log().splitlines()[-60:])
        raise AssertionError(f"{error}: unlike are {found}; the agent's log ends\n{log}") from None


class Storm(threading.Thread):
    """Asks a Service that does not change, by both IP versions: by new connections, by those that
    stand, and by UDP from one port. One that is not answered ends it."""

    def __init__(self, node: Machine) -> None:
        super().__init__()
        self.asked = 0
        self.longest_s = 0.0
        self.error: BaseException | None = None
        self._node = node
        self._ended = threading.Event()

    def run(self) -> None:
        try:
            with ExitStack() as undo:
                client = Netns(pod(self._node, "client").netns)
                servers = [Netns(pod(self._node, name).netns) for name in ("one", "two")]
                ways = [_Way(client, servers, address, undo) for address in STAYS]
                while not self._ended.wait(0.002):
                    for way in ways:
                        began_s = time.monotonic()
                        way.once(str(self.asked).encode())
                        self.longest_s = max(self.longest_s, time.monotonic() - began_s)
                    self.asked += 1
        except BaseException as error:  # noqa: BLE001 - the test tells it
            self.error = error

    def __enter__(self) -> Storm:
        self.start()
        wait_until(lambda: self.asked or self.error, "it asks")
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()

    def check(self) -> None:
        """Raises: AssertionError."""
        self._ended.set()
        self.join()
        assert self.error is None, f"after {self.asked} answers: {self.error!r}"


class _Way:
    def __init__(self, client: Netns, servers: list[Netns], address: str, undo: ExitStack) -> None:
        self._client, self._address = client, address
        version = 6 if ":" in address else 4
        anywhere = "::" if version == 6 else "0.0.0.0"
        self._listeners = [undo.enter_context(each.listening(anywhere, 8080)) for each in servers]
        self._asked = [undo.enter_context(_udp(each, version, 5353)) for each in servers]
        self._udp = undo.enter_context(_udp(client, version, 0))
        self._held = undo.enter_context(client.connected(address, 80))
        self._there = undo.enter_context(self._accept())

    def once(self, word: bytes) -> None:
        for one, other in ((self._held, self._there), (self._there, self._held)):
            one.sendall(word)
            assert other.recv(64) == word
        with self._client.connected(self._address, 80) as here, self._accept() as there:
            here.sendall(word)
            assert there.recv(64) == word
        self._udp.sendto(word, (self._address, 53))
        server = _first(self._asked)
        found, where = server.recvfrom(64)
        assert found == word
        server.sendto(word, where)
        assert self._udp.recvfrom(64)[0] == word

    def _accept(self) -> socket.socket:
        there = _first(self._listeners).accept()[0]
        there.settimeout(PATIENCE_S)
        return there


def _first(sockets: list[socket.socket]) -> socket.socket:
    ready, _, _ = select.select(sockets, [], [], PATIENCE_S)
    assert ready, "nothing came"
    found: socket.socket = ready[0]
    return found


def _udp(netns: Netns, version: int, port: int) -> socket.socket:
    made = netns.open_socket(version, socket.SOCK_DGRAM)
    made.settimeout(PATIENCE_S)
    made.bind(("0.0.0.0" if version == 4 else "::", port))
    return made


def another(chance: random.Random, number: int, pods: list[str]) -> list[Object]:
    """A Service of some kind, and who serves it now."""
    name = f"other-{number}"
    spec: dict[str, Any] = {
        "sessionAffinity": chance.choice(["None", "ClientIP"]),
        "internalTrafficPolicy": chance.choice(["Cluster", "Cluster", "Local"]),
        "externalIPs": chance.choice([[], [f"198.51.100.{number}"]]),
    }
    if chance.random() < 0.3:
        spec["ports"] = [{"name": "http", "port": 80, "nodePort": 30000 + number}]
    far = [f"10.244.9.{chance.randrange(1, 250)}" for _ in range(chance.randrange(5))]
    near = chance.sample(pods, chance.randrange(len(pods) + 1))
    clusters = (f"10.96.1.{number + 1}", f"fd96::1:{number + 1:x}")
    return [service(name, *clusters, **spec), *slices(name, *far, *near)]


def change(chance: random.Random, api: ServiceApi, pods: list[str]) -> None:
    number = chance.randrange(20)
    found = another(chance, number, pods)
    what = chance.random()
    if what < 0.15:
        api.delete(*found)
    elif what < 0.75:
        api.put(*found[1:])
    else:
        api.put(*found)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_nothing_valid_is_cut_and_all_agrees_when_the_agent_is_killed_amid_changes(
    node: Machine, api: ServiceApi, chance: random.Random
) -> None:
    kill_amid_changes(node, api, chance, lambda: agree(node, api))


def kill_amid_changes(
    node: Machine,
    api: ServiceApi,
    chance: random.Random,
    agree: Callable[[], None],
    *,
    beside: Callable[[], None] = lambda: None,
) -> None:
    """`agree`: returns when the kernel is as planned, before and after each kill. `beside`: called
    after each change of a Service, changes something else."""
    pods = addresses(node, "one", "two")
    api.put(service("stays", *STAYS), *slices("stays", *pods))
    agree()
    kills = set(chance.sample(range(CHANGES), KILLS))
    with Storm(node) as storm:
        for number in range(CHANGES):
            if number in kills:
                node.stop_agent(signal.SIGKILL)
                before = rounds(node)
                node.start_agent()
                agree()
                assert rounds(node) - before <= AGAIN
            change(chance, api, pods)
            beside()
            time.sleep(chance.random() * 0.01)  # of rounds some are met half way
        agree()
        storm.check()
    assert storm.asked


TABLE = f"inet {NFT_SERVICES_TABLE}"
FOREIGN = (
    f"delete table {TABLE}",
    f"flush map {TABLE} services4; flush map {TABLE} services6",
    f"flush map {TABLE} slots_tcp_4; flush map {TABLE} slots_tcp_6",
    f"flush chain {TABLE} services",
    f"flush chain {TABLE} postrouting",
    f"delete chain {TABLE} output",
    "flush ruleset",
)


NOTIFIED = "another program changed our tables of nftables"
NEVER_S = 100_000.0


@pytest.fixture
def never_by_itself(node: Machine, api: ServiceApi) -> Iterator[None]:
    """Its agent does not look again at everything by and by."""
    node.stop_agent()
    node.settings["resync_s"] = NEVER_S
    node.start_agent()
    yield
    node.stop_agent()
    del node.settings["resync_s"]
    node.start_agent()


@pytest.mark.usefixtures("never_by_itself")
def test_what_others_take_away_is_back_by_one_round_and_what_began_meanwhile_finds_its_way(
    node: Machine, api: ServiceApi
) -> None:
    api.put(service("stays", *STAYS), *slices("stays", *addresses(node, "one")))
    agree(node, api)
    host = Netns(node.name)
    client, server = (Netns(pod(node, name).netns) for name in ("client", "one"))
    took: dict[str, float] = {}
    with ExitStack() as undo:
        asked = undo.enter_context(_udp(server, 4, 5353))
        asked.setblocking(False)
        asks = undo.enter_context(_udp(client, 4, 0))
        asks.connect((STAYS[0], 53))

        def is_heard() -> bool:
            try:
                asks.send(b"question")
                return asked.recv(64) == b"question"
            except (BlockingIOError, ConnectionRefusedError):
                return False

        wait_until(is_heard, "it is served")
        for words in FOREIGN:
            before = host.run("nft", "list", "table", *TABLE.split())
            earlier = repairs(node)
            host.run("nft", words)
            began_s = time.monotonic()
            # From one port all the time: what the kernel tracks of it began without the table.
            asks.send(b"question")
            wait_until(
                lambda: _like(host) == _normal(before),  # noqa: B023 - of this turn
                f"it is as before {words}",
            )
            took[words] = time.monotonic() - began_s
            wait_until(is_heard, f"a flow that began after {words} is served")
            # Whatever the machine does beside: there is no timer that it could have waited for.
            wait_until(lambda: repairs(node) > earlier, "its round is told")  # noqa: B023
            assert repairs(node) == earlier + 1
            assert not unlike(node, api)
    for words, took_s in took.items():
        sys.stderr.write(f"{words}: back after {took_s * 1e3:.0f} ms\n")


def _like(host: Netns) -> list[str]:
    try:
        return _normal(host.run("nft", "list", "table", *TABLE.split()))
    except AssertionError:
        return []


def _normal(listed: str) -> list[str]:
    """Elements are told in any order."""
    return sorted(word.strip(",") for word in listed.split())


def test_nonsense_is_left_out_and_told_and_all_else_is_served(
    node: Machine, api: ServiceApi
) -> None:
    pods = addresses(node, "one", "two")
    http = {"name": "http", "protocol": "TCP", "port": 80}
    ask = {"name": "ask", "protocol": "UDP", "port": 53}
    odd_ports = [http, ask, {"name": "odd", "protocol": "ICMP", "port": 7}, {"port": 70000}]
    pieces = slices("stays", *pods, "10.244.1.300", "0.0.0.0")
    pieces[0]["ports"].append({"name": "odd", "port": -7})
    away = {**slices("stays", "10.244.9.9")[0], "addressType": "IPX"}
    away["metadata"] = {**away["metadata"], "name": "stays-x"}
    broken = service("broken", "10.96.0.66", ports="eighty")
    api.put(
        service("stays", *STAYS, ports=odd_ports, externalIPs=["nonsense"]), *pieces, away, broken
    )
    agree(node, api)
    assert Netns(node.name).sysctl(HALF_CLOSED) == str(HALF_CLOSED_S)
    expected = [
        "of EndpointSlice shop/stays-4 is left out: ports[2].port -7: no port from 1 to 65535; "
        + "; ".join(
            f"endpoints[{index}] '{address}': no address of IPv4 that a pod can have"
            for index, address in ((2, "10.244.1.300"), (3, "0.0.0.0"))
        ),
        "of EndpointSlice shop/stays-x is left out: addressType 'IPX': none of IPv4, IPv6 and "
        "FQDN, so nothing is sent to its endpoints",
        "of Service shop/stays is left out: ports[2].protocol 'ICMP': none of TCP, UDP and SCTP; "
        "ports[3].port 70000: no port from 1 to 65535; externalIPs 'nonsense': no address that a "
        "pod or a Service can have",
    ]
    with Storm(node) as storm:
        wait_until(lambda: storm.asked > 20 or storm.error, "all else is served")
        storm.check()
    assert sorted(node.ask("service", name="shop/stays")["left_out"]) == expected
    listed = node.ask("services")
    assert listed["left_out_objects"] == 4
    assert sorted(listed["left_out"])[1:] == expected
    assert listed["left_out"][0].startswith("Service shop/broken cannot be read: ")
    inside, command = ("nsenter", f"--net={node.netns_path}"), (sys.executable, "-m", "limpet")
    words = ("service", "show", "shop/stays", "--config", str(node.config_path))
    said = launcher().run([*inside, *command, *words]).stderr
    assert all(f"limpet: {each}" in said for each in expected)
    shown = json.loads(launcher().run([*inside, *command, *words, "--output", "json"]).stdout)
    assert sorted(shown["left_out"]) == expected
    listing = ("service", "list", *words[3:], "--output", "json")
    told = json.loads(launcher().run([*inside, *command, *listing]).stdout)
    assert told["left_out"] == listed["left_out"]
    figures = node.run(sys.executable, "-c", FETCH)
    assert "limpet_agent_services_left_out 4.0" in figures
    said = findings(node)["service-left-out"]
    assert listed["left_out"][0] in said
    assert said.endswith("and so with 3 more objects")
    pictured = {each["name"]: each for each in node.ask("picture")["workloads"]["services"]}
    assert sorted(pictured["shop/stays"]["left_out"]) == expected
    with pytest.raises(LimpetError, match=r"shop/broken: what the API server has of it cannot"):
        node.ask("service", name="shop/broken")
    assert node.log().count("object=EndpointSlice shop/stays-4") <= 1

    api.put(service("stays", *STAYS, ports="eighty"))
    wait_until(lambda: "cannot be read" in node.ask("service", name="shop/stays")["left_out"][0])
    api.put(service("stays", *STAYS), *slices("stays", *pods))
    api.delete(away, broken)
    wait_until(lambda: not node.ask("services")["left_out_objects"], "nothing is left out")
    assert "service-left-out" not in findings(node)
    agree(node, api)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_agent_answers_while_many_services_change_at_once(
    node: Machine, api: ServiceApi
) -> None:
    def many(port: int) -> list[Object]:
        objects = [
            (number, each)
            for number in range(MANY)
            for each in (
                service(f"s-{number}", f"10.97.{number >> 8}.{number & 255}"),
                *slices(
                    f"s-{number}",
                    *(f"10.244.{20 + number % 50}.{n + 2}" for n in range(5)),
                    http=port,
                )[:1],
            )
        ]
        for number, each in objects:
            # No namespace has as many to itself.
            each["metadata"]["namespace"] = f"shop-{number % 10}"
        return [each for _, each in objects]

    api.put(service("stays", *STAYS), *slices("stays", *addresses(node, "one", "two")))
    agree(node, api)
    told_s = []
    with Storm(node) as storm:
        for port in (8080, 8081):
            objects, began_s = many(port), time.monotonic()
            api.put(*objects)
            planner = wanted(node, api)
            is_unlike = True  # at least asked once, however fast it is
            while is_unlike:
                asked_s = time.monotonic()
                assert node.ask("status")
                told_s.append(time.monotonic() - asked_s)
                assert asked_s < began_s + 10 * PATIENCE_S
                is_unlike = bool(unlike_by(node, planner))
            sys.stderr.write(
                f"{MANY} Services changed: in the kernel after {time.monotonic() - began_s:.2f} s, "
                f"the socket answered within {max(told_s):.2f} s, connections within "
                f"{storm.longest_s:.2f} s, resident {resident_mib(node):.0f} MiB\n"
            )
        storm.check()
    assert len(node.ask("services")["services"]) == MANY + 2


def unlike_by(node: Machine, planner: Planner) -> bool:
    with Netns(node.name).entered():
        sets = SetElements(NFT_SERVICES_TABLE)
        try:
            return any(
                content(name, sets.read(name)) != content(name, planner.elements[name])
                for name in ("services4", "slots_tcp_4", "slots_udp_4")
            )
        finally:
            sets.close()


def resident_mib(node: Machine) -> float:
    with open(f"/proc/{node.agent_pid}/status", encoding="ascii") as file:
        found = next(line for line in file if line.startswith("VmRSS"))
    return int(found.split()[1]) / 1024


def test_endpoints_that_flap_cost_a_round_each_and_nobody_else_anything(
    node: Machine, api: ServiceApi
) -> None:
    flap(node, api, lambda: agree(node, api))


def flap(node: Machine, api: ServiceApi, agree: Callable[[], None]) -> None:
    """`agree`: returns when the kernel is as planned, before it and after it."""
    one, two = addresses(node, "one"), addresses(node, "two")
    api.put(service("stays", *STAYS), *slices("stays", *one, *two))
    flaps = ("10.96.0.8", "fd96::8")
    api.put(service("flaps", *flaps), *slices("flaps", *one, ask=5454))
    agree()
    before = rounds(node)
    descriptors = len(os.listdir(f"/proc/{node.agent_pid}/fd"))
    with Storm(node) as storm:
        for number in range(40):
            there = one if number % 2 else two
            api.put(*slices("flaps", *(there if number % 4 < 2 else []), ask=5454))
            time.sleep(0.1)  # ten times a second
        api.put(*slices("flaps", *two, ask=5454))
        agree()
        storm.check()
    sys.stderr.write(f"longest answer beside flapping endpoints: {storm.longest_s * 1e3:.0f} ms\n")
    assert 0 < rounds(node) - before <= 2 * 41 + 5  # the slices of a change may come apart
    held = Path(f"/proc/{node.agent_pid}/fd")
    wait_until(lambda: len(list(held.iterdir())) <= descriptors + 2, "its sockets are closed")
    chains = Netns(node.name).run("nft", "list", "chains", "inet")
    assert chains.count("chain pick_") < 80
    client, server = (Netns(pod(node, name).netns) for name in ("client", "two"))
    with _udp(server, 4, 5454) as asked, _udp(client, 4, 0) as asks:
        asks.sendto(b"question", (flaps[0], 53))
        assert asked.recv(64) == b"question"


def repairs(node: Machine) -> int:
    """Rounds with changes for which the kernel's word was a reason that somebody else had changed
    a table of ours."""
    line = r"event=round parts=(?:\S+,)?services changes=[1-9]\d* failed=\d+"
    whys = re.findall(rf'{line} why=("[^"]*"|\S+)', node.log())
    return sum(NOTIFIED in why for why in whys)


def rounds(node: Machine) -> int:
    """With changes."""
    return len(re.findall(r"parts=services changes=[1-9]", node.log()))
