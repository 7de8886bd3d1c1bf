"""`make demo`: an edge world that is cut off from its cloud and goes on. Nothing is simulated."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table

from limpet.lab.clock import LONG_AGO, has_clock_library
from limpet.lab.machine import Machine
from limpet.lab.topology import load_topology
from limpet.lab.world import World
from limpet.lab.worlds import new_world, take_down
from limpet.model.errors import LimpetError

_TOPOLOGY = "two-sites"
_REBOOTED, _MOVED, _KILLED, _GROWN, _DARK = "crane-2", "digger-1", "crane-1", "digger-2", "quarry"
_NEW_PODS = 3
"""With the three that are there, one more than an IPv4 segment of the topology holds."""
_PATIENCE_S = 15.0
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
        self.head("1. Two sites and a cloud: a harbour, a quarry, and an IP controller far away")
        self.world.up(self.line)
        self.line("Each node was granted segments; from these it gives addresses by itself:")
        self.await_spare()
        table = Table("node", "site", "LAN address", "segments", "pods")
        for machine in self.world.machines.values():
            table.add_row(
                machine.label,
                machine.site.name,
                _words(each.ip for each in machine.addresses),
                _words(self.segments(machine), "\n"),
                _words((_words(each.ip for each in pod.addresses) for pod in pods(machine)), "\n"),
            )
        self.console.print(table)
        self.show_reach("before")

    def live_without_the_cloud(self) -> None:
        self.head("2. The cloud is cut off. Now things happen at the edge")
        before = {pod.name: pod.addresses for pod in self.world.pods}
        self.world.cut("cloud")
        self.kill_an_agent()
        self.reboot_a_node()
        self.move_a_node()
        self.grow()
        self.reboot_a_site()
        self.expect(
            all(self.world.pod(name).addresses == addresses for name, addresses in before.items()),
            f"all {len(before)} pods that were there have their old addresses",
        )
        self.show_reach("during")

    def kill_an_agent(self) -> None:
        machine = self.world.machine(_KILLED)
        machine.stop_agent(signal.SIGKILL)
        others = [pod for pod in self.world.pods if pod.node is not machine]
        targets = [address.ip for pod in pods(machine) for address in pod.addresses]
        reached = all(pod.reaches(target) for pod in others[:2] for target in targets)
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

    def move_a_node(self) -> None:
        machine = self.world.machine(_MOVED)
        before = _words(each.ip for each in machine.addresses)
        self.world.change_addresses([machine])
        after = _words(each.ip for each in machine.addresses)
        self.expect(before != after, f"{_MOVED}: its LAN address changes, {before} -> {after}")

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
        wrong = has_clock_library()
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
            f"the controller knows all {len(want)} pods and where {_MOVED} is now"
            + (f", {took_s:.1f} s after the cloud came back" if took_s is not None else ""),
        )
        for words in (("node", "list"), ("pod", "list")):
            self.line(f"[bold]$ limpet {' '.join(words)}[/bold]")
            self.console.print(self.world.controller.command(*words), markup=False, soft_wrap=True)
        self.show_reach("after")

    def await_report(self, want: set[tuple[str, str, frozenset[str]]]) -> float | None:
        """Seconds until the controller knows; None: it still does not."""
        started_s = time.monotonic()
        moved = {str(each.ip) for each in self.world.machine(_MOVED).addresses}
        while (took_s := time.monotonic() - started_s) < _PATIENCE_S:
            found = {
                (each["node"], each["pod"], frozenset(_bare(each["addresses"])))
                for each in self.world.controller.ask("pod.list")["pods"]
            }
            presence = self.world.controller.ask("node.show", node=_MOVED)["presence"] or {}
            if found == want and moved <= set(presence.get("addresses", ())):
                return took_s
            time.sleep(_LOOK_AGAIN_S)
        return None

    def await_spare(self) -> None:
        machine = self.world.machine(_GROWN)
        started_s = time.monotonic()
        while time.monotonic() - started_s < _PATIENCE_S:
            if sum(":" not in each for each in self.segments(machine)) > 1:
                return
            time.sleep(_LOOK_AGAIN_S)
        self.expect(False, f"{_GROWN}: it gets a spare segment ahead of need")

    # Words

    def segments(self, machine: Machine) -> list[str]:
        return [each["prefix"] for each in machine.ask("status")["segments"]]

    def show_reach(self, when: str) -> None:
        """Who reaches whom, over IPv4 and IPv6; pings that really travel."""
        matrix = self.world.reach(within_s=_PATIENCE_S)
        self.console.print(f"   [bold]Who reaches whom, {when}[/bold] (4: IPv4, 6: IPv6, -: not)")
        for line in matrix.lines():
            self.console.print(f"   {line}", markup=False, soft_wrap=True)
        self.expect(
            not matrix.failures,
            f"{matrix.count - len(matrix.failures)} of {matrix.count} pings answered "
            f"after {matrix.took_s:.1f} s",
        )

    def head(self, text: str) -> None:
        at_s = time.monotonic() - self.started_s
        self.console.print(f"\n[bold]{text}[/bold]  [dim]({at_s:.0f} s)[/dim]", soft_wrap=True)

    def line(self, text: str) -> None:
        self.console.print(f"   {text}", soft_wrap=True)

    def expect(self, fact: bool, text: str) -> None:
        if not fact:
            self.failures.append(text)
        mark = "[green]yes[/green]" if fact else "[bold red] NO[/bold red]"
        self.line(f"{mark} {text}")


def pods(machine: Machine) -> list[Any]:
    return sorted(machine.pods.values(), key=lambda pod: pod.name)


def _words(values: Iterable[object], between: str = " ") -> str:
    return between.join(map(str, values))


def _bare(addresses: Sequence[str]) -> list[str]:
    return [each.partition("/")[0] for each in addresses]


def run() -> int:
    """0 when everything that was shown worked."""
    console = Console(highlight=False)
    console.print("[bold]Limpet: pods that keep their addresses, with and without the cloud[/bold]")
    console.print("Everything is real: the controller, the agents, the CNI binary, the packets.")
    former = signal.signal(signal.SIGTERM, _interrupted)
    try:
        world = new_world(load_topology(_TOPOLOGY), f"demo-{os.getpid()}")
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
        "   - In step 2 nobody asked the cloud for anything: a node rebooted, one moved, one grew, "
        "a site went dark.\n"
        "   - In `limpet pod list`, all pods: new containers of rebooted nodes, old addresses.\n"
        "   Look around yourself: limpet lab up; limpet lab status --ping; limpet lab fault cut\n",
        soft_wrap=True,
    )
    return 0
