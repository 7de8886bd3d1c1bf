"""`limpet lab`: an edge world on this machine, to look at, to break, to learn from."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limpet.ctl.output import Output, put, put_json, put_table, say
from limpet.model.errors import LimpetError

if TYPE_CHECKING:
    from limpet.lab.matrix import Matrix
    from limpet.lab.world import World

_NODE_COLUMNS = ("node", "site", "addresses", "agent", "segments", "pods", "faults")
_POD_COLUMNS = ("pod", "node", "addresses")
_FIRST = "two-sites"

lab = typer.Typer(
    help="An edge world on this machine, in namespaces of its own.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[
    str | None, typer.Option("--name", help="Of the world; not needed while there is only one.")
]
Format = Annotated[Output, typer.Option("--output", help="How the result is printed.")]


class Fault(StrEnum):
    """What can befall a world."""

    CUT = "cut"
    REBOOT = "reboot"
    ADDRESS = "address"
    KILL = "kill"
    DISK = "disk"
    CLOCK = "clock"


@lab.command("up")
def lab_up(
    topology: Annotated[
        str, typer.Argument(metavar="[TOPOLOGY]", help="One that comes with Limpet, or a file.")
    ] = _FIRST,
    name: Annotated[
        str | None, typer.Option("--name", help="Of the world (default: the topology's).")
    ] = None,
) -> None:
    """Build a world and leave it running."""
    from limpet.lab.topology import load_topology
    from limpet.lab.worlds import changing, new_world, take_down

    _require_root()
    read = load_topology(topology)
    with changing():
        world = new_world(read, name)
        try:
            world.up(say)
        except BaseException:
            say("it does not come up: what was built is taken away again")
            take_down(world.name)
            raise
    _put_world(world)
    say(
        "\nlimpet lab status --ping     who reaches whom"
        "\nlimpet lab fault cut cloud   the cloud is gone; --restore brings it back"
        "\nlimpet lab shell NODE|POD    look around there"
        "\nlimpet lab down              everything goes"
    )


@lab.command("demo")
def lab_demo() -> None:
    """Two sites and a cloud that goes away: what Limpet does, in under a minute."""
    from limpet.lab.demo import run

    _require_root()
    raise typer.Exit(run())


@lab.command("status")
def lab_status(
    ping: Annotated[bool, typer.Option("--ping", help="Try who reaches whom.")] = False,
    name: Name = None,
    output: Format = Output.TABLE,
) -> None:
    """What runs in a world; with --ping, exit code 1 when somebody is not reached."""
    from limpet.lab.report import describe
    from limpet.lab.worlds import find_world

    _require_root()
    world = find_world(name)
    matrix = world.reach() if ping else None
    if output is Output.JSON:
        put_json(describe(world) | ({"reach": _reach_document(matrix)} if matrix else {}))
    else:
        _put_world(world)
        if matrix is not None:
            put("")
            put_matrix(matrix)
    if matrix is not None and matrix.failures:
        raise typer.Exit(1)


@lab.command("fault")
def lab_fault(
    kind: Annotated[Fault, typer.Argument(help="What happens.")],
    target: Annotated[
        str | None,
        typer.Argument(help="A node, a site or `all`; cut: `cloud` or a site; kill: `controller`."),
    ] = None,
    restore: Annotated[bool, typer.Option("--restore", help="Put it right again.")] = False,
    name: Name = None,
) -> None:
    """Break something: cut, reboot, address, kill, disk, clock."""
    _require_root()
    with _world_to_change(name) as world:
        _FAULTS[kind](world, target, restore)


@lab.command("shell", context_settings={"ignore_unknown_options": True})
def lab_shell(
    target: Annotated[
        str, typer.Argument(help="A node, a pod, `cloud`, `backbone`, SITE.router, SITE.switch.")
    ],
    command: Annotated[
        list[str] | None, typer.Argument(help="Instead of a shell, after `--`.")
    ] = None,
    name: Name = None,
) -> None:
    """A shell, or a command, in a namespace of a world; `limpet` there means that node."""
    from limpet.lab.worlds import find_world

    _require_root()
    world = find_world(name)
    netns = world.netns_of(target)
    if not Path("/run/netns", netns).exists():
        raise LimpetError(f"limpet lab shell {target}: its namespace is gone")
    words = command or [os.environ.get("SHELL", "/bin/sh")]
    environment = os.environ | _environment(world, target)
    sys.stdout.flush()
    os.execvpe("nsenter", ["nsenter", f"--net=/run/netns/{netns}", *words], environment)


@lab.command("down")
def lab_down(name: Name = None) -> None:
    """Take a world away, however little of it is left."""
    from limpet.lab.worlds import changing, choose_name, take_down

    _require_root()
    chosen = choose_name(name)
    with changing():
        gone = take_down(chosen)
    say(f"world {chosen} is gone" if gone else f"there is no world {chosen}")


# How it is done


def _require_root() -> None:
    if os.geteuid() != 0:
        raise LimpetError("limpet lab: only root can make namespaces (sudo limpet lab ...)")


@contextmanager
def _world_to_change(name: str | None) -> Iterator[World]:
    from limpet.lab.worlds import changing, choose_name, find_world

    chosen = choose_name(name)
    with changing():
        yield find_world(chosen)


def _environment(world: World, target: str) -> dict[str, str]:
    """`limpet` there is this one, and asks that node's agent, or the cloud's controller."""
    found = {"PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"}
    if target in world.machines:
        found["LIMPET_CONFIG"] = str(world.machines[target].config_path)
    elif target == "cloud":
        found["LIMPET_CONTROLLER_CONFIG"] = str(world.controller.config_path)
    return found


def _needed(kind: Fault, target: str | None) -> str:
    if target is None:
        raise LimpetError(
            f"limpet lab fault {kind}: say whom it befalls (a node, a site, or all; "
            "limpet lab status names them)"
        )
    return target


def _cut(world: World, target: str | None, restore: bool) -> None:
    link = target or "cloud"
    if restore:
        world.restore(link)
        say(f"{link} is connected")
    else:
        world.cut(link)
        say(f"{link} is cut off: nothing comes through, and nobody says so")


def _reboot(world: World, target: str | None, restore: bool) -> None:
    _refuse_restore(Fault.REBOOT, restore)
    machines = world.select(_needed(Fault.REBOOT, target))
    world.reboot(machines)
    for machine in machines:
        say(f"{machine.label} has rebooted; {len(machine.pods)} pods are back as new containers")


def _address(world: World, target: str | None, restore: bool) -> None:
    _refuse_restore(Fault.ADDRESS, restore)
    machines = world.select(_needed(Fault.ADDRESS, target))
    world.change_addresses(machines)
    for machine in machines:
        say(f"{machine.label} is {', '.join(map(str, machine.addresses))} now")


def _kill(world: World, target: str | None, restore: bool) -> None:
    chosen = _needed(Fault.KILL, target)
    if chosen == "controller":
        if restore:
            world.start_controller()
        else:
            world.controller.process.kill()
    else:
        (world.start_agents if restore else world.kill_agents)(world.select(chosen))
    what = "controller" if chosen == "controller" else f"agent of {chosen}"
    say(f"{what}: {'runs' if restore else 'killed'}")


def _disk(world: World, target: str | None, restore: bool) -> None:
    for machine in world.select(_needed(Fault.DISK, target)):
        if restore:
            machine.empty_disk()
        else:
            machine.fill_disk()
        say(f"{machine.label}: its disk {'has room again' if restore else 'is full'}")


def _clock(world: World, target: str | None, restore: bool) -> None:
    from limpet.lab.clock import LONG_AGO

    machines = world.select(_needed(Fault.CLOCK, target))
    world.turn_clocks_back(machines, None if restore else LONG_AGO)
    for machine in machines:
        right = "the true time" if restore else f"that it is {LONG_AGO}"
        say(f"{machine.label}: its agent was started anew and takes it {right}")


def _refuse_restore(kind: Fault, restore: bool) -> None:
    if restore:
        raise LimpetError(f"limpet lab fault {kind} --restore: it is over as soon as it happened")


_FAULTS: dict[Fault, Callable[[Any, str | None, bool], None]] = {
    Fault.CUT: _cut,
    Fault.REBOOT: _reboot,
    Fault.ADDRESS: _address,
    Fault.KILL: _kill,
    Fault.DISK: _disk,
    Fault.CLOCK: _clock,
}


def _put_world(world: World) -> None:
    from limpet.lab.report import describe

    seen = describe(world)
    pid = seen["controller"]["pid"]
    put(
        f"world {seen['world']} ({seen['topology']}) in {seen['folder']}; controller "
        f"{f'process {pid}' if pid else 'does not run'} at {seen['controller']['endpoints'][0]}"
    )
    put(f"cut off: {', '.join(seen['cut_off']) or 'nothing'}\n")
    put_table([_node_row(each) for each in seen["nodes"]], _NODE_COLUMNS)
    if seen["pods"]:
        put("")
        put_table([_pod_row(each) for each in seen["pods"]], _POD_COLUMNS)


def _node_row(node: dict[str, Any]) -> dict[str, Any]:
    faults = ["its disk is full"] if node["disk_full"] else []
    faults += [f"its clock started at {node['clock']}"] if node["clock"] else []
    return {
        **node,
        "addresses": ",".join(node["addresses"]),
        "segments": ",".join(node["segments"]),
        "faults": "; ".join(faults),
    }


def _pod_row(pod: dict[str, Any]) -> dict[str, Any]:
    addresses = ",".join(pod["addresses"])
    return {**pod, "addresses": addresses if pod["there"] else f"{addresses} (gone)"}


def put_matrix(matrix: Matrix) -> None:
    """Rows ping columns; 4 and 6 are the IP versions that were answered."""
    for line in matrix.lines():
        put(line)
    missing = len(matrix.failures)
    put(f"{matrix.count - missing} of {matrix.count} pings answered")


def _reach_document(matrix: Matrix) -> dict[str, Any]:
    return {
        "pings": matrix.count,
        "unanswered": [
            {"from": source, "to": target, "address": address}
            for source, target, address in matrix.failures
        ],
    }
