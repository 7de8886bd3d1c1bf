"""Sites behind NATs, in a whole world with real agents: how soon, and how long nothing comes."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.beds.traffic.first_packet import FirstPackets
from tests.beds.traffic.silence import Silence

from bench.bed import Bed
from bench.figures import Figure, Target
from limpet.lab.topology import load_topology
from limpet.lab.world.machine import Machine
from limpet.lab.world.pod import LabPod
from limpet.lab.world.world import World

_WITHIN_S = 60.0
_SETTLE_S = 0.1
_KINDS = ("open", "cone", "port", "symm", "cgn")
_BY_PORT = ("port", "symm", "cgn")


@contextmanager
def _world(topology: str) -> Iterator[World]:
    name = f"bench{os.getpid()}"
    folder = Path(tempfile.mkdtemp(prefix="limpet-bench-"))
    world = World(load_topology(topology), name, folder / name)
    try:
        world.up()
        yield world
    finally:
        world.down()
        shutil.rmtree(folder, ignore_errors=True)


def _is_direct(one: str, other: str) -> bool:
    return not ("symm" in (one, other) and one in _BY_PORT and other in _BY_PORT)


def nats_first(bed: Bed, rounds: int) -> list[Figure]:
    """A node of each kind of NAT starts without paths; the slowest of five peers each."""
    if bed.reference_only:
        return []
    first: list[float] = []
    direct: list[float] = []
    with _world("nat-matrix") as world:
        targets = {kind: world.machine(f"{kind}-2") for kind in _KINDS}
        for _ in range(rounds):
            worst, worst_direct = 0.0, 0.0
            for kind in _KINDS:
                node = world.machine(f"{kind}-1")
                with FirstPackets(node, targets.values(), within_s=_WITHIN_S) as measured:
                    for other, target in targets.items():
                        worst = max(worst, measured.first_s(target))
                        if _is_direct(kind, other):
                            worst_direct = max(worst_direct, measured.direct_s(target))
            first.append(worst)
            direct.append(worst_direct)
    what = "5 x 5 NATs, the slowest pair"
    soon = Target(2, of_ratio=False)
    return [
        Figure("nats-first", f"{what}: pod to first packet", "s", first, target=soon),
        Figure("nats-direct", f"{what}: pod to direct path", "s", direct),
    ]


def nats_silence(bed: Bed, rounds: int) -> list[Figure]:
    """Between pods with traffic: what carries it is taken away, and something else takes over."""
    if bed.reference_only:
        return []
    found: dict[str, list[float]] = {"relay": [], "gateway": [], "udp": []}
    with _world("nated") as world:
        digger, crane, radio = (world.machine(name) for name in ("digger-1", "crane-1", "radio-1"))
        gateway = world.gateway("quarry")
        for _ in range(rounds):
            _until(lambda: _seen(digger, radio)["rung"] == "relay")
            relay = world.machine(str(_seen(digger, radio)["relay"]))
            found["relay"].append(_silence(digger, radio, relay.power_off))
            relay.power_on()
            _until(lambda: _seen(crane, digger)["rung"] == "tunnel")
            found["gateway"].append(_silence(crane, digger, gateway.reboot))
            _until(lambda: _seen(crane, digger)["rung"] == "tunnel")
            found["udp"].append(_silence(crane, digger, gateway.block_udp))
            gateway.allow_udp()
    at_most = Target(3, of_ratio=False)
    titles = {
        "relay": "the relay of a pair with traffic loses power: silence",
        "gateway": "a NAT gateway reboots and maps to other ports: silence",
        "udp": "UDP is blocked at a site: silence until TLS carries it",
    }
    return [
        Figure(f"silence-{name}", titles[name], "s", samples, target=at_most)
        for name, samples in found.items()
    ]


def _silence(source: Machine, target: Machine, take_away: Callable[[], None]) -> float:
    with Silence(_pod(source), _pod(target), within_s=_WITHIN_S) as silence:
        began_s = time.time()
        take_away()
        silence.wait()
        # What had been under way when it was taken away may have been the first answer.
        until_s = time.monotonic() + 6
        while time.monotonic() < until_s:
            time.sleep(_SETTLE_S)
        silence.wait()
        return silence.longest_s(began_s)


def _pod(machine: Machine) -> LabPod:
    return next(iter(machine.pods.values()))


def _seen(machine: Machine, other: Machine) -> dict[str, object]:
    return next(each for each in machine.ask("peers")["peers"] if each["name"] == other.label)


def _until(holds: Callable[[], bool]) -> None:
    """Raises: RuntimeError."""
    end_s = time.monotonic() + _WITHIN_S
    while not holds():
        if time.monotonic() > end_s:
            raise RuntimeError("a pair did not get to its rung")
        time.sleep(_SETTLE_S)
