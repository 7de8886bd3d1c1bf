"""What install says where the kernel has no WireGuard: of programs, old ones, and none."""

from __future__ import annotations

from pathlib import Path

import pytest

from limpet.agent.settings import Settings
from limpet.base.settings import Folders, TunnelSettings
from limpet.cli.doctor.cluster.tunnel import examine_wireguard
from limpet.cli.doctor.findings import Level
from tests.beds.tunnel_bed import kernel_has_wireguard, wireguard_go

without_the_kernel_s = pytest.mark.skipif(
    kernel_has_wireguard(), reason="this kernel has WireGuard: nothing else is looked at"
)


def look(folder: Path, program: str) -> tuple[Level, str]:
    settings = Settings(
        folders=Folders(state_dir=folder, run_dir=folder), tunnel=TunnelSettings(program=program)
    )
    (found,) = examine_wireguard(settings)
    assert found.level is Level.OK or (found.why and found.advice)
    assert found.level is not Level.ERROR  # a node of one site needs none
    return found.level, found.what


def program(folder: Path, says: str) -> str:
    made = folder / "wireguard-go"
    made.write_text(f"#!/bin/sh\n{says}\n")
    made.chmod(0o755)
    return str(made)


def test_the_kernel_s_wireguard_or_a_program_of_today_is_all_that_is_needed(tmp_path: Path) -> None:
    level, what = look(tmp_path, wireguard_go())

    assert level is Level.OK
    assert ("the kernel has WireGuard" in what) is kernel_has_wireguard()


@without_the_kernel_s
@pytest.mark.parametrize(
    ("says", "words"),
    [
        ("echo wireguard-go v0.0.20220316", "is of version 0.0.20220316"),
        ("exit 1", "does not say its version"),
    ],
)
def test_a_program_that_is_old_or_broken_is_a_warning(
    tmp_path: Path, says: str, words: str
) -> None:
    level, what = look(tmp_path, program(tmp_path, says))

    assert (level, words in what) == (Level.WARN, True)


@without_the_kernel_s
def test_without_a_program_it_is_said_which_package_brings_it(tmp_path: Path) -> None:
    level, what = look(tmp_path, str(tmp_path / "wireguard-go"))

    assert level is Level.WARN
    assert "install the package wireguard-go" in what
