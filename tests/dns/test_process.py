"""The process that answers names, with the resolver of the C library and with raw sockets."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest

from limpet.cloud.workloads.change_journal import ChangeJournal
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.underlay import read_underlay
from limpet.services.catalog import Item
from limpet.services.kept import (
    JOURNAL_FILE,
    KEPT_FILE,
    encode_gone,
    encode_item,
    encode_items,
)
from limpet.services.kept_here import FORGET_AFTER_S, HERE_FILE, encode_here
from limpet.services.rotation import Here
from limpet.services.values import Endpoint, EndpointPort, EndpointSlice, Service, ServicePort
from tests.beds.namespaces import Netns, NetnsFactory, connect_namespaces
from tests.beds.traffic.dns_client import Asking, asking_all_the_time
from tests.waiting import PATIENCE_S, wait_until

ADDRESS, ADDRESS_6 = "169.254.20.10", "fd5b:9ad1:7e3c::53"
WEB = "web.default.svc.cluster.local"
ITEMS: tuple[Item, ...] = (
    Service(
        "default",
        "web",
        cluster_ips=("10.96.0.10", "fd00:96::10"),
        ports=(ServicePort("http", "TCP", 80),),
    ),
    Service("default", "db", cluster_ips=("None",)),
    EndpointSlice(
        "default",
        "db-1",
        "db",
        4,
        (EndpointPort("sql", "TCP", 5432),),
        (Endpoint("10.1.0.2", hostname="db-0"),),
    ),
    Service("default", "out", type="ExternalName", external_name="www.example.com"),
)


class Serving:
    """The processes that answer names on a node, one after the other."""

    def __init__(self, node: Netns, config: Path, run_dir: Path) -> None:
        self.node = node
        self.config = config
        self.run_dir = run_dir
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, **environment: str) -> subprocess.Popen[bytes]:
        """Returns when that process answers."""
        before = self.pid()
        command = self.command("dns", "serve", "--config", str(self.config))
        process = subprocess.Popen(command, env={**os.environ, **environment})
        self.started.append(process)
        wait_until(
            lambda: process.poll() is not None or self.pid() not in (None, before),
            "the process never answered",
        )
        assert process.poll() is None, "the process has ended"
        return process

    def command(self, *words: str) -> list[str]:
        return ["nsenter", f"--net={self.node.path}", sys.executable, "-m", "limpet", *words]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = self.command("dns", *words, "--config", str(self.config))
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)

    def pid(self) -> int | None:
        """Of the process that answers, not of what keeps its sockets."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(PATIENCE_S)
            try:
                asking.connect(str(self.run_dir / "dns.sock"))
                asking.sendall(b'{"ask": "status"}\n')
                answer = asking.recv(1 << 16)
            except OSError:
                return None
        return int(json.loads(answer)["pid"]) if answer else None

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.terminate()
        for process in self.started:
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Place(Serving):
    """A node's namespace, its folders, and the processes that answer names there."""

    def __init__(self, node: Netns, folder: Path, **settings: str | float) -> None:
        super().__init__(node, folder / "agent.toml", folder / "run")
        self.folder = folder
        self.cluster = folder / "state" / "cluster"
        self.cluster.mkdir(parents=True)
        self.resolv_conf = folder / "resolv.conf"
        self.resolv_conf.write_text("")
        lines = {
            "dns": "on",
            "state_dir": f"{folder}/state",
            "run_dir": f"{folder}/run",
            "dns_resolv_conf": str(self.resolv_conf),
            **settings,
        }
        self.config.write_text("".join(f"{key} = {json.dumps(v)}\n" for key, v in lines.items()))

    def keep(self, *items: Item) -> None:
        """As the agent does."""
        fresh = self.cluster / f"{KEPT_FILE}.new"
        fresh.write_bytes(encode_items(items))
        fresh.rename(self.cluster / KEPT_FILE)


@pytest.fixture
def make_place(make_netns: NetnsFactory, tmp_path: Path) -> Iterator[Callable[..., Place]]:
    with ExitStack() as undo:

        def make(**settings: str | float) -> Place:
            place = Place(make_netns("node"), tmp_path, **settings)
            undo.callback(place.close)
            return place

        yield make


