"""Worlds whose namespaces start with `limpet-lab.llb<pid>-`; whatever happens, they go."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from limpet.lab.topology import load_topology
from limpet.lab.world.world import World
from limpet.lab.world.worlds import new_world, take_down

MakeWorld = Callable[[str], World]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def make_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeWorld]:
    """Worlds of topologies, not built yet."""
    folder = tmp_path_factory.mktemp("worlds")
    names: list[str] = []

    def make(topology: str) -> World:
        name = f"llb{os.getpid()}-{next(_numbers)}"
        names.append(name)
        return new_world(load_topology(topology), name, folder)

    yield make
    for name in names:
        take_down(name, folder)


@pytest.fixture(scope="module")
def topology_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One node with one pod: as little as a world can be."""
    file = tmp_path_factory.mktemp("topology") / "llb.toml"
    file.write_text(
        '[cloud]\naddresses = ["203.0.113.10/24"]\n'
        '[site.yard]\nlan = ["192.168.10.0/24"]\nnodes = { gate = 1 }\n'
    )
    return file
