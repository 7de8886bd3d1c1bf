"""Clients that ask too much at once, in pieces, and nonsense: others are answered all the same."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import dns.flags
import dns.message
import dns.rcode
import pytest

from tests.beds.namespaces import Netns, NetnsFactory, connect_namespaces
from tests.dns.test_process import (
    ADDRESS,
    ADDRESS_6,
    ITEMS,
    WEB,
    Place,
    ask,
    make_place,
    place,
    upstream,
    values,
)
from tests.waiting import PATIENCE_S, wait_until

__all__ = ["make_place", "place"]

BOTH = pytest.mark.parametrize("address", [ADDRESS, ADDRESS_6])
_MANY = 500
"""Questions of one connection at once: more than are answered in one turn."""


def framed(name: str, number: int) -> bytes:
    wire = dns.message.make_query(name, "A", id=number).to_wire()
    return len(wire).to_bytes(2, "big") + wire


def answers_of(client: socket.socket, count: int) -> dict[int, dns.message.Message]:
    received, found = b"", dict[int, dns.message.Message]()
    while len(found) < count:
        chunk = client.recv(1 << 16)
        assert chunk, "the server has closed the connection"
        received += chunk
        while len(received) >= 2 and len(received) >= 2 + int.from_bytes(received[:2], "big"):
            end = 2 + int.from_bytes(received[:2], "big")
            message = dns.message.from_wire(received[2:end])
            assert message.id not in found, "answered twice"
            found[message.id] = message
            received = received[end:]
    return found


@BOTH
def test_many_questions_of_one_connection_at_once_are_all_answered(
    place: Place, address: str
) -> None:
    with upstream(place), place.node.connected(address, 53) as client:
        # What an upstream answers comes later than what is known, and holds nothing up.
        client.sendall(framed("www.example.com", _MANY))
        client.sendall(b"".join(framed(WEB, number) for number in range(_MANY)))
        found = answers_of(client, _MANY + 1)

    assert {tuple(values(found[number])) for number in range(_MANY)} == {("10.96.0.10",)}
    assert values(found[_MANY]) == ["192.0.2.80"]


def test_a_question_may_come_in_pieces_and_another_behind_it(place: Place) -> None:
    with place.node.connected(ADDRESS, 53) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        whole = framed(WEB, 1) + framed(WEB, 2)
        for at in range(len(whole)):
            client.sendall(whole[at : at + 1])
        assert set(answers_of(client, 2)) == {1, 2}


@pytest.mark.parametrize(
    ("address", "of_other"), [(ADDRESS, "127.0.0.5"), (ADDRESS_6, "fd00:5::5")]
)
def test_one_client_s_connections_leave_room_for_others(
    place: Place, address: str, of_other: str
) -> None:
    place.node.ip("address add fd00:5::5/128 dev lo nodad")
    with ExitStack() as undo:
        held = [undo.enter_context(place.node.connected(address, 53)) for _ in range(40)]
        assert not is_closed(held[-1]), "the newest has a place, and all before it were accepted"
        closed = [client for client in held if is_closed(client)]
        assert 0 < len(closed) < len(held)
        with place.node.connected(address, 53, source=of_other) as other:
            other.sendall(framed(WEB, 7))
            assert values(answers_of(other, 1)[7]) == ["10.96.0.10"]
    # And for itself, once it has closed some.
    wait_until(lambda: asked_by_tcp(place.node, address))


def is_closed(client: socket.socket) -> bool:
    """By the server; else it answers."""
    try:
        client.sendall(framed(WEB, 3))
        return not client.recv(2)
    except ConnectionError:
        return True


def asked_by_tcp(at: Netns, address: str) -> bool:
    try:
        return values(ask(at, WEB, to=address, by_tcp=True)) == ["10.96.0.10"]
    except (AssertionError, ConnectionError):
        return False


@BOTH
def test_nonsense_by_udp_and_tcp_is_survived(place: Place, address: str) -> None:
    dice = random.Random(53)
    good = dns.message.make_query(WEB, "SRV", use_edns=0).to_wire()
    with place.node.open_socket(6 if ":" in address else 4, socket.SOCK_DGRAM) as client:
        client.connect((address, 53))
        for _ in range(2000):
            message = bytearray(good[: dice.randrange(len(good) + 1)])
            for _ in range(dice.randrange(4)):
                if message:
                    message[dice.randrange(len(message))] = dice.randrange(256)
            client.send(bytes(message))
    for _ in range(20):
        with place.node.connected(address, 53) as client:
            client.sendall(dice.randbytes(dice.randrange(1, 3000)))

    # By TCP first: of whoever floods, what is one too many by UDP is dropped.
    assert asked_by_tcp(place.node, address)
    wait_until(lambda: json.loads(told(place))["questions"]["refused"] > 0)
    assert values(ask(place.node, WEB, to=address)) == ["10.96.0.10"]
    status = place.run("status").stdout
    assert "refused" in status


def test_a_name_that_a_pod_asks_for_in_any_capitals_comes_back_so(place: Place) -> None:
    for name in ("WEB.default.SVC.cluster.local", "wEb.DeFaUlT.sVc.ClUsTeR.lOcAl"):
        response = ask(place.node, name)
        assert values(response) == ["10.96.0.10"]
        assert response.question[0].name.to_text(omit_final_dot=True) == name
        assert response.answer[0].name.to_text(omit_final_dot=True) == name


def test_an_upstream_that_is_ourselves_is_found_and_left_out(
    make_place: Callable[..., Place],
) -> None:
    place = make_place(dns_upstreams=[ADDRESS])
    place.keep(*ITEMS)
    place.start()

    wait_until(lambda: "sends our questions back to us" in place.run("status").stdout)
    assert ask(place.node, "www.example.com").rcode() == dns.rcode.SERVFAIL
    assert values(ask(place.node, WEB)) == ["10.96.0.10"]


def test_a_boot_while_cut_off_is_answered_from_the_disk(make_place: Callable[..., Place]) -> None:
    """No agent, no API server, no upstream, nothing of ours in the kernel, nothing in /run."""
    place = make_place()
    place.resolv_conf.unlink()
    place.keep(*ITEMS)
    place.start()

    assert values(ask(place.node, WEB)) == ["10.96.0.10"]
    assert values(ask(place.node, f"_http._tcp.{WEB}", "SRV")) == [f"0 100 80 {WEB}."]
    assert ask(place.node, "www.example.com").rcode() == dns.rcode.SERVFAIL


_FLOOD = """
import socket, sys
question = bytes.fromhex(sys.argv[2])
family = socket.AF_INET6 if ":" in sys.argv[3] else socket.AF_INET
with socket.socket(family, socket.SOCK_DGRAM) as flood:
    flood.bind((sys.argv[1], 0))
    flood.connect((sys.argv[3], 53))
    sys.stdout.write("up\\n")
    sys.stdout.flush()
    while True:
        try:
            flood.send(question)
        except OSError:
            pass
