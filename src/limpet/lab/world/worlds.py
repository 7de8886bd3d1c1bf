"""Worlds that run on this machine, found again by later commands."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path

from limpet.lab.command import LabError
from limpet.lab.kube.world import KubeWorld
from limpet.lab.topology import Topology, load_topology
from limpet.lab.world.wires import existing_namespaces
from limpet.lab.world.world import TOPOLOGY, World, clear_away

FOLDER = Path("/run/limpet-lab")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,19}")


def world_names() -> list[str]:
    """Also of those that are half gone."""
    if not FOLDER.is_dir():
        return []
    return sorted(each.name for each in FOLDER.iterdir() if each.is_dir())


def new_world(topology: Topology, name: str | None, folder: Path = FOLDER) -> World:
    """Not built yet. Raises: LabError when the name is no name, or taken."""
    chosen = name or topology.name
    check_name(chosen)
    if (folder / chosen).exists() or existing_namespaces(chosen):
        raise LabError(
            f"build world {chosen}: there is one of that name (limpet lab down --name {chosen}, "
            "or choose another name: limpet lab up --name NAME)"
        )
    return _type_of(topology)(topology, chosen, folder / chosen)


def check_name(name: str) -> None:
    """Raises: LabError."""
    if not _NAME.fullmatch(name):
        raise LabError(
            f"find world {name!r}: that is no name of a world (lower-case letters, digits and "
            "'-', at most 20)"
        )


def choose_name(name: str | None) -> str:
    """`name`; when None, of the only world that there is. Raises: LabError."""
    names = world_names()
    if name is not None:
        check_name(name)
        return name
    if not names:
        raise LabError("find a world: none is here (build one: limpet lab up)")
    if len(names) > 1:
        raise LabError(f"find the world: there are {', '.join(names)} (say which: --name NAME)")
    return names[0]


def find_world(name: str | None) -> World:
    """Raises: LabError."""
    chosen = choose_name(name)
    if not (FOLDER / chosen).exists():
        there = ", ".join(world_names()) or "none"
        raise LabError(f"find world {chosen}: it is not here (there are: {there})")
    try:
        topology = load_topology(str(FOLDER / chosen / TOPOLOGY))
    except LabError:
        return World.open(FOLDER / chosen)  # which says what to do
    return _type_of(topology).open(FOLDER / chosen)


def _type_of(topology: Topology) -> type[World]:
    return KubeWorld if topology.kubernetes else World


@contextlib.contextmanager
def changing() -> Iterator[None]:
    """One command changes worlds at a time; others wait."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(FOLDER, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def take_down(name: str, folder: Path = FOLDER) -> bool:
    """A world goes, however little of it is left; False: there was nothing. Raises: LabError."""
    check_name(name)
    if not (folder / name).exists() and not existing_namespaces(name):
        return False
    clear_away(name, folder / name)
    return True
