"""What a member answers whoever looks for a pod by its name: real agents, and no policies, by which
nodes know each other's pods without asking.

The claimant is a real member whose agent is stopped; its answers are signed by its own key.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from limpet.base.errors import LimpetError
from limpet.cluster.datagrams.peer_datagram import BodyKind, Codec, DatagramError
from limpet.cluster.exchange import pod_messages
from limpet.cluster.exchange.pod_messages import PodsTold, ToldPod
from limpet.cluster.identity import load_identity
from limpet.lab.world.machine import Machine
from limpet.lab.world.pod import LabPod
from limpet.lab.world.world import World
from tests.lab.bed import a_world
from tests.lab.rungs import the_pod
from tests.waiting import wait_until

TOPOLOGY = """
[cloud]
addresses = ["203.0.113.10/24", "2001:db8:c::10/64"]
[site.lan]
lan = ["192.168.10.0/24", "fd00:10::/64"]
nodes = { watcher = 1, victim = 1, claimant = 1 }
"""
PORT = 7471
"""Of each node's exchange."""
_ANSWER = """
import socket, sys
with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as s:
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    s.bind(("::", int(sys.argv[1])))
    print("up", flush=True)
    while True:
        data, at = s.recvfrom(65535)
        print(data.hex(), flush=True)
        answer = bytes.fromhex(sys.stdin.readline())
        if answer:
            s.sendto(answer, at)
"""
"""Shows what comes to the exchange's port, and sends back what is typed then."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with a_world(TOPOLOGY, tmp_path_factory.mktemp("lookups")) as made:
        made.machine("claimant").stop_agent()
        yield made


def addresses_of(pod: LabPod) -> tuple[str, ...]:
    return tuple(str(each.ip) for each in pod.addresses)


@contextlib.contextmanager
def telling(claimant: Machine, *pods: ToldPod) -> Iterator[list[str]]:
    """Whoever looks for a pod hears from the claimant, while it lasts, that it has these; the names
    that were looked for."""
    identity = load_identity(claimant.disk / "state" / "cluster")
    assert identity is not None
    codec, asked = Codec(identity.private_key, identity.pinned_key), list[str]()
    process = subprocess.Popen(
        ["ip", "netns", "exec", claimant.name, sys.executable, "-c", _ANSWER, str(PORT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def answer(data: bytes) -> bytes:
        try:
            heard = codec.parse(data)
        except DatagramError:
            return b""
        if heard.kind != BodyKind.POD_ASK:
            return b""
        ask = pod_messages.parse_ask(heard.body)
        asked.append(ask.name)
        body = pod_messages.encode(PodsTold(ask.nonce, pods))
        return codec.encode(BodyKind.POD_TOLD, body, to_uid=heard.uid)

    def serve() -> None:
        for line in process.stdout or ():
            with contextlib.suppress(BrokenPipeError):
                print(answer(bytes.fromhex(line)).hex(), file=process.stdin, flush=True)

    thread = threading.Thread(target=serve)
    try:
        assert process.stdout.readline() == "up\n"
        thread.start()
        yield asked
    finally:
        process.kill()
        process.wait()
        if thread.ident is not None:
            thread.join()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()


def test_who_says_to_have_a_pod_of_anothers_name_does_not_stand_for_it(world: World) -> None:
    """Nor by the addresses of another: those of its own segments alone are its to name."""
    victim, claimant, watcher = map(world.machine, ("victim", "claimant", "watcher"))
    pod = victim.start_pod("looked-for")
    stolen, own = addresses_of(pod), addresses_of(the_pod(claimant))
    origin, word = addresses_of(the_pod(watcher))[0], f"{pod.namespace}/{pod.name}"

    def answer() -> str:
        """Targets of the paths to a pod of that name, or why there are none."""
        try:
            found = watcher.ask("path", origin=origin, target=word)
        except LimpetError as error:
            return str(error)
        return ", ".join(each["there"]["target"] for each in found["paths"])

    try:
        assert answer() in stolen
        with telling(claimant, ToldPod(pod.namespace, pod.name, stolen)) as asked:

            def was_asked() -> bool:
                """Datagrams may be lost: the person asks again."""
                assert answer() in stolen
                return pod.name in asked

            wait_until(was_asked, "the claimant was asked")
        with telling(claimant, ToldPod(pod.namespace, pod.name, own)):
            both = f"claimant: {', '.join(own)}; victim: {', '.join(stolen)}"
            wait_until(
                lambda: f"several nodes say that they have a pod of that name ({both})" in answer(),
                "both are heard of",
            )
    finally:
        victim.stop_pod(pod.name)
    with telling(claimant, ToldPod(pod.namespace, pod.name, stolen)):
        wait_until(lambda: "is called so" in answer(), "nobody has it")