"""


@contextmanager
def flooding(at: Netns, source: str, address: str) -> Iterator[None]:
    """A client that asks as often as it can, and takes no answer."""
    question = dns.message.make_query(WEB, "A").to_wire().hex()
    process = subprocess.Popen(
        ["nsenter", f"--net={at.path}", sys.executable, "-c", _FLOOD, source, question, address],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "up\n"
        yield
    finally:
        process.kill()
        process.communicate()


@BOTH
def test_a_flood_of_one_client_s_questions_leaves_others_theirs(
    place: Place, make_netns: NetnsFactory, address: str
) -> None:
    version = 6 if ":" in address else 4
    pods, sources = [make_netns("flood"), make_netns("pod")], list[str]()
    for number, pod in enumerate(pods):
        connect_namespaces(place.node, f"veth{number}", pod, "eth0")
        subnet = f"10.244.{number}." if version == 4 else f"fd00:{number + 7}::"
        prefix_bits, quick = (24, "") if version == 4 else (64, " nodad")
        place.node.ip(f"address add {subnet}1/{prefix_bits} dev veth{number}{quick}")
        pod.ip(
            f"address add {subnet}2/{prefix_bits} dev eth0{quick}",
            f"route add default via {subnet}1",
        )
        sources.append(f"{subnet}2")
    query = dns.message.make_query(WEB, "A")
    with (
        flooding(pods[0], sources[0], address),
        pods[1].open_socket(version, socket.SOCK_DGRAM) as client,
    ):
        client.settimeout(PATIENCE_S / 10)
        client.connect((address, 53))
        wait_until(lambda: dropped(place) > 10_000, "the flood is more than is answered")
        for number in range(100):
            query.id = number
            assert is_answered(place, client, query), "a question was lost"


@BOTH
def test_a_stranger_of_the_lan_is_sent_no_more_by_udp_than_it_sends(
    place: Place, make_netns: NetnsFactory, address: str
) -> None:
    """In another's name it had a thousand bytes sent there for each fifty."""
    stranger = make_netns("stranger")
    connect_namespaces(place.node, "eth0", stranger, "eth0")
    for netns, number in ((place.node, 1), (stranger, 2)):
        netns.ip(
            f"address add 192.0.2.{number}/24 dev eth0",
            f"address add 2001:db8::{number}/64 dev eth0 nodad",
        )
    stranger.ip(
        f"route add {ADDRESS}/32 via 192.0.2.1", f"-6 route add {ADDRESS_6} via 2001:db8::1"
    )
    for edns in (-1, 0):
        query = dns.message.make_query(WEB, "A", use_edns=edns)
        answer = ask(stranger, WEB, "A", to=address, edns=edns, takes_bytes=1232)

        assert answer.flags & dns.flags.TC
        assert len(answer.to_wire()) <= len(query.to_wire())
    assert values(ask(stranger, WEB, to=address, by_tcp=True)) == ["10.96.0.10"]
    assert values(ask(place.node, WEB, to=address)) == ["10.96.0.10"]
    assert json.loads(told(place))["questions"]["sent_to_tcp"] == 2


