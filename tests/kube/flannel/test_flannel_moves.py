"""A node moves from flannel to Limpet, and back: its pods go on, with their addresses."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import pytest

from limpet.base.addresses import Address
from limpet.lab.command import LabError
from limpet.lab.world.pod import LabPod
from tests.kube.flannel.flannel_bed import beside_world
from tests.kube.flannel.flannel_move_bed import (
    CONFLIST,
    KUBE_FLANNEL,
    RECORDS,
    Mover,
    MovingWorld,
)
from tests.lab.bed import Pinging
from tests.waiting import wait_until

_TOPOLOGY = """
disk_mib = 0
[cloud]
addresses = ["203.0.113.10/24", "2001:db8:c::10/64"]
[site.harbour]
lan = ["192.168.10.0/24", "fd00:10::/64"]
nodes = { limpet-1 = 0, flannel-1 = 0, mover = 0 }
"""


@pytest.fixture(name="world")
def _world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MovingWorld]:
    with beside_world(_TOPOLOGY, tmp_path_factory.mktemp("moving"), MovingWorld) as world:
        world.add_limpet("limpet-1", 1)
        world.add_flannel("flannel-1", 100)
        world.mover.write_conflist()
        world.add_flannel("mover", 102)
        for name in ("limpet-1", "flannel-1"):
            world.machines[name].start_pod(f"{name}-pod")
        yield world


def _reached(world: MovingWorld, name: str, addresses: list[Address]) -> None:
    """The pod of the mover, from the others' and the other way."""
    for other in world.pods:
        for address in addresses:
            wait_until(partial(other.reaches, address, within_s=1), f"{other.name} {address}")
        for interface in other.addresses:
            wait_until(partial(world.mover.pings_from, name, interface.ip), f"{name} {interface}")


def _macs(mover: Mover) -> dict[str, str]:
    found = json.loads(mover.do("ip", "-j", "link", "show", "type", "vxlan"))
    return {each["ifname"]: each["address"] for each in found}


def _chains(mover: Mover) -> set[str]:
    saved = mover.do("iptables-save") + mover.do("ip6tables-save")
    return {line.split()[0] for line in saved.splitlines() if line.startswith(":FLANNEL")}


@contextlib.contextmanager
def _conversations(world: MovingWorld, pod: str, address: Address) -> Iterator[list[_Talk]]:
    """One TCP connection from each other pod to that pod of the mover, open all the time."""
    with world.mover.running("nsenter", f"--net=/run/netns/{pod}", "python3", "-c", _SERVER):
        for other in world.pods:
            wait_until(partial(_says_hello, other, address))
        talks = [_Talk(other, address) for other in world.pods]
        try:
            yield talks
        finally:
            for talk in talks:
                talk.end()


def _says_hello(pod: LabPod, address: Address) -> bool:
    with contextlib.suppress(LabError):
        pod.run("python3", "-c", f"import socket; socket.create_connection(('{address}', 9), 2)")
        return True
    return False


_SERVER = """
import socket, threading
listener = socket.create_server(("::", 9), family=socket.AF_INET6, dualstack_ipv6=True)
def answer(peer):
    for line in peer.makefile("rb"):
        peer.sendall(line)
while True:
    threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()
"""
_CLIENT = """
import socket, sys
peer = socket.create_connection((sys.argv[1], 9))
answers = peer.makefile()
print("up", flush=True)
for line in sys.stdin:
    peer.sendall(line.encode())
    print(answers.readline(), end="", flush=True)
"""


