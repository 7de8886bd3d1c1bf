"""The agent is killed while Services change that are served at the socket: connections stay, and
the programs' maps are what the API server says."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from limpet.datapath.services.plan import SocketWishes
from limpet.datapath.services.sockets.apply import object_path
from limpet.datapath.services.sockets.layout import FEW, FRONTENDS, SLOTS, SOCKET_MAPS
from limpet.datapath.services.sockets.pins_apply import map_folder
from limpet.lab.world.machine import Machine
from limpet.lab.world.world import World
from limpet.linux.bpf.library import Bpf
from limpet.linux.socket_diag import can_end_sockets
from tests.beds.namespaces import Netns
from tests.beds.services.service_api import ServiceApi
from tests.beds.services.socket_bed import Cgroup, mounted
from tests.faults import test_killed_services as killed
from tests.faults.test_killed_services import STAYS, api, flap, kill_amid_changes, node, wanted
from tests.lab.bed import a_world
from tests.waiting import wait_until

__all__ = ["api", "node"]

TOPOLOGY = killed.TOPOLOGY.replace("10.252.", "10.253.").replace("fd00:252:", "fd00:253:")
_HEAD_BYTES = 12
"""Of a frontend, before its first slots."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The test's own sockets are in the cgroup that programs are attached to."""
    with ExitStack() as stack:
        cgroup = Cgroup()  # outlives the world: its agents are started in it
        stack.callback(cgroup.close)
        world = stack.enter_context(a_world(TOPOLOGY, tmp_path_factory.mktemp("killed-sockets")))
        machine = world.machine("crane-1")
        stack.enter_context(mounted("bpf", Path(machine.settings["run_dir"]) / "bpf"))
        stack.callback(machine.stop_agent)  # it would make its folder anew below
        machine.settings |= {"services_backend": "ebpf", "services_cgroup": str(cgroup.path)}
        stack.enter_context(cgroup.entered())
        yield world


def content(name: str, elements: dict[bytes, bytes]) -> Counter[tuple[bytes, ...]]:
    """Without the order of slots, which tells what was there before."""
    if name == SLOTS:
        return Counter((key[:-4], value) for key, value in elements.items())
    if name == FRONTENDS:
        return Counter((key, *_unordered(value)) for key, value in elements.items())
    return Counter(elements.items())


def _unordered(frontend: bytes) -> list[bytes]:
    few = frontend[_HEAD_BYTES:]
    size = len(few) // FEW
    return [frontend[:_HEAD_BYTES], *sorted(few[at : at + size] for at in range(0, len(few), size))]


def unlike(node: Machine, api: ServiceApi) -> list[str]:
    """Maps of the programs that are not as planned by one who begins with nothing."""
    planner = wanted(node, api, SocketWishes(ends_flows=can_end_sockets()))
    pins = Path(node.settings["run_dir"]) / "bpf" / "limpet"
    opened = Bpf().load(object_path(), lambda name: pins / map_folder(name) / name)
    try:
        held = {name: opened.maps[name].read() for name in SOCKET_MAPS}
    finally:
        opened.close()
    return [x for x in held if content(x, held[x]) != content(x, planner.elements[x])]


def agree(node: Machine, api: ServiceApi) -> None:
    """Returns when programs are in force, and table and maps as planned."""
    wait_until(lambda: node.ask("services")["backend"] == "ebpf", "programs are in force")
    killed.agree(node, api)
    wait_until(lambda: not unlike(node, api), "the programs' maps are as planned")


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_nothing_valid_is_cut_at_the_socket_when_the_agent_is_killed_amid_changes(
    node: Machine, api: ServiceApi, chance: random.Random
) -> None:
    kill_amid_changes(node, api, chance, lambda: agree(node, api))
    assert_not_translated(node)


def test_endpoints_that_flap_cost_a_round_each_at_the_socket_too(
    node: Machine, api: ServiceApi
) -> None:
    flap(node, api, lambda: agree(node, api))
    assert_not_translated(node)


def assert_not_translated(node: Machine) -> None:
    for address, version in zip(STAYS, ("ipv4", "ipv6"), strict=True):
        tracked = Netns(node.name).run("conntrack", "-L", "-f", version, "-d", address)
        assert tracked == "", "programs were in force all the time"