@pytest.fixture
def place(make_place: Callable[..., Place]) -> Place:
    made = make_place()
    made.keep(*ITEMS)
    made.start()
    return made


def ask(
    at: Netns,
    name: str,
    kind: str = "A",
    *,
    to: str = ADDRESS,
    by_tcp: bool = False,
    edns: int = -1,
    takes_bytes: int = 0,
) -> dns.message.Message:
    """One question, one answer. `edns`: its version, -1 for none, with what is taken by UDP."""
    query = dns.message.make_query(name, kind, use_edns=edns, payload=takes_bytes)
    version = 6 if ":" in to else 4
    if by_tcp:
        with at.connected(to, 53) as client:
            wire = query.to_wire()
            client.sendall(len(wire).to_bytes(2, "big") + wire)
            length = int.from_bytes(_receive(client, 2), "big")
            response = dns.message.from_wire(_receive(client, length))
    else:
        with at.open_socket(version, socket.SOCK_DGRAM) as client:
            client.settimeout(PATIENCE_S / 10)
            client.connect((to, 53))
            response = dns.message.from_wire(_asked_again(client, query.to_wire()))
    assert query.is_response(response)
    return response


def _asked_again(client: socket.socket, question: bytes) -> bytes:
    """A flood of another test may drop a question, or its answer."""
    for _ in range(10):
        client.send(question)
        with contextlib.suppress(TimeoutError):
            return client.recv(4096)
    raise TimeoutError("no answer to ten questions")


def _receive(client: socket.socket, length: int) -> bytes:
    received = b""
    while len(received) < length:
        chunk = client.recv(length - len(received))
        assert chunk, "the server has closed the connection"
        received += chunk
    return received


def values(response: dns.message.Message) -> list[str]:
    return [record.to_text() for rrset in response.answer for record in rrset]


# What is answered


def test_pods_and_the_node_ask_by_udp_and_tcp_and_both_families(
    place: Place, make_netns: NetnsFactory
) -> None:
    pod = make_netns("pod")
    connect_namespaces(place.node, "veth0", pod, "eth0")
    place.node.ip("address add 10.244.7.1/24 dev veth0", "address add fd00:7::1/64 dev veth0 nodad")
    pod.ip(
        "address add 10.244.7.2/24 dev eth0",
        "address add fd00:7::2/64 dev eth0 nodad",
        "route add default via 10.244.7.1",
        "route add default via fd00:7::1",
    )

    for asker, to, by_tcp in itertools.product(
        (pod, place.node), (ADDRESS, ADDRESS_6), (False, True)
    ):
        assert values(ask(asker, WEB, to=to, by_tcp=by_tcp)) == ["10.96.0.10"]
        assert values(ask(asker, WEB, "AAAA", to=to, by_tcp=by_tcp)) == ["fd00:96::10"]
    with place.node.entered(), RouteSocket() as route:
        assert read_underlay(route) == (), "neither it nor a pod leads to another node"


def test_names_are_told_where_the_settings_say_and_no_more_where_they_said_before(
    place: Place,
) -> None:
    assert values(ask(place.node, WEB)) == ["10.96.0.10"]
    other, other_6 = "169.254.77.53", "fd00:53::53"
    listen = f"dns_listen = {json.dumps([other, other_6])}\n"
    place.config.write_text(place.config.read_text() + listen)
    place.started[-1].terminate()
    assert place.started[-1].wait(PATIENCE_S) == 0
    place.start()

    for to, by_tcp in itertools.product((other, other_6), (False, True)):
        assert values(ask(place.node, WEB, to=to, by_tcp=by_tcp)) == ["10.96.0.10"]
    addresses = json.loads(place.node.run("ip", "-j", "address", "show", "dev", "limdns0"))
    assert {each["local"] for each in addresses[0]["addr_info"]} == {other, other_6}
    with pytest.raises(OSError, match=r"refused|unreachable"):
        ask(place.node, WEB, by_tcp=True)


