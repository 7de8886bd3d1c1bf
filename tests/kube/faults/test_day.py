"""24 hours of an edge cluster that is kept by an API server, compressed: cuts, reboots, crashes of
all that is in the cloud, nodes and pods that come and go. When they are over, all is in order."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from limpet.lab.topology import parse_topology
from limpet.lab.world.machine import Machine
from limpet.lab.world.wires import existing_namespaces, namespace_prefix
from tests.kube.faults.day_world import DayWorld
from tests.lab.storms import faults
from tests.lab.storms.chaos import Chaos, until_empty

pytestmark = pytest.mark.timeout(1500)  # a controller that is gone is followed after 15 s
SEED = 24
"""`LIMPET_DAY_SEED` sets another one."""
HOURS = 24
TOPOLOGY = """
[cloud]
addresses = ["203.0.113.10/24", "2001:db8:c::10/64"]
[site.harbour]
lan = ["192.168.10.0/24", "fd00:10::/64"]
nodes = { crane-1 = 1, crane-2 = 1 }
[site.quarry]
lan = ["192.168.20.0/24", "fd00:20::/64"]
nodes = { digger-1 = 1, digger-2 = 1 }
"""
BY_ACCOUNT = frozenset({"crane-2", "digger-2"})
_WITHIN_S = 90.0
_FEWEST_NODES = 2


class Day(Chaos):
    """What happens in the cloud is told by what it comes to: its logs may complain meanwhile."""

    world: DayWorld

    def complaints(self) -> list[str]:
        logs = {machine.label: machine.log() for machine in self.machines()}
        found = [f"{n}: {x}" for n, log in logs.items() for x in log.splitlines() if _is_bad(x)]
        for controller in self.world.controllers:
            log = Path(controller.process.log).read_text(errors="replace")
            found += [line for line in log.splitlines() if _is_fault(line)]
        assert found == [], "\n".join(found)
        return found

    def forget(self, machine: Machine) -> None:
        """It was removed: who has its name later is another machine."""
        self.identities.pop(machine.label, None)
        for name in [each for each in self.addresses if each.startswith(f"{machine.label}-")]:
            del self.addresses[name]
        self.doomed = [each for each in self.doomed if each[0] is not machine]
        self.links_down.discard(machine.label)


def _is_fault(line: str) -> bool:
    return any(word in line for word in ("internal error", "Traceback", "was never retrieved"))


def _is_bad(line: str) -> bool:
    """Of a busy machine an agent may say that a part of it did not end in time."""
    return _is_fault(line) or ("level=error" in line and "did not end in time" not in line)


# What happens


def crash_api_server(day: Day) -> str:
    day.world.plane.restart_process("kube-apiserver", signal.SIGKILL)
    return "the API server crashes and starts"


def crash_control_plane(day: Day) -> str:
    plane = day.world.plane
    for name in ("kube-apiserver", "etcd"):
        plane.stop_process(name, signal.SIGKILL)
    for name in ("etcd", "kube-apiserver"):
        plane.start_process(name)
    return "etcd and the API server lose power and start"


def api_server_away(day: Day) -> str:
    plane = day.world.plane
    if plane.processes["kube-apiserver"].pid is None:
        plane.start_process("kube-apiserver")
        return "the API server is back"
    plane.stop_process("kube-apiserver", signal.SIGKILL)
    return "the API server is away"


def kill_controller(day: Day) -> str:
    for number, controller in enumerate(day.world.controllers):
        if controller.process.pid is None:
            controller.start()
            return f"controller {number} starts"
    number = day.random.randrange(len(day.world.controllers))
    day.world.controllers[number].stop(signal.SIGKILL)
    return f"controller {number} is killed"


def freeze_controller(day: Day) -> str:
    """It wakes up when it is frozen the next time, or at the end of the day, and has led before."""
    controller = day.world.controller
    if controller.process.pid is None:
        return ""
    stopped = Path(f"/proc/{controller.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    os.kill(controller.process.pid, signal.SIGCONT if stopped == "T" else signal.SIGSTOP)
    return f"the controller that led {'wakes up' if stopped == 'T' else 'freezes'}"


def node_comes_or_goes(day: Day) -> str:
    """A person does that, who has put the cloud in order before."""
    world = day.world
    world.heal()
    if world.spare:
        name = day.random.choice(sorted(world.spare))
        world.add(name)
        return f"another machine comes as {name}"
    there = [each for each in day.victims() if each.agent.pid is not None]
    if len(there) <= _FEWEST_NODES:
        return ""
    machine = day.random.choice(there)
    world.remove(machine)
    day.forget(machine)
    return f"{machine.label} is removed"


KINDS: dict[Any, int] = {
    faults.cut: 8,
    faults.reboot: 4,
    faults.switch_off: 1,
    faults.change_addresses: 2,
    faults.kill_agent: 2,
    faults.kill_and_start_agents: 2,
    faults.upgrade: 2,
    faults.start_pod: 8,
    faults.stop_pod: 4,
    faults.restart_pod: 6,
    crash_api_server: 2,
    crash_control_plane: 2,
    api_server_away: 4,
    kill_controller: 4,
    freeze_controller: 4,
    node_comes_or_goes: 4,
}
"""How often each is in a day."""


def story(random: Random) -> list[list[Any]]:
    """What happens in each hour; the same for the same seed."""
    every = [kind for kind, times in KINDS.items() for _ in range(times)]
    random.shuffle(every)
    hours: list[list[Any]] = [[] for _ in range(HOURS)]
    for number, kind in enumerate(every):
        hours[number * HOURS // len(every)].append(kind)
    return hours


# What must be true when it is over


def objects(world: DayWorld, plural: str) -> dict[str, Any]:
    found = json.loads(world.plane.kubectl("get", f"{plural}.limpet.dev", "-o", "json"))
    return {each["metadata"]["name"]: each["spec"] for each in found["items"]}


def wrong_objects(world: DayWorld) -> list[str]:
    """Grants and presences of nodes that there are, and no segment held twice."""
    grants = {n: s for n, s in objects(world, "nodegrants").items() if not s.get("removed")}
    presences = {
        name: spec
        for name, spec in objects(world, "nodepresences").items()
        if spec["uid"] in {each["uid"] for each in grants.values()}
    }
    held = [segment for spec in grants.values() for segment in spec["segments"]]
    found = [f"{each} is granted twice" for each in set(held) if held.count(each) > 1]
    if grants.keys() != world.machines.keys():
        found.append(f"grants of {sorted(grants)}, and nodes {sorted(world.machines)}")
    if presences.keys() != world.machines.keys():
        found.append(f"presences of {sorted(presences)}, and nodes {sorted(world.machines)}")
    for name, machine in world.machines.items():
        addresses = {str(each.ip) for each in machine.addresses}
        if name in presences and not addresses <= set(presences[name]["addresses"]):
            found.append(f"{name} is at {addresses}, and tells {presences[name]['addresses']}")
    return found


def left_over(world: DayWorld) -> list[str]:
    """Namespaces of pods and nodes, and files of attachments, that belong to nothing."""
    prefix = namespace_prefix(world.name)
    nodes = [*world.machines.values(), *world.spare.values()]
    owned = {pod.netns for pod in world.pods} | {each.name for each in world.machines.values()}
    found = [
        name
        for name in existing_namespaces(world.name)
        if name not in owned and any(name.startswith(each.name) for each in nodes)
    ]
    for machine in world.machines.values():
        files = [each.name for each in (machine.run_dir / "attachments").glob("*.json")]
        if len(files) != len(machine.pods):
            found.append(f"{machine.label}: attachments {files} of {len(machine.pods)} pods")
    found += [
        str(each.run_dir)
        for each in world.spare.values()
        if (each.run_dir / "attachments").exists()
    ]
    assert all(each.name.startswith(prefix) for each in nodes)
    return found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DayWorld]:
    name = f"y{os.getpid()}"
    made = DayWorld(parse_topology(TOPOLOGY, name, "a test"), name, tmp_path / name)
    made.by_account = BY_ACCOUNT
    try:
        made.up()
        yield made
    except Exception:
        for log in [*(c.process.log for c in made.controllers), *made.folder.glob("nodes/*/*.log")]:
            if log.exists():
                sys.stderr.write(f"--- {log}\n{log.read_text(errors='replace')[-4000:]}\n")
        raise
    finally:
        made.down()
    assert existing_namespaces(name) == []
    assert list(Path("/dev/shm").glob(f"{namespace_prefix(name)}*")) == []


def test_after_24_hours_pods_reach_each_other_and_nothing_is_left_over(world: DayWorld) -> None:
    seed = int(os.environ.get("LIMPET_DAY_SEED") or SEED)
    print(f"LIMPET_DAY_SEED={seed}")  # noqa: T201 - pytest shows it when the test fails
    random = Random(seed)
    day = Day(world, random, ())
    day.check(within_s=_WITHIN_S)
    began_s = time.monotonic()
    for hour, kinds in enumerate(story(random)):
        for kind in kinds:
            if what := kind(day):
                day.tell(f"{hour:02}:00 ({time.monotonic() - began_s:.0f} s) {what}")
        time.sleep(random.choice((0.5, 1.0, 2.0)))

    day.calm_down()
    for name in list(world.spare):
        world.add(name)

    world.awaited_leader()
    took_s = day.check(within_s=_WITHIN_S)
    until_empty(lambda: wrong_objects(world), within_s=_WITHIN_S)
    until_empty(lambda: left_over(world), within_s=_WITHIN_S)
    day.tell(f"all reached all after {took_s:.0f} s; {time.monotonic() - began_s:.0f} s in all")
