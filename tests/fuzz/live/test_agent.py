"""An agent under frames that no shim sends, and on a disk that others have changed."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from limpet.lab.command import LabError
from limpet.lab.world.node import LabNode
from tests.agent.test_agent import live
from tests.conftest import SEGMENTS, NodeFactory
from tests.fuzz.live.bed import Thrower, lives_on
from tests.waiting import wait_until


def test_frames_of_all_kinds_end_no_agent_and_keep_no_memory(
    node: LabNode, chance: random.Random
) -> None:
    thrower = Thrower(chance)
    node.pod("before").add()
    held: list[socket.socket] = []

    with lives_on(lambda: node.agent_pid):
        for data in thrower.inputs("frame-to-the-agent", "network-configuration", "frame-heads"):
            client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            client.settimeout(5)
            with contextlib.suppress(OSError):
                client.connect(str(node.socket))
                client.sendall(framed(data, chance))
                if chance.random() < 0.05:
                    held.append(client)  # half a request, and nothing more
                    continue
                client.shutdown(socket.SHUT_WR)
                client.recv(1 << 16)
            client.close()
            while len(held) > 20:
                held.pop(0).close()
        node.pod("after").add()

    assert thrower.count > 100
    assert len(live(node)) == 4
    for client in held:
        client.close()


def framed(data: bytes, chance: random.Random) -> bytes:
    """Mostly as a shim would: with its mark, and the right length."""
    if chance.random() < 0.1:
        return data
    length = len(data) if chance.random() < 0.9 else chance.randrange(1 << 32)
    return struct.pack("<4sI", b"LMP1", length) + data


# What others have put where the agent's files are

Place = Callable[[Path], None]


def fifo(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()
    (path / "file").write_text("x")


def link_to_nothing(path: Path) -> None:
    path.symlink_to("/nonexistent/file")


def link_without_end(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_itself(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("place", [fifo, folder, link_to_nothing, link_without_end, link_to_itself])
def test_whatever_lies_in_the_place_of_a_file_holds_no_agent_up(
    make_node: NodeFactory, place: Place
) -> None:
    """It serves, or ends in words: it neither waits for ever nor dies by a traceback."""
    node = make_node(segments=SEGMENTS)
    node.start_agent()
    node.pod("one").add()
    node.stop_agent()
    names = node.data_dir / "limpet"
    for path in (
        names / "10.244.7.9_shop_web-0",
        names / "fd00:7::9",
        names / "last_reserved_ip.0",
        node.run_dir / "attachments" / "other.json",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        place(path)

    node.start_agent()

    node.pod("two").add()
    assert len(live(node)) >= 3
    assert "Traceback" not in node.log()


@pytest.mark.parametrize("place", [fifo, folder, link_without_end])
def test_what_must_be_known_and_cannot_be_read_ends_the_agent_in_words(
    make_node: NodeFactory, place: Place
) -> None:
    node = make_node(segments=SEGMENTS)
    state = node.folder / "state"
    state.mkdir(parents=True)
    place(state / "sysctls.json")

    with pytest.raises(LabError, match=r"sysctls\.json"):
        node.start_agent()

    assert "Traceback" not in node.log()


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """What another user of the machine would have the agent write to."""
    victim = tmp_path / "victim"
    victim.write_text("not ours")
    victim.chmod(0o640)
    yield victim
    assert victim.read_text() == "not ours"
    assert victim.stat().st_mode & 0o777 == 0o640


def test_a_data_dir_that_is_a_link_is_used_and_what_it_names_is_not_followed_further(
    make_node: NodeFactory, tmp_path: Path, victim: Path
) -> None:
    real = tmp_path / "real" / "limpet"
    real.mkdir(parents=True)
    names = ("10.244.7.2", "10.244.7.2_default_one", "limpet.journal.new")
    for name in names:
        (real / name).symlink_to(victim)
    node = make_node(segments=SEGMENTS)
    node.data_dir.symlink_to(real.parent)

    node.start_agent()
    pod = node.pod("one")
    pod.add()

    address = pod.addresses[0].ip  # by the names of the links it may be the pod's own, or another's
    written = real / f"{address}_default_one"
    wait_until(lambda: written.is_file() and '"pod": "one"' in written.read_text())
    wait_until(lambda: not any((real / name).is_symlink() for name in names[:2]))
    assert not written.is_symlink()
    assert "Traceback" not in node.log()


def test_a_lock_that_is_a_link_is_refused_by_its_name(make_node: NodeFactory, victim: Path) -> None:
    node = make_node(segments=SEGMENTS)
    (node.data_dir / "limpet").mkdir(parents=True)
    (node.data_dir / "limpet" / "lock").symlink_to(victim)

    node.start_agent()
    with pytest.raises(LabError, match=r"limpet/lock"):
        node.pod("one").add()

    assert "Traceback" not in node.log()


def test_a_journal_that_is_a_link_is_set_aside_as_a_damaged_one(
    make_node: NodeFactory, victim: Path
) -> None:
    node = make_node(segments=SEGMENTS)
    journal = node.data_dir / "limpet" / "limpet.journal"
    journal.parent.mkdir(parents=True)
    journal.symlink_to(victim)

    node.start_agent()
    node.pod("one").add()

    assert not journal.is_symlink()
    assert "Traceback" not in node.log()