def test_the_c_library_finds_services_by_their_short_names(place: Place) -> None:
    place.resolv_conf.write_text(
        f"nameserver {ADDRESS}\nsearch default.svc.cluster.local svc.cluster.local\n"
        "options ndots:5\n"
    )
    names = ["web", "web.default", WEB, "db-0.db", f"none.{WEB}."]
    script = (
        "import socket, sys, json\n"
        "def ask(name):\n"
        "    try:\n"
        "        return sorted({each[4][0] for each in socket.getaddrinfo(name, 80)})\n"
        "    except socket.gaierror as error:\n"
        "        return [error.errno == socket.EAI_NONAME]\n"
        "print(json.dumps([ask(name) for name in sys.argv[1:]]))\n"
    )
    mounted = f'mount --bind {place.resolv_conf} /etc/resolv.conf && exec "$@"'
    shell = ["unshare", "-m", "sh", "-c", mounted, "sh"]

    found = json.loads(place.node.run(*shell, sys.executable, "-c", script, *names))

    both = ["10.96.0.10", "fd00:96::10"]
    assert found == [both, both, both, ["10.1.0.2"], [True]]


def test_a_changed_file_changes_answers_and_one_that_is_gone_or_cut_does_not(
    make_place: Callable[..., Place],
) -> None:
    place = make_place(dns_metrics_listen="127.0.0.1:9474")
    place.keep(*ITEMS)
    place.start()
    place.keep(Service("default", "web", cluster_ips=("10.96.0.99",)))
    wait_until(lambda: values(ask(place.node, WEB)) == ["10.96.0.99"])
    assert ask(place.node, "db.default.svc.cluster.local").rcode() == dns.rcode.NXDOMAIN

    kept = place.cluster / KEPT_FILE
    kept.write_bytes(kept.read_bytes()[:-5])
    wait_until(lambda: "limpet_dns_trouble 1.0" in figures(place.node, "/metrics"), "it was read")
    assert values(ask(place.node, WEB)) == ["10.96.0.99"]
    kept.unlink()
    assert values(ask(place.node, WEB)) == ["10.96.0.99"]


def test_what_was_heard_is_told_though_the_disk_has_not_taken_it_yet(place: Place) -> None:
    """An SD card takes a second for it, and one that is full takes nothing."""
    journal = ChangeJournal(place.run_dir / JOURNAL_FILE)
    journal.note([encode_item(Service("default", "web", cluster_ips=("10.96.0.99",)))])
    wait_until(lambda: values(ask(place.node, WEB)) == ["10.96.0.99"])
    journal.note([encode_item(Service("default", "web", cluster_ips=("10.96.0.98",)))])
    wait_until(lambda: values(ask(place.node, WEB)) == ["10.96.0.98"])
    journal.note([encode_gone(Service, ("default", "web"))])
    wait_until(lambda: ask(place.node, WEB).rcode() == dns.rcode.NXDOMAIN)


def test_while_nothing_was_ever_heard_of_the_cluster_nobody_is_told_that_a_name_is_not_there(
    make_place: Callable[..., Place],
) -> None:
    """What can be read of a damaged file is answered all the same, and there may be more."""
    place, none = make_place(), "none.default.svc.cluster.local"
    place.start()

    assert ask(place.node, WEB).rcode() == dns.rcode.SERVFAIL
    for content in (b"", bytes(300), encode_items(ITEMS)[:-9]):
        place.started[-1].terminate()
        assert place.started[-1].wait(PATIENCE_S) == 0
        (place.cluster / KEPT_FILE).write_bytes(content)
        place.start()
        assert ask(place.node, none).rcode() == dns.rcode.SERVFAIL
    assert values(ask(place.node, WEB)) == ["10.96.0.10"]
    assert ask(place.node, none).rcode() == dns.rcode.SERVFAIL
    place.keep(*ITEMS)
    wait_until(lambda: ask(place.node, none).rcode() == dns.rcode.NXDOMAIN)
    assert values(ask(place.node, WEB)) == ["10.96.0.10"]


def test_a_node_that_joins_while_the_process_runs_has_names_and_those_of_another_cluster_later(
    make_place: Callable[..., Place],
) -> None:
    """The folder of what the node keeps of its cluster is made, and replaced, as a whole."""
    place = make_place()
    place.cluster.rmdir()
    place.start()
    assert ask(place.node, WEB).rcode() == dns.rcode.SERVFAIL
    place.cluster.mkdir()
    place.keep(*ITEMS)
    wait_until(lambda: values(ask(place.node, WEB)) == ["10.96.0.10"])

    place.cluster.rename(place.folder / "state" / "cluster.old-1")
    place.cluster.mkdir()
    place.keep(Service("default", "web", cluster_ips=("10.96.0.77",)))
    wait_until(lambda: values(ask(place.node, WEB)) == ["10.96.0.77"])


