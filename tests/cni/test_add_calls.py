"""What an ADD asks of the kernel, and that its pod is announced behind its answer.

The agent's own interpreter tells of both, in their order: of what is sent to netlink at the one
place where that is done, of calls of sockets, of the answer and of the announcements.
"""

from __future__ import annotations

import json
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path

import pytest

from limpet.lab.world.node import LabNode
from limpet.lab.world.pod import LabPod
from limpet.linux.namespaces import Namespace
from limpet.linux.netlink.codec import (
    RTM_GETLINK,
    RTM_NEWADDR,
    RTM_NEWLINK,
    RTM_NEWNEIGH,
    RTM_NEWROUTE,
    RTM_SETLINK,
)
from limpet.linux.packets.frames import announcement
from tests.conftest import SEGMENTS, NodeFactory
from tests.waiting import wait_until

PROFILE = """
import os, socket, struct, sys, threading, time

log = os.open(os.environ["WATCHED"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

def tell(*words):
    os.write(log, (" ".join(map(str, words)) + chr(10)).encode())

def place(frame):
    return frame.f_code.co_filename.rpartition("/limpet/")[2] + " " + frame.f_code.co_name

def is_of_an_add(frame):
    while frame is not None and place(frame) != "cni/verbs.py _make":
        frame = frame.f_back
    return frame is not None

def types(frames):
    at = 0
    while at < len(frames):
        size, kind = struct.unpack_from("=IH", frames, at)
        yield kind
        at += size + 3 & ~3

def watch(frame, event, argument):
    if event == "call":
        at = place(frame)
        if at == "linux/netlink/socket.py _send" and is_of_an_add(frame):
            tell("sent", *types(frame.f_locals["frames"]))
        elif at == "linux/netlink/socket.py _open_socket" and is_of_an_add(frame):
            tell("called", "socket")
        elif at == "datapath/node/pod/announcer.py announce":
            tell("to-announce")
    elif event == "c_call":
        name, of = argument.__name__, getattr(argument, "__self__", None)
        if (isinstance(of, socket.socket) or name == "ioctl") and is_of_an_add(frame):
            tell("called", name)
        elif name == "sendto" and place(frame) == "datapath/node/pod/announcer.py _run":
            tell("announced")
    elif event == "c_return" and place(frame) == "cni/server.py _write":
        if argument.__name__ == "send":
            tell("answered", time.time_ns())

sys.setprofile(watch)
threading.setprofile(watch)
"""
NFTABLES_BATCH = (16, (10 << 8) | 12, (10 << 8) | 12, 17)
"""Between its begin and its end: elements of a pod's sets of both IP versions.

Source: include/uapi/linux/netfilter/nfnetlink.h, nf_tables.h (NFT_MSG_NEWSETELEM).
"""

_ALL_FRAMES = 0x0003
"""ETH_P_ALL."""
_SO_TIMESTAMPNS = 35


class CountedNode:
    """A node whose agent tells what its ADDs ask of the kernel."""

    def __init__(self, node: LabNode, folder: Path) -> None:
        self.node = node
        self._log = folder / "watched"
        (folder / "sitecustomize.py").write_text(PROFILE)
        node.agent_environment = {"PYTHONPATH": str(folder), "WATCHED": str(self._log)}
        node.start_agent()

    def add(self, name: str) -> list[str]:
        """What was done for a pod, until its two addresses were announced."""
        self._log.write_text("")
        self.node.pod(name).add()
        wait_until(lambda: self._done().count("announced") == 2, "it is announced")
        return self._done()

    def _done(self) -> list[str]:
        return self._log.read_text().splitlines()


@pytest.fixture
def counted(make_node: NodeFactory, tmp_path: Path) -> CountedNode:
    found = CountedNode(make_node(segments=SEGMENTS), tmp_path)
    found.add("first")  # the bridge is made, and its carrier is waited for
    return found


def test_an_add_sends_five_times_to_netlink_and_reads_one_link_back(counted: CountedNode) -> None:
    sent = [
        tuple(map(int, line.split()[1:])) for line in counted.add("pod") if line.startswith("sent ")
    ]
    # Before Linux 6.8 it is asked again until the link passes packets.
    assert [each for each, _ in groupby(sent)] == [
        NFTABLES_BATCH,
        (RTM_NEWLINK,),
        (RTM_NEWADDR, RTM_NEWADDR, RTM_SETLINK, RTM_NEWROUTE, RTM_NEWROUTE),
        (RTM_GETLINK,),
        (RTM_NEWNEIGH, RTM_NEWNEIGH),
    ]


def test_an_add_opens_one_socket_and_sets_three_options_of_it(counted: CountedNode) -> None:
    calls = Counter(line.split()[1] for line in counted.add("pod") if line.startswith("called "))
    asked_again = calls["send"] - 5
    assert asked_again >= 0
    assert calls == {
        "socket": 1,
        "setsockopt": 3,
        "ioctl": 2,
        "send": 5 + asked_again,
        # One more looks whether something has come unasked.
        "recv": 6 + asked_again,
        "close": 1,
    }


@contextmanager
def hearing(pod: LabPod) -> Iterator[Callable[[], dict[bytes, int]]]:
    """Frames that have come to a pod, with the kernel's time of each (ns)."""
    with Namespace(pod.netns_path) as netns, netns.entered():
        heard = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_FRAMES))
    found: dict[bytes, int] = {}

    def take() -> dict[bytes, int]:
        with suppress(BlockingIOError):
            while True:
                frame, controls, _, _ = heard.recvmsg(2048, 256)
                ((_, _, stamp),) = controls
                seconds, rest = struct.unpack("qq", stamp)
                found.setdefault(frame, seconds * 10**9 + rest)
        return found

    with heard:
        heard.setblocking(False)
        heard.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        heard.bind(("eth0", 0))
        yield take


def test_a_pod_is_announced_behind_the_answer_of_its_add(counted: CountedNode) -> None:
    with hearing(counted.node.pods["first"]) as frames:
        done = counted.add("pod")
        words = [line.split()[0] for line in done]
        order = [each for each in words if each in ("answered", "to-announce", "announced")]
        assert order == ["answered", "to-announce", "announced", "announced"]

        pod = counted.node.pods["pod"]
        mac = json.loads(pod.run("ip", "-j", "link", "show", "eth0"))[0]["address"]
        told = [announcement(each.ip, mac) for each in pod.addresses]
        wait_until(lambda: frames().keys() >= {*told}, "other pods hear of it")
        answered_ns = int(done[words.index("answered")].split()[1])
        assert all(frames()[each] > answered_ns for each in told)
