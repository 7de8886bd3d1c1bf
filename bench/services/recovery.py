"""How soon a node is right again: an endpoint's node that dies, a container that goes, and what
somebody else deletes of the node's own in the kernel.

Two sites with real agents. One node asks and serves at the socket; an endpoint is on another node
of its site, one at the other site. Nothing is told by a cloud: each node has kept the Service.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from tests.beds.services.socket_bed import Cgroup, mounted
from tests.lab.services import endpoints, tell, web
from tests.waiting import wait_until

from bench.bed import Bed
from bench.figures import Figure, Target
from limpet.lab.command import LabError
from limpet.lab.topology import parse_topology
from limpet.lab.world.world import World
from limpet.linux.bpf.library import Bpf

_ASKS, _NEAR, _FAR = "crane-1", "crane-2", "digger-1"
# Addresses of its own: an address that a namespace of the machine has is not taken for a gone one.
_TOPOLOGY = f"""
disk_mib = 0
[controller]
pod_cidrs = ["10.246.0.0/16", "fd00:246::/48"]
[cloud]
addresses = ["203.0.113.10/24", "2001:db8:c::10/64"]
[site.harbour]
lan = ["192.168.10.0/24", "fd00:10::/64"]
nodes = {{ {_ASKS} = 1, {_NEAR} = 1 }}
[site.quarry]
lan = ["192.168.20.0/24", "fd00:20::/64"]
nodes = {{ {_FAR} = 1 }}
"""
_EVERY_S = 0.005
"""Seconds between two looks whether it is right again."""
_DEAD = Target(3, of_ratio=False)
_BACK = Target(1, of_ratio=False)
Samples = dict[str, list[float]]


def recovery(bed: Bed, rounds: int) -> list[Figure]:
    """Seconds until the agent of the node that asks is right again, as it says itself, or as the
    kernel has it."""
    if bed.reference_only:
        return []
    with _world() as world, ExitStack() as undo:
        nodes = _Nodes(world, undo)
        out: Samples = {name: [] for name in (_NEAR, _FAR)}
        back: Samples = {name: [] for name in (_NEAR, _FAR)}
        gone: Samples = {name: [] for name in (_NEAR, _FAR)}
        for _ in range(rounds):
            for name in (_NEAR, _FAR):
                out[name].append(nodes.dies(name))
                back[name].append(nodes.comes_back(name))
                gone[name].append(nodes.container_goes(name))
        deleted = {what: [_seconds(*way) for _ in range(rounds)] for what, way in nodes.deletions()}
    figures = []
    for name, where in ((_NEAR, "of the site"), (_FAR, "of another site")):
        what = f"an endpoint's node {where}"
        figures += [
            Figure(
                f"out-{name}", f"{what} dies: out of the rotation", "s", out[name], target=_DEAD
            ),
            Figure(
                *(f"back-{name}", "... its agent and pod are up: in it again, the first time", "s"),
                back[name][:1],
            ),
            Figure(
                *(f"back-again-{name}", "... the later times, after a death each half minute", "s"),
                back[name][1:],
            ),
            Figure(
                *(f"gone-{name}", "... its container goes: told, and out of the rotation", "s"),
                gone[name],
                target=_DEAD,
            ),
        ]
    for number, (what, seconds) in enumerate(deleted.items()):
        figures.append(Figure(f"deleted-{number}", f"{what}: back", "s", seconds, target=_BACK))
    return figures


def _seconds(damage: Callable[[], None], is_right: Callable[[], bool]) -> float:
    """From the damage until it is mended; the machine rests before it."""
    _wait(is_right)
    time.sleep(1)
    damage()
    began_s = time.monotonic()
    _wait(is_right)
    return time.monotonic() - began_s


def _wait(holds: Callable[[], bool]) -> None:
    """Raises: AssertionError."""

    def look() -> bool:
        if holds():
            return True
        time.sleep(_EVERY_S)
        return False

    wait_until(look)


class _Nodes:
    """The node that asks serves at the socket, of a cgroup and a bpffs of its own."""

    def __init__(self, world: World, undo: ExitStack) -> None:
        self._world = world
        self._asks = world.machine(_ASKS)
        servers = [world.machine(name) for name in (_NEAR, _FAR)]
        pods = [(each, next(iter(each.pods.values()))) for each in servers]
        self._pods = {machine.label: pod.name for machine, pod in pods}
        cgroup = Cgroup()
        undo.callback(cgroup.close)
        run_dir = Path(self._asks.settings["run_dir"])
        undo.enter_context(mounted("bpf", run_dir / "bpf"))
        undo.callback(self._asks.stop_agent)
        self._pins = run_dir / "bpf" / "limpet"
        self._asks.settings |= {"services_backend": "ebpf", "services_cgroup": str(cgroup.path)}
        for machine in (self._asks, *servers):
            tell(machine, web(*pods, distribution="Even"))
        self._lib = ctypes.CDLL("libbpf.so.1")
        self._bpf = Bpf()

    def _is_drawn(self, name: str) -> bool:
        return endpoints(self._asks)[name][0] > 0

    # Nodes and containers

    def dies(self, name: str) -> float:
        machine = self._world.machine(name)
        _wait(lambda: self._is_drawn(_NEAR) and self._is_drawn(_FAR))
        time.sleep(1)
        began_s = time.monotonic()
        # Power is lost when its agent is dead, which is done first.
        machine.power_off()
        _wait(lambda: not self._is_drawn(name))
        return time.monotonic() - began_s

    def comes_back(self, name: str) -> float:
        self._world.machine(name).power_on()
        began_s = time.monotonic()
        _wait(lambda: self._is_drawn(name))
        return time.monotonic() - began_s

    def container_goes(self, name: str) -> float:
        machine = self._world.machine(name)
        time.sleep(1)
        began_s = time.monotonic()
        machine.stop_pod(self._pods[name])
        _wait(lambda: not self._is_drawn(name))
        took_s = time.monotonic() - began_s
        machine.start_pod(self._pods[name])
        _wait(lambda: self._is_drawn(name))
        return took_s

    # What others delete

    def deletions(
        self,
    ) -> Iterator[tuple[str, tuple[Callable[[], None], Callable[[], bool]]]]:
        """What is done, and whether it is right again."""
        tables = self._tables()

        def has_all() -> bool:
            return self._tables() >= tables

        for table in sorted(tables):
            yield f"{table} deleted", (partial(self._delete, table), has_all)
        yield "nft flush ruleset", (self._flush, has_all)
        yield "a program detached from the cgroup", (self._detach, self._is_attached)
        yield "a map of Services emptied", (self._empty, self._is_filled)
        yield "pins of programs and maps removed", (self._unpin, self._is_pinned)

    def _tables(self) -> frozenset[str]:
        """Those of Limpet. Each is put whole, by one transaction."""
        listed = self._asks.run("nft", "list", "tables").splitlines()
        return frozenset(each for each in listed if "limpet" in each)

    def _delete(self, table: str) -> None:
        with suppress(LabError):  # that of ports is the agent's own, and is never away
            self._asks.run("nft", "delete", *table.split())

    def _flush(self) -> None:
        self._asks.run("nft", "flush", "ruleset")

    def _pinned(self, path: Path) -> int:
        return int(self._lib.bpf_obj_get(os.fsencode(path)))

    def _link(self) -> Path:
        return self._pins / "links" / "limpet_connect4"

    def _detach(self) -> None:
        fd = self._pinned(self._link())
        self._lib.bpf_link_detach(fd)
        os.close(fd)

    def _is_attached(self) -> bool:
        fd = self._pinned(self._link())
        if fd < 0:
            return False
        try:
            return bool(self._bpf.link(fd).cgroup_id)
        finally:
            os.close(fd)

    def _frontends(self) -> int:
        return self._pinned(next(iter(self._pins.glob("maps-*/frontends")), self._pins / "none"))

    def _empty(self) -> None:
        fd, key = self._frontends(), ctypes.create_string_buffer(64)
        while self._lib.bpf_map_get_next_key(fd, None, key) == 0:
            self._lib.bpf_map_delete_elem(fd, key)
        os.close(fd)

    def _is_filled(self) -> bool:
        fd, key = self._frontends(), ctypes.create_string_buffer(64)
        if fd < 0:
            return False
        try:
            return bool(self._lib.bpf_map_get_next_key(fd, None, key) == 0)
        finally:
            os.close(fd)

    def _unpin(self) -> None:
        # The agent may put back what is gone while the rest still goes.
        shutil.rmtree(self._pins, ignore_errors=True)

    def _is_pinned(self) -> bool:
        return self._is_attached() and self._is_filled()


@contextmanager
def _world() -> Iterator[World]:
    with tempfile.TemporaryDirectory() as folder:
        # Short: names of its namespaces are made of it.
        name = f"br{time.monotonic_ns() % 100_000}"
        world = World(parse_topology(_TOPOLOGY, name, "the bench"), name, Path(folder) / name)
        try:
            world.up()
            yield world
        finally:
            world.down()
