"""`make demo`: what Limpet does, shown on one machine in half a minute, with nothing simulated."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from limpet.lab.node import LabError, LabNode, LabPod

PODS = ("web-0", "web-1", "db-0")
SEGMENTS = ("10.244.7.0/24", "fd00:7::/64")


class Demo:
    """The story, step by step; `failures` counts what did not come out as told."""

    def __init__(self, node: LabNode, console: Console) -> None:
        self.node = node
        self.console = console
        self.failures = 0

    def tell(self) -> None:
        """Raises: LabError when a step cannot be taken at all."""
        say = self.console.print
        say("\n[bold]1. A node, and its agent[/bold]")
        say(
            "   A network namespace plays the machine; "
            f"its pod segments are {' and '.join(SEGMENTS)}."
        )
        self.node.start_agent()
        say(f"   The agent runs (process {self.node.agent_pid}).")

        say("\n[bold]2. Three pods are attached through the CNI binary, as containerd would[/bold]")
        first = self.attach(PODS, generation=1)
        self.show_addresses(first)
        self.show_matrix(first)

        say("\n[bold]3. The agent is killed (SIGKILL): the pods do not notice[/bold]")
        self.node.stop_agent(signal.SIGKILL)
        self.show_matrix(first)

        say("\n[bold]4. The node 'reboots' with no network: no devices, no /run, no pods[/bold]")
        before = {pod.name: pod.addresses for pod in first}
        self.node.reboot()
        self.expect(set(self.node.links()) == {"lo"}, "only the loopback device is left")
        self.node.start_agent()

        say("\n[bold]5. The same pods come back, in another order, as new containers[/bold]")
        again = self.attach(PODS[::-1], generation=2)
        table = Table("pod", "address before", "address now", "kept")
        for pod in sorted(again, key=lambda pod: pod.name):
            kept = before[pod.name] == pod.addresses
            table.add_row(pod.name, _words(before[pod.name]), _words(pod.addresses), _mark(kept))
            self.failures += not kept
        say(table)
        self.show_matrix(again)

        say("\n[bold]6. The pods are deleted: nothing is left over[/bold]")
        for pod in again:
            pod.delete()
        self.node.stop_agent()
        left = [name for name in self.node.links() if name.startswith("lim") and name != "limpet0"]
        self.expect(not left, "no pod interface is left on the node")

    def attach(self, names: Sequence[str], *, generation: int) -> list[LabPod]:
        pods = [self.node.pod(name, container_id=f"{name}-{generation}") for name in names]
        for pod in pods:
            pod.add()
        return pods

    def show_addresses(self, pods: Sequence[LabPod]) -> None:
        table = Table("pod", "addresses")
        for pod in pods:
            table.add_row(pod.name, _words(pod.addresses))
        self.console.print(table)

    def show_matrix(self, pods: Sequence[LabPod]) -> None:
        """Who reaches whom, over IPv4 and IPv6; pings that really travel."""
        table = Table("from \\ to", *(pod.name for pod in pods), title="reachability (IPv4 IPv6)")
        for source in pods:
            table.add_row(source.name, *(self.cell(source, target) for target in pods))
        table.add_row("the node", *(self.cell(None, target) for target in pods))
        self.console.print(table)

    def cell(self, source: LabPod | None, target: LabPod) -> str:
        marks = []
        for address in target.addresses:
            reached = self.ping(address.ip) if source is None else source.reaches(address.ip)
            self.failures += not reached
            marks.append(_mark(reached))
        return " ".join(marks)

    def ping(self, address: object) -> bool:
        try:
            self.node.run("ping", "-n", "-q", "-c", "1", "-W", "1", str(address))
        except LabError:
            return False
        return True

    def expect(self, fact: bool, text: str) -> None:
        self.failures += not fact
        self.console.print(f"   {_mark(fact)} {text}")


def _words(addresses: Sequence[object]) -> str:
    return "  ".join(str(address).split("/")[0] for address in addresses)


def _mark(good: bool) -> str:
    return "[green]yes[/green]" if good else "[bold red]NO[/bold red]"


def run() -> int:
    """0 when everything that was shown worked."""
    console = Console(highlight=False)
    console.print("[bold]Limpet: pods that keep their addresses[/bold]")
    with tempfile.TemporaryDirectory(prefix="limpet-demo-") as folder:
        node = None
        try:
            node = LabNode(f"limpet-demo-{os.getpid()}", Path(folder), segments=list(SEGMENTS))
            demo = Demo(node, console)
            demo.tell()
        except LabError as error:
            console.print(f"[bold red]The demo could not go on:[/bold red] {error}", markup=True)
            return 1
        finally:
            if node is not None:
                node.remove()
    if demo.failures:
        console.print(f"[bold red]{demo.failures} things did not work.[/bold red]")
        return 1
    console.print(
        "\n[bold green]All as it should be.[/bold green] Look at step 5: new containers, "
        "a rebooted node, no cloud, and every pod has its old address.\n"
    )
    return 0