def test_dns_that_is_off_says_how_it_is_turned_on(make_place: Callable[..., Place]) -> None:
    place = make_place(dns="off")

    done = place.run("serve")

    assert done.returncode == 1
    assert 'dns = "on"' in done.stderr
    assert "Traceback" not in done.stderr


# Other names


KNOWN = {
    "www.example.com.": (60, ["192.0.2.80"]),
    "short.example.com.": (1, ["192.0.2.81"]),
    "many.example.com.": (60, [f"192.0.2.{n}" for n in range(1, 51)]),
}
"""By name, the TTL and the addresses that an upstream tells."""


class Upstream:
    """A server of another hand; what is large it tells by TCP only."""

    def __init__(self, at: Netns, address: str) -> None:
        with at.entered():
            self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._udp.bind((address, 53))
        self._tcp.bind((address, 53))
        self._tcp.listen(8)
        self._end, self._ends = socket.socketpair()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._ends.close()
        self._thread.join()
        for each in (self._udp, self._tcp, self._end):
            each.close()

    def _serve(self) -> None:
        while True:
            ready, _, _ = select.select([self._udp, self._tcp, self._end], [], [])
            if self._end in ready:
                return
            if self._udp in ready:
                wire, client = self._udp.recvfrom(4096)
                self._udp.sendto(self._answer(wire, by_tcp=False), client)
            if self._tcp in ready:
                connection, _ = self._tcp.accept()
                with connection:
                    connection.settimeout(PATIENCE_S)
                    length = int.from_bytes(_receive(connection, 2), "big")
                    answer = self._answer(_receive(connection, length), by_tcp=True)
                    connection.sendall(len(answer).to_bytes(2, "big") + answer)

    def _answer(self, wire: bytes, *, by_tcp: bool) -> bytes:
        query = dns.message.from_wire(wire)
        response = dns.message.make_response(query)
        name = query.question[0].name.to_text().lower()
        if name == "large.example.com." and not by_tcp:
            response.flags |= dns.flags.TC
        elif name == "large.example.com.":
            texts = [f"192.0.2.{n}" for n in range(1, 100)]
            response.answer.append(dns.rrset.from_text(name, 60, "IN", "A", *texts))
        elif name in KNOWN:
            ttl_s, addresses = KNOWN[name]
            response.answer.append(dns.rrset.from_text(name, ttl_s, "IN", "A", *addresses))
        else:
            response.set_rcode(dns.rcode.NXDOMAIN)
        return response.to_wire(max_size=65535)


@contextmanager
def upstream(place: Place, address: str = "127.0.0.9") -> Iterator[None]:
    made = Upstream(place.node, address)
    place.resolv_conf.write_text(f"nameserver {ADDRESS}\nnameserver {address}\n")
    try:
        wait_until(lambda: address in place.run("status").stdout)
        yield
    finally:
        made.close()


def test_other_names_are_asked_of_upstreams_and_kept(place: Place) -> None:
    with upstream(place):
        wait_until(lambda: values(ask(place.node, "www.example.com")) == ["192.0.2.80"])
        wait_until(lambda: ask(place.node, "none.example.com").rcode() == dns.rcode.NXDOMAIN)
    # It has gone, and what it said is told on.
    assert values(ask(place.node, "WWW.example.com")) == ["192.0.2.80"]


def test_what_is_too_large_for_udp_comes_by_tcp_all_the_way(place: Place) -> None:
    with upstream(place):
        large = "large.example.com"
        wait_until(lambda: len(values(ask(place.node, large, by_tcp=True))) == 99)
        by_udp = ask(place.node, "large.example.com")
        assert by_udp.flags & dns.flags.TC
        assert len(values(by_udp)) < 99


def test_an_alias_out_of_the_cluster_comes_with_what_it_leads_to(place: Place) -> None:
    with upstream(place):
        name, leads_to = "out.default.svc.cluster.local", ["www.example.com.", "192.0.2.80"]
        wait_until(lambda: values(ask(place.node, name)) == leads_to)


