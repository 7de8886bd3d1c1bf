"""The process that answers names, under questions that nobody would ask."""

from __future__ import annotations

import contextlib
import random
import socket

from tests.dns.test_process import ADDRESS, WEB, Place, ask, make_place, place, values
from tests.fuzz.live.bed import THROWN_S, Thrower, lives_on

__all__ = ["make_place", "place"]


def pid_of(place: Place) -> int:
    pid = place.pid()
    assert pid is not None
    return pid


def test_questions_of_all_kinds_end_no_process_and_keep_no_memory(
    place: Place, chance: random.Random
) -> None:
    thrower = Thrower(chance)
    questions = ("dns-query", "dns-question-answered", "dns-answer-of-an-upstream")

    with lives_on(lambda: pid_of(place)):
        with place.node.open_socket(4, socket.SOCK_DGRAM) as client:
            client.setblocking(False)
            client.connect((ADDRESS, 53))
            for data in thrower.inputs(*questions, most_s=THROWN_S / 2):
                with contextlib.suppress(OSError):
                    client.send(data)
                with contextlib.suppress(OSError):
                    client.recv(1 << 16)
        inputs = thrower.inputs(*questions, most_s=THROWN_S / 2)
        for data in inputs:
            with contextlib.suppress(OSError), place.node.connected(ADDRESS, 53) as client:
                length = len(data) if chance.random() < 0.8 else chance.randrange(1 << 16)
                client.sendall(length.to_bytes(2, "big") + data)
                for _, more in zip(range(20), inputs, strict=False):
                    client.sendall(len(more).to_bytes(2, "big") + more)
        throw_at_the_control_socket(place, thrower)
        assert values(ask(place.node, WEB)) == ["10.96.0.10"]

    assert thrower.count > 100


def throw_at_the_control_socket(place: Place, thrower: Thrower) -> None:
    for data in (
        b"[" * 4000,
        b"\xff",
        b'"ask"',
        b"{",
        *thrower.inputs("network-policy", most_s=0.1),
    ):
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client,
        ):
            client.settimeout(5)
            client.connect(str(place.run_dir / "dns.sock"))
            client.sendall(data[:4000])
