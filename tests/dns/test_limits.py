"""Clients that ask too much at once, in pieces, and nonsense: others are answered all the same."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from contextlib import ExitStack

import dns.message
import dns.rcode

from tests.beds.namespaces import Netns
from tests.dns.test_process import (
    ADDRESS,
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


def test_many_questions_of_one_connection_at_once_are_all_answered(place: Place) -> None:
    with upstream(place), place.node.connected(ADDRESS, 53) as client:
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


def test_one_client_s_connections_leave_room_for_others(place: Place) -> None:
    with ExitStack() as undo:
        held = [undo.enter_context(place.node.connected(ADDRESS, 53)) for _ in range(40)]
        closed = [client for client in held if is_closed(client)]
        assert 0 < len(closed) < len(held)
        with place.node.open_socket(4, socket.SOCK_STREAM) as other:
            other.settimeout(PATIENCE_S)
            other.bind(("127.0.0.5", 0))
            other.connect((ADDRESS, 53))
            other.sendall(framed(WEB, 7))
            assert values(answers_of(other, 1)[7]) == ["10.96.0.10"]
    # And for itself, once it has closed some.
    wait_until(lambda: asked_by_tcp(place.node))


def is_closed(client: socket.socket) -> bool:
    """By the server; else it answers."""
    try:
        client.sendall(framed(WEB, 3))
        return not client.recv(2)
    except ConnectionError:
        return True


def asked_by_tcp(at: Netns) -> bool:
    try:
        return values(ask(at, WEB, by_tcp=True)) == ["10.96.0.10"]
    except (AssertionError, ConnectionError):
        return False


def test_nonsense_by_udp_and_tcp_is_survived(place: Place) -> None:
    dice = random.Random(53)
    good = dns.message.make_query(WEB, "SRV", use_edns=0).to_wire()
    with place.node.open_socket(4, socket.SOCK_DGRAM) as client:
        client.connect((ADDRESS, 53))
        for _ in range(2000):
            message = bytearray(good[: dice.randrange(len(good) + 1)])
            for _ in range(dice.randrange(4)):
                if message:
                    message[dice.randrange(len(message))] = dice.randrange(256)
            client.send(bytes(message))
    for _ in range(20):
        with place.node.connected(ADDRESS, 53) as client:
            client.sendall(dice.randbytes(dice.randrange(1, 3000)))

    assert values(ask(place.node, WEB)) == ["10.96.0.10"]
    assert asked_by_tcp(place.node)
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
