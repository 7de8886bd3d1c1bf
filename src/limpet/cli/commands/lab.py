"""`limpet lab`: an edge world on this machine, to look at, to break, to learn from."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from msgspec import UNSET, structs, to_builtins

from limpet.base.errors import LimpetError
from limpet.base.text.few import few
from limpet.cli.answers import LabLack, TakenDown, WorldRefused
from limpet.cli.commands.lab_faults import Fault, befall
from limpet.cli.options import Format, Words, group
from limpet.cli.output import Output, counted, put, put_document, put_table, say, show

if TYPE_CHECKING:  # loaded by the command that needs it, so that others start soon
    from limpet.lab.measure.matrix import Matrix
    from limpet.lab.measure.shown import NodeRunning, PodRunning, SiteShown
    from limpet.lab.needs.check import MissingError
    from limpet.lab.world.world import World

_NODE_COLUMNS = ("node", "site", "addresses", "agent", "segments", "pods", "faults")
_POD_COLUMNS = ("pod", "node", "addresses")
_SITE_COLUMNS = ("site", "lan", "nat", "public_address", "faults")
_PATH_COLUMNS = ("from", "to", "rung", "endpoint", "relay", "why")
_FIRST = "two-sites"
_PAIRS_SHOWN = 6
_ASKED_AGAIN_S = 3.0
"""One of hundreds of pings that is lost, on a busy machine, is no way that is gone."""

lab = group("An edge world on this machine, in namespaces of its own.")

Name = Annotated[
    str | None,
    typer.Option("--name", help="Name of the world; it is not needed while there is only one."),
]


@lab.command("up")
def lab_up(
    topology: Annotated[
        str,
        typer.Argument(
            metavar="[TOPOLOGY]",
            help="Name of a topology that comes with Limpet, or a file with one.",
        ),
    ] = _FIRST,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name of the world (default: that of the topology)."),
    ] = None,
    output: Format = Output.TABLE,
) -> None:
    """Build a world and leave it running."""
    from limpet.lab.measure.report import describe
    from limpet.lab.needs.check import MissingError
    from limpet.lab.topology import load_topology
    from limpet.lab.world.worlds import changing, new_world, take_down

    _require_root()
    read = load_topology(topology)
    with changing():
        world = new_world(read, name)
        try:
            world.up(say)
        except MissingError as missing:
            take_down(world.name)  # its folder
            _refuse(missing, output)
        except BaseException:
            say("it does not come up: what was built is taken away again")
            take_down(world.name)
            raise
    if output.is_document:
        put_document(describe(world), output)
        return
    _put_world(world, paths=False)  # there is hardly any yet
    for line in world.hints():
        say(line)
    say("")
    for line in (
        "limpet lab status --ping     who reaches whom",
        "limpet lab fault cut cloud   the cloud is gone; --restore brings it back",
        "limpet lab shell NODE|POD    look around there",
        "limpet lab down              everything goes",
    ):
        say(line)


@lab.command("demo")
def lab_demo() -> None:
    """Three sites behind NATs and a cloud that goes away: what Limpet does, in under a minute."""
    from limpet.lab.demo import run
    from limpet.lab.needs.check import MissingError

    _require_root()
    try:
        raise typer.Exit(run())
    except MissingError as missing:
        _refuse(missing, Output.TABLE)


@lab.command("status")
def lab_status(
    ping: Annotated[
        bool,
        typer.Option("--ping", help="Send a ping between all pods, and show who reaches whom."),
    ] = False,
    svg: Annotated[
        Path | None, typer.Option("--svg", help="Draw who is on which rung into this file.")
    ] = None,
    name: Name = None,
    output: Format = Output.TABLE,
) -> None:
    """What runs in a world, and who is on which rung to whom, as the agents say.

    With --ping, exit code 1 when somebody is not reached.
    """
    from limpet.lab.measure.report import describe, picture, reached
    from limpet.lab.world.worlds import find_world

    _require_root()
    world = find_world(name)
    if svg is not None:
        try:
            svg.write_text(picture(world), encoding="utf-8")
        except OSError as error:
            raise LimpetError(f"write {svg}: {error.strerror or error}") from error
    matrix = world.reach(within_s=_ASKED_AGAIN_S) if ping else None
    if output.is_document:
        reach = UNSET if matrix is None else reached(matrix)
        put_document(structs.replace(describe(world), reach=reach), output)
    else:
        _put_world(world)
        if matrix is not None:
            put("")
            put_matrix(matrix)
    if matrix is not None and matrix.failures:
        raise typer.Exit(1)


@lab.command("fault")
def lab_fault(
    kind: Annotated[
        Fault,
        typer.Argument(
            metavar="KIND", help="What is to happen: one of the faults that the lab can make."
        ),
    ],
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TARGET]",
            help="A node, a site or `all`; cut: `cloud` or a site; kill: `controller`; gateway, "
            "public-address, udp: a site.",
        ),
    ] = None,
    restore: Annotated[
        bool, typer.Option("--restore", help="End the fault: put right what it has done.")
    ] = False,
    name: Name = None,
    output: Format = Output.TABLE,
) -> None:
    """Break something: cut, reboot, address, kill, disk, clock, gateway, public-address, udp."""
    _require_root()
    with _world_to_change(name) as world:
        befallen = befall(world, kind, target, restore=restore)
    show(befallen, output)


@lab.command("shell", context_settings={"ignore_unknown_options": True})
def lab_shell(
    target: Annotated[
        str,
        typer.Argument(
            metavar="PLACE",
            help="Where the shell runs: a node, a pod, `cloud`, `backbone`, SITE.router or "
            "SITE.switch.",
        ),
    ],
    command: Annotated[
        Words,
        typer.Argument(
            metavar="[COMMAND]...",
            help="Command to run there instead of a shell; it stands after `--`.",
        ),
    ] = None,
    name: Name = None,
) -> None:
    """A shell, or a command, in a namespace of a world; `limpet` there means that node."""
    from limpet.lab.world.worlds import find_world

    _require_root()
    world = find_world(name)
    netns = world.netns_of(target)
    if not Path("/run/netns", netns).exists():
        raise LimpetError(f"limpet lab shell {target}: its namespace is gone")
    words = command or [os.environ.get("SHELL", "/bin/sh")]
    environment = os.environ | _environment(world, target)
    prefix = world.prefix_of(target)
    sys.stdout.flush()
    os.execvpe(prefix[0], [*prefix, *words], environment)


@lab.command("down")
def lab_down(name: Name = None, output: Format = Output.TABLE) -> None:
    """Take a world away, however little of it is left."""
    from limpet.lab.world.worlds import changing, choose_name, take_down

    _require_root()
    chosen = choose_name(name)
    with changing():
        gone = take_down(chosen)
    say(f"world {chosen} is gone" if gone else f"there is no world {chosen}")
    show(TakenDown(world=chosen, was_there=gone), output)


# How it is done


def _refuse(missing: MissingError, output: Output) -> NoReturn:
    """What this machine lacks, and what can be built all the same."""
    document = WorldRefused(
        topology=missing.topology,
        lacking=[LabLack(**asdict(each)) for each in missing.lacking],
        topologies_without=[*missing.without],
    )
    show(document, output)
    say(f"limpet lab: {missing.topology} needs what this machine lacks; nothing was built")
    for each in missing.lacking:
        say(f"  {each.what}: {each.cause}")
        say(f"    for {each.used_for}{_pairs_words(each.pairs)}")
        say(f"    do: {each.advice}")
    if missing.without:
        say(f"  or one that goes without: limpet lab up {' | '.join(missing.without)}")
    raise typer.Exit(1)


def _pairs_words(pairs: Sequence[tuple[str, str]]) -> str:
    """Empty where it is not about pairs."""
    if not pairs:
        return ""
    shown = few(pairs, _PAIRS_SHOWN, say="-".join)
    return f": {counted(len(pairs), 'pair')} have no other way ({shown})"


def _require_root() -> None:
    if os.geteuid() != 0:
        raise LimpetError("lab: only root can make namespaces (sudo limpet lab ...)")


@contextmanager
def _world_to_change(name: str | None) -> Iterator[World]:
    from limpet.lab.world.worlds import changing, choose_name, find_world

    chosen = choose_name(name)
    with changing():
        yield find_world(chosen)


def _environment(world: World, target: str) -> dict[str, str]:
    """`limpet` there is this one, and asks that node's agent, or the cloud's controller."""
    found = world.environment()
    path = found.get("PATH", os.environ.get("PATH", os.defpath))
    found["PATH"] = f"{Path(sys.executable).parent}:{path}"
    if target in world.machines:
        found["LIMPET_CONFIG"] = str(world.machines[target].config_path)
    elif target == "cloud":
        found["LIMPET_CONTROLLER_CONFIG"] = str(world.controller.config_path)
    return found


def _put_world(world: World, *, paths: bool = True) -> None:
    from limpet.lab.measure.report import describe

    seen = describe(world)
    controller = seen.controller
    runs = f"process {controller.pid}" if controller.pid else "does not run"
    put(
        f"world {seen.world} ({seen.topology}) in {seen.folder}; controller {runs} at "
        f"{controller.endpoints[0]}"
    )
    put(f"cut off: {', '.join(seen.cut_off) or 'nothing'}")
    put("")
    put_table([_site_row(each) for each in seen.sites], _SITE_COLUMNS)
    put("")
    put_table([_node_row(each) for each in seen.nodes], _NODE_COLUMNS)
    if seen.pods:
        put("")
        put_table([_pod_row(each) for each in seen.pods], _POD_COLUMNS)
    if seen.paths and paths:
        put("")
        put_table([to_builtins(each) for each in seen.paths], _PATH_COLUMNS)


def _site_row(site: SiteShown) -> dict[str, Any]:
    faults = "UDP is blocked" if site.udp_blocked else ""
    return {**structs.asdict(site), "lan": ",".join(site.lan), "faults": faults}


def _node_row(node: NodeRunning) -> dict[str, Any]:
    faults = ["its disk is full"] if node.disk_full else []
    faults += [f"its clock started at {node.clock}"] if node.clock else []
    return {
        **structs.asdict(node),
        "addresses": ",".join(node.addresses),
        "segments": ",".join(node.segments),
        "faults": "; ".join(faults),
    }


def _pod_row(pod: PodRunning) -> dict[str, Any]:
    addresses = ",".join(pod.addresses)
    gone = "" if pod.there else " (gone)"
    return {**structs.asdict(pod), "addresses": f"{addresses}{gone}"}


def put_matrix(matrix: Matrix) -> None:
    """Rows ping columns; 4 and 6 are the IP versions that were answered."""
    for line in matrix.lines():
        put(line)
    missing = len(matrix.failures)
    put(f"{matrix.count - missing} of {matrix.count} pings answered")
