"""Processes, agents and commands of other versions, as they meet the one that answers names during
an upgrade: it goes on answering."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from limpet.base.errors import LimpetError
from limpet.cli.names import ask_names
from limpet.dns.handover import ready
from limpet.dns.status.answers import NamesStatus
from limpet.services.kept_here import HERE_FILE, encode_here
from limpet.services.rotation import Here
from tests.dns.test_process import ITEMS, WEB, Place, ask, make_place, place, values
from tests.waiting import PATIENCE_S, wait_until

__all__ = ["make_place", "place"]
LATER = "it is of version 2, this Limpet knows 1"


@contextmanager
def said_to(place: Place, words: bytes) -> Iterator[tuple[socket.socket, bytes, list[int]]]:
    """A connection to `dns.sock` on which that was said, and what came back, with descriptors."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(PATIENCE_S)
        asking.connect(str(place.run_dir / "dns.sock"))
        asking.sendall(words)
        said, fds, _, _ = socket.recv_fds(asking, 1 << 16, 32)
        try:
            yield asking, said, fds
        finally:
            for fd in fds:
                os.close(fd)


def test_a_process_that_says_no_version_takes_over_and_gives_back(place: Place) -> None:
    """As those of before there were versions do it, byte for byte."""
    with said_to(place, b'{"ask": "sockets"}\n') as (next_one, said, fds):
        assert said == b"sockets\n"
        next_one.sendall(b"taken\n")
        udp = next(
            each
            for each in (socket.socket(fileno=os.dup(fd)) for fd in fds)
            if (each.family, each.type) == (socket.AF_INET, socket.SOCK_DGRAM)
        )
        with udp, place.node.open_socket(4, socket.SOCK_DGRAM) as client:
            udp.setblocking(True)
            udp.settimeout(PATIENCE_S)
            wait_until(lambda: _arrives(client, udp), "the process before leaves them alone")
    wait_until(lambda: values(ask(place.node, WEB)) == ["10.96.0.10"], "it answers again")


def _arrives(client: socket.socket, at: socket.socket) -> bool:
    client.sendto(b"no question", ("169.254.20.10", 53))
    at.settimeout(0.2)
    try:
        return at.recv(100) == b"no question"
    except TimeoutError:
        return False


@pytest.mark.parametrize("request_", ["sockets", "status", "query"])
def test_a_later_request_is_refused_in_words_and_names_are_answered_still(
    place: Place, request_: str
) -> None:
    words = json.dumps({"ask": request_, "version": 2, "name": WEB}).encode() + b"\n"
    with said_to(place, words) as (_, said, fds):
        assert LATER in json.loads(said)["error"]
        assert fds == []
    assert values(ask(place.node, WEB)) == ["10.96.0.10"]
    assert place.run("status").returncode == 0


@contextmanager
def in_its_place(run_dir: Path, answer: bytes) -> Iterator[list[bytes]]:
    """A process that answers every request with that, and a descriptor; what it was asked."""
    run_dir.mkdir(parents=True, exist_ok=True)
    heard: list[bytes] = []
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(run_dir / "dns.sock"))
    listener.listen()

    def serve() -> None:
        while True:
            try:
                asking, _ = listener.accept()
            except OSError:
                return
            with asking:
                heard.append(asking.recv(4096))
                socket.send_fds(asking, [answer], [listener.fileno()])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield heard
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE_S)
        listener.close()


def is_answered(place: Place) -> bool:
    try:
        return values(ask(place.node, WEB)) == ["10.96.0.10"]
    except ConnectionRefusedError:  # its own sockets are not open yet
        return False


def test_a_process_begins_without_the_sockets_of_a_later_one(
    make_place: Callable[..., Place], capfd: pytest.CaptureFixture[str]
) -> None:
    place = make_place()
    place.keep(*ITEMS)
    with in_its_place(place.run_dir, b"sockets 2\n") as heard:
        command = place.command("dns", "serve", "--config", str(place.config))
        place.started.append(subprocess.Popen(command))
        wait_until(lambda: heard, "it asks")
        wait_until(lambda: is_answered(place), "it answers")
    assert json.loads(heard[0]) == {"ask": "sockets", "version": 1}
    assert LATER in capfd.readouterr().err


def test_commands_say_what_a_later_process_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with in_its_place(tmp_path, b'{"error": "it is of version 1, here it takes 2"}\n'):
        with pytest.raises(LimpetError, match="it is of version 1, here it takes 2"):
            ask_names(tmp_path, {"ask": "status"}, NamesStatus)
        assert ready.main(["--socket", str(tmp_path / "dns.sock")]) == 1
    assert "it is of version 1, here it takes 2" in capsys.readouterr().err


def test_what_a_later_agent_says_is_refused_in_words_and_names_are_answered_still(
    place: Place,
) -> None:
    def say(content: bytes) -> None:
        fresh = place.run_dir / "here.new"
        fresh.write_bytes(content)
        fresh.rename(place.run_dir / HERE_FILE)

    def trouble() -> str:
        return ask_names(place.run_dir, {"ask": "status"}, NamesStatus).trouble

    ours = msgspec.json.decode(encode_here(Here("here"), time.monotonic()))
    say(msgspec.json.encode({"version": 2, "here": "anything"}))
    wait_until(lambda: "it has format 2, this Limpet knows 1" in trouble(), "it is told")
    assert values(ask(place.node, WEB)) == ["10.96.0.10"]

    # As agents said it before there were versions.
    del ours["version"]
    say(msgspec.json.encode(ours))
    wait_until(lambda: trouble() == "", "it is understood")