def test_a_person_is_told_what_is_answered_and_why(place: Place) -> None:
    with upstream(place):
        found = place.run("query", WEB)
        assert found.stdout.splitlines() == [
            f"{WEB}. 5 IN A 10.96.0.10",
            f"NOERROR for {WEB} A: Service default/web",
        ]
        other = place.run("query", "www.example.com")
        assert "asked of 127.0.0.9" in other.stdout
        wait_until(lambda: "kept for" in place.run("query", "www.example.com").stdout)
        nothing = place.run("query", "nothing.default.svc.cluster.local")
        assert (nothing.returncode, "NXDOMAIN" in nothing.stdout) == (1, True)
        wrong = place.run("query", "a..b")
        assert wrong.returncode == 1
        assert "Traceback" not in wrong.stderr


def test_without_the_process_a_person_is_told_so(make_place: Callable[..., Place]) -> None:
    done = make_place().run("query", WEB)

    assert done.returncode == 1
    assert "is it running?" in done.stderr


def test_doctor_and_figures_say_how_names_are_answered(
    make_place: Callable[..., Place],
) -> None:
    place = make_place(dns_metrics_listen="127.0.0.1:9474")

    def findings() -> str:
        command = place.command("doctor", "--config", str(place.config))
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert "Traceback" not in done.stderr
        return done.stdout

    assert "error  ask the DNS process at" in findings()
    place.start()
    said = findings()
    assert "error  no Service of the cluster was ever heard of on this node" in said
    assert "warn   no name server is known" in said
    for id in ("dns-no-services", "dns-no-upstream"):
        assert f"see: limpet help {id}\n" in said
    assert "nobody answers names at" not in said
    assert " 503 " in figures(place.node, "/healthz").splitlines()[0]

    place.keep(*ITEMS)
    wait_until(lambda: "ok     names of 3 Services are answered" in findings())
    kept = place.cluster / KEPT_FILE
    kept.write_bytes(kept.read_bytes()[:-5])
    wait_until(lambda: "error  names: services stay as they were" in findings(), "it is stale")
    with upstream(place):
        wait_until(lambda: values(ask(place.node, "www.example.com")) == ["192.0.2.80"])
    ask(place.node, WEB)
    lines = figures(place.node, "/metrics").splitlines()
    assert any(line.startswith('limpet_dns_questions_total{outcome="forwarded"}') for line in lines)
    assert any(line.startswith('limpet_dns_questions_total{outcome="cluster"}') for line in lines)
    assert 'limpet_dns_upstream_up{upstream="127.0.0.9"} 1.0' in lines
    assert "limpet_dns_services 3.0" in lines
    assert "limpet_dns_trouble 1.0" in lines


def figures(at: Netns, path: str) -> str:
    with at.connected("127.0.0.1", 9474) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        received = b""
        while chunk := client.recv(1 << 16):
            received += chunk
    return received.decode()


# The end of a process


@contextmanager
def asking(at: Netns) -> Iterator[Asking]:
    with asking_all_the_time(at.open_socket(4, socket.SOCK_DGRAM), ADDRESS, WEB) as somebody:
        yield somebody


def test_no_question_is_lost_when_the_process_starts_anew(place: Place) -> None:
    with asking(place.node) as somebody:
        for _ in range(2):
            before = place.pid()
            place.started[0].send_signal(signal.SIGHUP)
            wait_until(lambda before=before: place.pid() not in (None, before))  # type: ignore[misc]
            somebody.await_answers(50)

        assert somebody.end() == 0


def test_a_process_that_is_killed_loses_no_question_but_one_in_its_hand(place: Place) -> None:
    with asking(place.node) as somebody:
        before = place.pid()
        assert before is not None
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: place.pid() not in (None, before))
        somebody.await_answers(50)

        assert somebody.end() <= 1


def test_no_question_is_lost_when_another_version_takes_over(place: Place) -> None:
    with asking(place.node) as somebody:
        place.start()
        somebody.await_answers(50)
        place.started[0].terminate()
        place.started[0].wait(PATIENCE_S)
        somebody.await_answers(50)

        assert somebody.end() == 0


