"""Services at the socket with a real agent, which dies, comes back, is robbed and turned over."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from limpet.base.addresses import packed
from limpet.datapath.services.elements import frontend_key
from limpet.datapath.services.sockets.layout import frontend, service
from limpet.lab.command import LabError
from limpet.lab.world.machine import Machine
from limpet.lab.world.pod import LabPod
from limpet.lab.world.world import World
from tests.beds.services.socket_bed import Cgroup, mounted
from tests.beds.traffic.tcp import fetch
from tests.lab.bed import a_world
from tests.lab.services import ADDRESS, NAME, PORT, TARGET_PORT, ipv4, tell, web
from tests.waiting import PATIENCE_S, wait_until

TOPOLOGY = """
[cloud]
addresses = ["203.0.113.10/24", "2001:db8:c::10/64"]
[site.harbour]
lan = ["192.168.10.0/24", "fd00:10::/64"]
nodes = { crane-1 = 1, crane-2 = 1 }
"""
_TALKER = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=50) as server:
    for line in sys.stdin:
        server.sendall(line.encode())
        print(server.recv(1000).decode(), server.getpeername()[0], flush=True)
"""
_ECHO = """
import socket, sys, threading
server = socket.create_server(("::", int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True)
print("up", flush=True)
def answer(client):
    while words := client.recv(1000):
        client.sendall(words.strip())
while True:
    threading.Thread(target=answer, args=[server.accept()[0]], daemon=True).start()
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Machine]]:
    """crane-1 serves at the socket; the Service is a pod of crane-2. The test's own processes are
    in the cgroup that programs are attached to."""
    with ExitStack() as stack:
        cgroup = Cgroup()  # outlives the world: its agents are started in it
        stack.callback(cgroup.close)
        world = stack.enter_context(a_world(TOPOLOGY, tmp_path_factory.mktemp("sockets")))
        machine = world.machine("crane-1")
        pins = Path(machine.settings["run_dir"]) / "bpf"
        stack.enter_context(mounted("bpf", pins))
        stack.callback(machine.stop_agent)  # it would make its folder anew below
        machine.settings |= {"services_backend": "ebpf", "services_cgroup": str(cgroup.path)}
        machine.settings["resync_s"] = 10 * PATIENCE_S  # nothing is found by looking at everything
        other = world.machine("crane-2")
        tell(machine, web((other, _pod(other))))
        stack.enter_context(cgroup.entered())
        yield world, machine


def _pod(machine: Machine) -> LabPod:
    return next(iter(machine.pods.values()))


def tracked(machine: Machine) -> list[str]:
    """Connections to the Service that the node's kernel tracks, with the ports of their clients:
    there are none at the socket."""
    listed = subprocess.run(
        ["nsenter", f"--net=/run/netns/{machine.name}", "conntrack", "-L", "-d", ADDRESS],
        check=True, capture_output=True, text=True, timeout=PATIENCE_S,
    ).stdout  # fmt: skip
    return re.findall(r"sport=\d+ dport=\d+", listed)


def is_at_the_socket(machine: Machine, pod: LabPod) -> bool:
    """The pod reaches the Service by a new connection, and nothing of it is tracked."""
    before = tracked(machine)
    with _python(pod, _TALKER, ADDRESS, str(PORT)) as talker:
        assert _say(talker, "hello") == f"hello {ADDRESS}"
    return set(tracked(machine)) <= set(before)


def test_a_policy_judges_the_endpoint_that_a_socket_was_led_to(
    node: tuple[World, Machine],
) -> None:
    world, machine = node
    client, server = _pod(machine), _pod(world.machine("crane-2"))
    with _python(server, _ECHO, str(TARGET_PORT)) as echo:
        assert echo.stdout is not None
        assert echo.stdout.readline() == "up\n"
        assert is_at_the_socket(machine, client)
        machine.ask("policy.apply", documents=[_egress(ADDRESS, PORT)])
        with pytest.raises(LabError):
            fetch(ADDRESS, PORT, netns=client.netns)
        machine.ask("policy.apply", documents=[_egress(ipv4(server), TARGET_PORT)])
        assert is_at_the_socket(machine, client)
        machine.ask("policy.delete", namespace="default", name="client")
        assert is_at_the_socket(machine, client)


def _egress(address: str, port: int) -> dict[str, Any]:
    """All pods of the node may send there alone."""
    to = {"to": [{"ipBlock": {"cidr": f"{address}/32"}}], "ports": [{"port": port}]}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "client", "namespace": "default"},
        "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": [to]},
    }


def test_a_detached_program_and_an_emptied_or_changed_map_are_back_long_before_a_resync(
    node: tuple[World, Machine],
) -> None:
    world, machine = node
    pins = Path(machine.settings["run_dir"]) / "bpf" / "limpet"
    lib = ctypes.CDLL("libbpf.so.1")

    def pinned(path: Path) -> int:
        fd: int = lib.bpf_obj_get(os.fsencode(path))
        assert fd >= 0
        return fd

    def detach() -> None:
        fd = pinned(pins / "links" / "limpet_connect4")
        assert lib.bpf_link_detach(fd) == 0
        os.close(fd)

    def empty() -> None:
        (frontends,) = pins.glob("maps-*/frontends")
        fd, key = pinned(frontends), ctypes.create_string_buffer(64)
        while lib.bpf_map_get_next_key(fd, None, key) == 0:
            assert lib.bpf_map_delete_elem(fd, key) == 0
        os.close(fd)

    def change_one() -> None:
        """The Service's: it has no endpoints."""
        (frontends,) = pins.glob("maps-*/frontends")
        fd = pinned(frontends)
        key = service(frontend_key(packed(ADDRESS), "TCP", PORT))
        assert lib.bpf_map_update_elem(fd, key, frontend([], 0, not_connected=False), 0) == 0
        os.close(fd)

    with _python(_pod(world.machine("crane-2")), _ECHO, str(TARGET_PORT)) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "up\n"
        assert is_at_the_socket(machine, _pod(machine))
        for breakage in (detach, empty, change_one):
            breakage()
            began_s = time.monotonic()
            wait_until(lambda: is_at_the_socket(machine, _pod(machine)), breakage.__name__)
            print(f"{breakage.__name__}: back after {time.monotonic() - began_s:.2f} s")  # noqa: T201 - with -s


