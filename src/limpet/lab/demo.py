"""`make demo`: an edge world that is cut off from its cloud and goes on. Nothing is simulated."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, permutations
from types import FrameType
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table

from limpet.base.errors import LimpetError
from limpet.cluster.topology.transports import by_preference
from limpet.lab.clock import LONG_AGO, can_turn_clocks
from limpet.lab.measure.matrix import measure_until
from limpet.lab.measure.paths import SeenPath, seen_paths
from limpet.lab.needs.check import MissingError
from limpet.lab.topology import load_topology
from limpet.lab.world.machine import Machine
from limpet.lab.world.site import CLOUD
from limpet.lab.world.world import World
from limpet.lab.world.worlds import new_world, take_down

_TOPOLOGY = "demo"
_COMMUNITY = "works"
_MEMBERS = ("crane-1", "crane-2", "digger-1", "radio-1", "buoy")
_ALONE, _BESIDE = "camera-1", "digger-1"
_NEVER_DIRECT = ("digger-1", "radio-1")
"""Their NATs, port-restricted and symmetric, cannot be opened for each other."""
_REBOOTED, _KILLED, _GROWN, _DARK = "crane-2", "crane-1", "digger-1", "mast"
_GATEWAY, _RENUMBERED = "harbour", "quarry"
_NEW_PODS = 3
"""With the three that are there, one more than an IPv4 segment of the topology holds."""
_RUNG_WORDS = {
    "route": "on one LAN, plainly",
    "vxlan": "on one LAN, in VXLAN",
    "tunnel": "straight through the NATs, encrypted",
    "relay": "by a relay that cannot read it",
    "relay-tls": "by a relay, in TLS",
}
_PATIENCE_S = 60.0
"""Nothing takes so long on a machine that has nothing else to do: a busy one is no failure."""
_LOOK_AGAIN_S = 0.2


class Demo:
    """The story, step by step; `failures` holds what did not come out as told."""

    def __init__(self, world: World, console: Console) -> None:
        self.world = world
        self.console = console
        self.failures: list[str] = []
        self.started_s = time.monotonic()

    def tell(self) -> None:
        """Raises: LimpetError when a step cannot be taken at all."""
        self.build()
        self.live_without_the_cloud()
        self.come_back()

    def build(self) -> None:
        self.head("1. A cloud with a public address, and three sites behind NATs")
        self.world.up(self.line)
        self.line("Each node was granted segments; from these it gives addresses by itself:")
        self.await_spare()
        table = Table("node", "site", "LAN address", "seen from outside as", "pods")
        for machine in self.world.machines.values():
            table.add_row(
                machine.label,
                machine.site.name,
                _words(each.ip for each in machine.addresses),
                self.seen_as(machine),
                _words((_words(each.ip for each in pod.addresses) for pod in pods(machine)), "\n"),
            )
        self.console.print(table)
        self.line("Who is in no community talks to the cloud only. Five of them share one:")
        self.command("community", "create", _COMMUNITY, *_MEMBERS)
        self.line(f"{_ALONE} is in none: {_BESIDE} on the same LAN is out of its reach.")
        self.show_reach("with the cloud", self.labels())
        self.show_rungs(self.labels())

    def live_without_the_cloud(self) -> None:
        self.head("2. The cloud is cut off, and its relay with it. Now things happen at the edge")
        before = {pod.name: pod.addresses for pod in self.world.pods}
        self.world.cut("cloud")
        self.kill_an_agent()
        self.reboot_a_node()
        self.reboot_a_gateway()
        self.change_a_public_address()
        self.grow()
        self.reboot_a_site()
        self.expect(
            all(self.world.pod(name).addresses == addresses for name, addresses in before.items()),
            f"all {len(before)} pods that were there have their old addresses",
        )
        edge = [label for label in self.labels() if label != "hub"]
        self.show_reach("without the cloud", edge)
        self.show_rungs(edge)

    def kill_an_agent(self) -> None:
        machine = self.world.machine(_KILLED)
        machine.stop_agent(signal.SIGKILL)
        others = [*pods(self.world.machine(_REBOOTED)), *pods(self.world.machine(_GROWN))]
        targets = [address.ip for pod in pods(machine) for address in pod.addresses]
        reached = all(pod.reaches(target) for pod in others for target in targets)
        self.expect(reached, f"{_KILLED}: its agent is killed (SIGKILL); its pods do not notice")
        machine.start_agent()

    def reboot_a_node(self) -> None:
        machine = self.world.machine(_REBOOTED)
        containers = {pod.container_id for pod in pods(machine)}
        started_s = time.monotonic()
        self.world.reboot([machine])
        took_s = time.monotonic() - started_s
        fresh = {pod.container_id for pod in pods(machine)}
        self.expect(
            not containers & fresh and len(containers) == len(fresh),
            f"{_REBOOTED}: power lost and back ({took_s:.1f} s with its pods): no devices, "
            "no /run, new containers",
        )

    def reboot_a_gateway(self) -> None:
        self.world.gateway(_GATEWAY).reboot()
        self.world.save()
        self.line(f"    {_GATEWAY}: its NAT gateway reboots; everything that it had mapped is gone")

    def change_a_public_address(self) -> None:
        gateway = self.world.gateway(_RENUMBERED)
        before = gateway.public
        gateway.change_public_address()
        self.world.save()
        self.expect(
            before != gateway.public,
            f"{_RENUMBERED}: its provider gives it another address, {before} -> {gateway.public}",
        )

    def grow(self) -> None:
        machine = self.world.machine(_GROWN)
        for number in range(_NEW_PODS):
            machine.start_pod(f"{_GROWN}-new-{number}")
        self.world.save()
        used = {
            address.network
            for pod in pods(machine)
            for address in pod.addresses
            if address.version == 4
        }
        self.expect(
            len(used) > 1,
            f"{_GROWN}: {_NEW_PODS} new pods, past the end of its segment, into the spare one: "
            f"{_words(sorted(used), ' and ')}",
        )

    def reboot_a_site(self) -> None:
        machines = self.world.select(_DARK)
        wrong = can_turn_clocks()
        for machine in machines:
            machine.set_clock(LONG_AGO if wrong else None)
        started_s = time.monotonic()
        self.world.reboot(machines)
        took_s = time.monotonic() - started_s
        count = sum(len(machine.pods) for machine in machines)
        self.expect(
            all(len(machine.pods) == len(machine.wanted_pods) for machine in machines),
            f"{_DARK}: power fails in the whole site; {len(machines)} nodes and {count} pods are "
            f"back in {took_s:.1f} s" + (", with clocks that say 1970" if wrong else ""),
        )

    def come_back(self) -> None:
        self.head("3. The cloud is back. It hears of everything")
        self.world.restore("cloud")
        want = {
            (machine.label, pod.name, frozenset(str(each.ip) for each in pod.addresses))
            for machine in self.world.machines.values()
            for pod in pods(machine)
        }
        took_s = self.await_report(want)
        self.expect(
            took_s is not None,
            f"the controller knows all {len(want)} pods"
            + (f", {took_s:.1f} s after the cloud came back" if took_s is not None else ""),
        )
        self.command("pod", "list")
        self.show_reach("with the cloud again", self.labels())

    def await_report(self, want: set[tuple[str, str, frozenset[str]]]) -> float | None:
        """Seconds until the controller knows; None: it still does not."""

        def knows() -> bool:
            return want == {
                (each["node"], each["pod"], frozenset(_bare(each["addresses"])))
                for each in self.world.controller.ask("pod.list")["pods"]
            }

        return _await(knows)

    def await_spare(self) -> None:
        machine = self.world.machine(_GROWN)
        took_s = _await(lambda: sum(":" not in each for each in self.segments(machine)) > 1)
        if took_s is None:
            self.expect(False, f"{_GROWN}: it gets a spare segment ahead of need")

    # Words

    def labels(self) -> list[str]:
        return list(self.world.machines)

    def segments(self, machine: Machine) -> list[str]:
        return [each["prefix"] for each in machine.ask("status")["segments"]]

    def seen_as(self, machine: Machine) -> str:
        gateway = self.world.gateways.get(machine.site.name)
        if gateway is None or not gateway.translates:
            return "the same"
        return f"{gateway.public} ({machine.site.nat})"

    def show_reach(self, when: str, labels: Sequence[str]) -> None:
        """Who of these reaches whom, over IPv4 and IPv6; pings that really travel."""
        home = {pod.name: machine.label for machine, pod in self.all_pods()}
        places = [p for p in self.world.places() if home.get(p.name, p.name) in labels]
        apart = frozenset(
            (one.name, other.name)
            for one, other in permutations(places, 2)
            if not self.may_talk(home.get(one.name, one.name), home.get(other.name, other.name))
        )
        matrix = measure_until(places, within_s=_PATIENCE_S, apart=apart)
        self.console.print(f"   [bold]Who reaches whom, {when}[/bold] (4: IPv4, 6: IPv6, -: not)")
        for line in matrix.lines():
            self.console.print(f"   {line}", markup=False, soft_wrap=True)
        self.expect(
            not matrix.failures,
            f"{matrix.count - len(matrix.failures)} of {matrix.count} pings answered "
            f"after {matrix.took_s:.1f} s",
        )
        self.expect(
            not matrix.trespasses,
            f"{len(matrix.trespasses)} of {len(matrix.pings(apart=True))} pings got through to "
            f"whom {_ALONE} shares no community with",
        )

    def all_pods(self) -> list[tuple[Machine, Any]]:
        return [(each, pod) for each in self.world.machines.values() for pod in pods(each)]

    def may_talk(self, one: str, other: str) -> bool:
        public = {label for label in (one, other) if self.world.machine(label).site.name == CLOUD}
        return one == other or bool(public) or {one, other} <= set(_MEMBERS)

    def show_rungs(self, labels: Sequence[str]) -> None:
        """How the nodes reach each other, when all have climbed as high as they can."""
        pairs = [pair for pair in combinations(labels, 2) if self.may_talk(*pair)]
        took_s = _await(lambda: all(map(_is_high, self.paths_of(pairs))))
        seen = {(path.source, path.target): path for path in self.paths_of(pairs)}
        told = {row.name: _RUNG_WORDS.get(row.name, row.words) for row in by_preference()}
        for rung, words in {**told, "": "not at all"}.items():
            found = [
                f"{a} - {b}" + (f" (by {seen[a, b].relay})" if seen[a, b].relay else "")
                for a, b in pairs
                if seen[a, b].rung == rung
            ]
            if found:
                self.line(f"[bold]{words}:[/bold] {', '.join(found)}")
        self.expect(
            took_s is not None,
            f"only {' and '.join(_NEVER_DIRECT)} need a relay: neither of their NATs lets the "
            "other's first packet in",
        )

    def paths_of(self, pairs: Iterable[tuple[str, str]]) -> list[SeenPath]:
        """Both directions of each."""
        wanted = set(map(frozenset, pairs))
        return [p for p in seen_paths(self.world) if frozenset((p.source, p.target)) in wanted]

    def head(self, text: str) -> None:
        at_s = time.monotonic() - self.started_s
        self.console.print(f"\n[bold]{text}[/bold]  [dim]({at_s:.0f} s)[/dim]", soft_wrap=True)

    def command(self, *words: str) -> None:
        """What a person asks in the cloud, and the answer. Raises: LabError."""
        self.line(f"[bold]$ limpet {' '.join(words)}[/bold]")
        said = self.world.controller.command(*words)
        self.console.print(said, markup=False, soft_wrap=True)

    def line(self, text: str) -> None:
        self.console.print(f"   {text}", soft_wrap=True)

    def expect(self, fact: bool, text: str) -> None:
        if not fact:
            self.failures.append(text)
        mark = "[green]yes[/green]" if fact else "[bold red] NO[/bold red]"
        self.line(f"{mark} {text}")


def pods(machine: Machine) -> list[Any]:
    return sorted(machine.pods.values(), key=lambda pod: pod.name)


def _is_high(path: SeenPath) -> bool:
    if {path.source, path.target} == set(_NEVER_DIRECT):
        return bool(path.relay)
    return bool(path.rung) and not path.relay


def _await(true: Callable[[], bool]) -> float | None:
    """Seconds until it came true; None: it did not."""
    started_s = time.monotonic()
    while (took_s := time.monotonic() - started_s) < _PATIENCE_S:
        if true():
            return took_s
        time.sleep(_LOOK_AGAIN_S)
    return None


def _words(values: Iterable[object], between: str = " ") -> str:
    return between.join(map(str, values))


def _bare(addresses: Sequence[str]) -> list[str]:
    return [each.partition("/")[0] for each in addresses]


def run() -> int:
    """0 when everything that was shown worked. Raises: MissingError before anything is done."""
    world = new_world(load_topology(_TOPOLOGY), f"demo-{os.getpid()}")
    try:
        world.check_machine()
    except MissingError:
        take_down(world.name)
        raise
    console = Console(highlight=False)
    console.print("[bold]Limpet: pods that keep their addresses, with and without the cloud[/bold]")
    console.print("Everything is real: the controller, the agents, the CNI binary, the packets.")
    former = signal.signal(signal.SIGTERM, _interrupted)
    try:
        demo = Demo(world, console)
        try:
            demo.tell()
        except LimpetError as error:
            console.print("[bold red]The demo could not go on:[/bold red]")
            console.print(str(error), markup=False)
            return 1
        finally:
            take_down(world.name)
    finally:
        signal.signal(signal.SIGTERM, former)
    return _conclude(demo, console)


def _interrupted(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _conclude(demo: Demo, console: Console) -> int:
    if demo.failures:
        console.print(f"\n[bold red]{len(demo.failures)} things did not work:[/bold red]")
        for failure in demo.failures:
            console.print(f"   {failure}", markup=False)
        return 1
    console.print(
        f"\n[bold green]All as it should be[/bold green] "
        f"({time.monotonic() - demo.started_s:.0f} s). What to look at:\n"
        "   - The three matrices: nothing changes for the pods, whatever befalls the cloud.\n"
        "   - In step 2 nobody asked the cloud for anything: a node and a gateway rebooted, a "
        "site's address\n     changed, a node grew, a site went dark, the cloud's relay was gone.\n"
        "   - In `limpet pod list`, all pods: new containers of rebooted nodes, old addresses.\n"
        "   Look around yourself: limpet lab up nated; limpet lab status --svg world.svg\n",
        soft_wrap=True,
    )
    return 0