def test_a_process_whose_successor_goes_answers_again(place: Place) -> None:
    with asking(place.node) as somebody:
        first = place.pid()
        successor = place.start()
        somebody.await_answers(50)
        successor.terminate()
        successor.wait(PATIENCE_S)
        somebody.await_answers(50)

        assert somebody.end() == 0
    # And says so, to a person and to the next one.
    wait_until(lambda: place.pid() == first)
    assert place.start().poll() is None
    assert values(ask(place.node, WEB)) == ["10.96.0.10"]


def test_a_pod_is_ready_when_it_has_taken_over_and_not_while_the_one_before_it_answers(
    place: Place,
) -> None:
    """As a kubelet's probes ask, which see no more than their own pod's environment."""

    def ready(pod: str, *words: str) -> int:
        command = place.command("dns", "ready", "--socket", str(place.run_dir / "dns.sock"), *words)
        environment = {**os.environ, "LIMPET_POD": pod}
        return subprocess.run(command, env=environment, capture_output=True, check=False).returncode

    assert (ready(""), ready("new"), ready("new", "--any")) == (0, 1, 0)

    place.start(LIMPET_POD="new")
    assert (ready(""), ready("new"), ready("", "--any")) == (1, 0, 0)

    place.close()
    assert (ready("new"), ready("new", "--any"), ready("new", "--nonsense")) == (1, 1, 2)


# What the agent knows of nodes and pods


def test_the_dead_are_left_out_for_as_long_as_the_agent_says_so(place: Place) -> None:
    where = {"10.1.0.2": "near", "10.1.0.3": "far", "10.1.0.4": "far"}
    ends = tuple(Endpoint(address, node=node) for address, node in where.items())
    place.keep(*ITEMS[:2], EndpointSlice("default", "db-1", "db", 4, (), ends))
    name = "db.default.svc.cluster.local"

    def say(at_s: float, **known: Any) -> None:
        here = Here("here", distances={"near": 1, "far": 2}, **known)
        fresh = place.run_dir / "here.new"
        fresh.write_bytes(encode_here(here, at_s))
        fresh.rename(place.run_dir / HERE_FILE)

    say(time.monotonic())
    wait_until(lambda: values(ask(place.node, name))[:1] == ["10.1.0.2"], "near ones are first")
    say(time.monotonic(), silent=frozenset({"near"}), gone=frozenset({"10.1.0.3"}))
    wait_until(lambda: values(ask(place.node, name)) == ["10.1.0.4"], "none is dead")

    # The agent has died meanwhile, and they may be back.
    say(time.monotonic() - 2 * FORGET_AFTER_S, silent=frozenset({"near"}))
    wait_until(lambda: len(values(ask(place.node, name))) == 3, "nobody says so any more")
    (place.run_dir / HERE_FILE).write_bytes(b"nonsense")
    assert len(values(ask(place.node, name))) == 3


def test_sockets_come_from_a_service_manager_and_go_back_to_it(
    make_place: Callable[..., Place],
) -> None:
    """As systemd does it: what the process stores is there for the next one, at the same ports."""
    place = make_place()
    place.keep(*ITEMS)
    with place.node.entered():  # names of this kind are a network namespace's own
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with manager:
        manager.bind("")
        manager.settimeout(PATIENCE_S)
        process = subprocess.Popen(
            place.command("dns", "serve", "--config", str(place.config)),
            env={**os.environ, "NOTIFY_SOCKET": "@" + manager.getsockname()[1:].decode()},
        )
        place.started.append(process)
        said: list[str] = []
        stored: Sequence[int] = []
        while "READY=1" not in said:
            words, fds, _, _ = socket.recv_fds(manager, 4096, 64)
            said += words.decode().splitlines()
            stored = fds or stored

    assert "FDSTORE=1" in said
    ends: set[tuple[Any, ...]] = set()
    for fd in stored:
        with socket.socket(fileno=fd) as each:
            ends.add((each.type, *each.getsockname()[:2]))
    kinds = (socket.SOCK_DGRAM, socket.SOCK_STREAM)
    assert ends == {(kind, address, 53) for kind in kinds for address in (ADDRESS, ADDRESS_6)}