def test_connections_outlive_the_agent_and_what_is_taken_away_comes_back(
    node: tuple[World, Machine],
) -> None:
    world, machine = node
    other = world.machine("crane-2")
    links = Path(machine.settings["run_dir"]) / "bpf" / "limpet" / "links"
    assert machine.ask("services")["backend"] == "ebpf"
    with ExitStack() as stack:
        server = stack.enter_context(_python(_pod(other), _ECHO, str(TARGET_PORT)))
        assert server.stdout is not None
        assert server.stdout.readline() == "up\n"
        talker = stack.enter_context(_python(_pod(machine), _TALKER, ADDRESS, str(PORT)))
        assert _say(talker, "first") == f"first {ADDRESS}"
        shown = machine.ask("service", name=NAME)["endpoints"]
        assert [each["connections"] for each in shown] == [1]
        machine.stop_agent(signal.SIGKILL)
        assert _say(talker, "killed") == f"killed {ADDRESS}"
        assert is_at_the_socket(machine, _pod(machine)), "also without an agent"
        machine.start_agent()
        assert _say(talker, "again") == f"again {ADDRESS}"
        # The agent may put back what is gone while the rest still goes.
        shutil.rmtree(links.parent, ignore_errors=True)
        wait_until(lambda: (links / "limpet_connect4").exists(), "pinned again")
        wait_until(lambda: is_at_the_socket(machine, _pod(machine)))
        # A pod that comes later is served, too.
        late = machine.pod("late")
        assert machine.cni("ADD", late).exit_code == 0
        wait_until(lambda: is_at_the_socket(machine, late))
        # A person turns it over: the table has been there all the time.
        machine.stop_agent()
        machine.settings["services_backend"] = "nftables"
        machine.start_agent()
        assert not links.exists()
        # The kernel takes a program from its cgroup a moment after its last pin is gone.
        wait_until(lambda: not is_at_the_socket(machine, _pod(machine)))
        assert machine.ask("services")["backend"] == "nftables"
        assert _say(talker, "still there").startswith("still there ")


def _say(talker: subprocess.Popen[str], words: str) -> str:
    """What comes back, and from whom."""
    assert talker.stdin is not None
    assert talker.stdout is not None
    talker.stdin.write(f"{words}\n")
    talker.stdin.flush()
    return talker.stdout.readline().strip()


@contextmanager
def _python(pod: LabPod, *words: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        ["nsenter", f"--net={pod.netns_path}", sys.executable, "-c", *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
