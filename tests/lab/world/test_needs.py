"""What `limpet lab` does on a machine that lacks something: an installed Limpet, as from a wheel,
with a PATH in which the programs really are not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import limpet
from limpet.cli.usage.schemas import schema_of
from limpet.datapath.tunnel.wireguard.device import kernel_has_wireguard
from limpet.lab.needs.check import MissingError, check
from limpet.lab.topology import load_topology
from limpet.lab.world.wires import existing_namespaces
from limpet.lab.world.worlds import FOLDER, take_down

NAME = f"llb{os.getpid()}-lacks"
NO_WIREGUARD = {"tunnel_program": "/nonexistent/wireguard-go"}
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """`limpet lab ...` where neither a checkout is found nor the named programs."""
    libraries = sysconfig.get_path("purelib")
    for source in (Path(libraries, "limpet"), Path(limpet.__file__).parent):  # built, and written
        there = tmp_path / "site" / "limpet"
        shutil.copytree(source, there, copy_function=os.symlink, dirs_exist_ok=True)

    def start(*words: str, without: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        programs = tmp_path / "bin"
        programs.mkdir(exist_ok=True)
        for folder in os.environ["PATH"].split(":"):
            for each in Path(folder).glob("*"):
                link = programs / each.name
                if each.name not in without and not link.is_symlink():
                    link.symlink_to(each)
        # -S: nothing leads back into the checkout.
        path = f"{tmp_path / 'site'}:{libraries}"
        return subprocess.run(
            [sys.executable, "-S", "-m", "limpet", "lab", *words],
            env={**os.environ, "PATH": str(programs), "PYTHONPATH": path},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    yield start
    take_down(NAME)


def test_a_world_whose_programs_are_not_there_is_refused_before_anything_is_built(run: Run) -> None:
    without = ("wireguard-go", "nft")
    done = run("up", "nated", "--name", NAME, "--output", "json", without=without)

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    answer = json.loads(done.stdout)
    Draft202012Validator(schema_of("lab up")).validate(answer)
    packages = {package: each for each in answer["lacking"] for package in each["packages"]}
    assert packages.keys() == {"nftables", *(() if kernel_has_wireguard() else ("wireguard-go",))}
    assert packages["nftables"]["what"] == "the program nft"
    assert answer["topologies_without"] == []
    assert "install the package nftables" in done.stderr
    assert "nothing was built" in done.stderr
    assert existing_namespaces(NAME) == []
    assert not (FOLDER / NAME).exists()


def test_the_demo_says_what_it_lacks_and_does_nothing(run: Run) -> None:
    done = run("demo", without=("wireguard-go", "nft"))

    assert done.returncode == 1
    assert done.stdout == ""
    assert "the program nft: it is not in PATH" in done.stderr
    assert "install the package nftables" in done.stderr


@pytest.mark.parametrize("name", ["demo", "nated"])
def test_without_wireguard_pairs_across_nats_are_named_and_topologies_that_go_without(
    name: str,
) -> None:
    if kernel_has_wireguard():
        check(load_topology(name), NO_WIREGUARD)  # no program is needed
        return
    with pytest.raises(MissingError) as refused:
        check(load_topology(name), NO_WIREGUARD)

    (lacking,) = refused.value.lacking
    assert lacking.packages == ("wireguard-go",)
    assert "/nonexistent/wireguard-go is not there" in lacking.cause
    assert ("crane-1", "digger-1") in lacking.pairs
    assert ("crane-1", "crane-2") not in lacking.pairs
    assert {"one-lan", "two-sites", "three-sites", "filtering-switch"} <= {*refused.value.without}
    assert not {"demo", "nated", "nat-matrix"} & {*refused.value.without}


def test_sites_that_need_no_tunnel_are_built_without_a_program_for_them() -> None:
    check(load_topology("two-sites"), NO_WIREGUARD)