class _Talk:
    """A line is said, and its echo heard, by the connection that was made at first."""

    def __init__(self, pod: LabPod, address: Address) -> None:
        self._process = subprocess.Popen(
            [
                *("nsenter", f"--net={pod.netns_path}"),
                *(sys.executable, "-c", _CLIENT, str(address)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._hear() == "up\n"

    def _hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def goes_on(self, line: str) -> bool:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._hear() == f"{line}\n"

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def test_a_node_moves_from_flannel_to_limpet_and_back_and_its_pods_go_on(
    world: MovingWorld,
) -> None:
    mover = world.mover
    web = mover.attach_pod("web-0", by="flannel")
    # As the patched host-local of the edge keeps it for a pod that is away.
    mover.system.write(f"{RECORDS}/10.244.102.77_default_db-0", "")
    _reached(world, "web-0", web)
    macs, said, chains = _macs(mover), world.annotations("mover"), _chains(mover)
    subnet = mover.subnet_env.read_text()

    with _conversations(world, "web-0", web[0]) as talks:
        with _counted(world, web[0], "to Limpet"):
            _move(world)
            _reached(world, "web-0", web)
        assert all(talk.goes_on("moved") for talk in talks)

        # The devices have flannel's MACs, so the other nodes have noticed nothing.
        assert _macs(mover) == {
            "limvx4": macs["flannel.1"],
            "limvx6": macs["flannel-v6.1"],
        }
        assert world.annotations("mover") == said
        assert not _chains(mover)
        assert not mover.system.path(CONFLIST).exists()
        assert not mover.subnet_env.exists()
        # A pod that was known before has its address; a new one is beside those that went on.
        assert str(mover.attach_pod("db-0", by="limpet")[0]) == "10.244.102.77"
        api = mover.attach_pod("api-0", by="limpet")
        _reached(world, "api-0", api)
        wait_until(lambda: mover.pings_from("api-0", web[0]))

        with _counted(world, web[0], "to flannel"):
            assert "the node stays mover" in mover.limpet("uninstall")
            mover.start_flanneld()
            world.controller.command("node", "remove", "mover")
            _reached(world, "web-0", web)
            _reached(world, "api-0", api)
        assert all(talk.goes_on("back") for talk in talks)

    assert _macs(mover) == macs
    assert world.annotations("mover") == said
    assert _chains(mover) == chains
    assert mover.subnet_env.read_text() == subnet
    assert json.loads(mover.system.path(CONFLIST).read_text()) == KUBE_FLANNEL
    assert "limpet" not in mover.do("nft", "list", "tables")
    assert "5146" not in mover.do("ip", "rule") + mover.do("ip", "-6", "rule")
    # host-local goes on with what Limpet gave, and flannel's plugin takes Limpet's pods away.
    mover.detach_pod("api-0", by="flannel")
    assert mover.attach_pod("cron-0", by="flannel")[0] not in (web[0], api[0])
    mover.detach_pod("web-0", by="flannel")
    assert not {str(web[0]), str(api[0])} & set(mover.do("ls", RECORDS).split())

    # Once more, after a reboot: devices and subnet file are gone, the MACs stand in the annotation.
    # The identity of a node that was removed is in the way until it goes too.
    assert "limpet node remove mover" in mover.limpet("uninstall", "--purge")
    mover.flanneld.stop()
    for device in macs:
        mover.do("ip", "link", "delete", device)
    mover.subnet_env.unlink()
    _take_over(world)
    assert sorted(_macs(mover).values()) == sorted(macs.values())
    last = mover.attach_pod("last-0", by="limpet")
    _reached(world, "last-0", last)


def _move(world: MovingWorld) -> None:
    """While flanneld runs nothing is touched."""
    mover = world.mover
    refused = mover.refused(*_joining(world), stdin=world.controller.token())
    assert "flanneld runs here" in refused
    assert not mover.system.path("/var/lib/limpet/cluster").exists()
    mover.flanneld.stop()
    assert "link flannel.1: put aside" in _take_over(world)


def _take_over(world: MovingWorld) -> str:
    """As a person does it where no systemd runs."""
    mover = world.mover
    refused = mover.refused(*_joining(world), stdin=world.controller.token())
    assert "systemd does not run" in refused
    mover.start_limpet()
    return mover.limpet("install", "--take-over", "flannel")


def _joining(world: MovingWorld) -> tuple[str, ...]:
    """What is typed, with the token on standard input."""
    controller = world.controller.endpoints[0]
    options = ("--token-file", "-", "--controller", controller, "--name", "mover")
    return ("install", "--take-over", "flannel", *options)


@contextlib.contextmanager
def _counted(world: MovingWorld, address: Address, way: str) -> Iterator[None]:
    """What becomes of a hundred packets a second from each other pod."""
    with contextlib.ExitStack() as stack:
        streams = [
            (pod.name, stack.enter_context(Pinging(pod.netns, address))) for pod in world.pods
        ]
        yield
        for name, stream in streams:
            sent, answered = stream.stop()
            sys.stdout.write(f"lost {way}, from {name}: {sent - answered} of {sent}\n")
            assert answered