def is_answered(place: Place, client: socket.socket, query: dns.message.Message) -> bool:
    """Asked up to three times, as by resolv.conf(5) `attempts`, where the kernel's queue was full:
    others keep the process from its processor. What the process has got is answered."""
    for _ in range(3):
        before = overflows(place)
        client.send(query.to_wire())
        with contextlib.suppress(TimeoutError):
            while dns.message.from_wire(client.recv(4096)).id != query.id:
                pass  # the answer to an earlier one, late
            return True
        assert overflows(place) > before, "a question was lost that found room in the queue"
    return False


def overflows(place: Place) -> int:
    """Datagrams that found no room, at the process or in the queue that all namespaces share.
    Source: proc(5), /proc/net/snmp and, of IPv6, snmp6; softnet_seq_show in net-procfs.c."""
    lines = place.node.run("cat", "/proc/net/snmp").splitlines()
    names, values = (each.split() for each in lines if each.startswith("Udp:"))
    of_ipv4 = int(dict(zip(names, values, strict=True))["RcvbufErrors"])
    six = dict(line.split() for line in place.node.run("cat", "/proc/net/snmp6").splitlines())
    shared = Path("/proc/net/softnet_stat").read_text(encoding="ascii").splitlines()
    dropped = sum(int(line.split()[1], 16) for line in shared)
    return of_ipv4 + int(six["Udp6RcvbufErrors"]) + dropped


def told(place: Place) -> bytes:
    """What the process says of itself."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(PATIENCE_S)
        asking.connect(str(place.run_dir / "dns.sock"))
        asking.sendall(b'{"ask": "status"}\n')
        return asking.recv(1 << 16)


def dropped(place: Place) -> int:
    """Questions of whoever had too many waiting."""
    return int(json.loads(told(place))["questions"]["dropped"])
