"""The unit file."""

from __future__ import annotations

import configparser
import os
import subprocess
from pathlib import Path

import pytest

from limpet.base.errors import LimpetError
from limpet.cli.install.units import service
from limpet.cli.install.units.service import agent_command, systemctl, unit_text


def lines_of(unit: str, key: str) -> list[str]:
    return [line.partition("=")[2] for line in unit.splitlines() if line.startswith(f"{key}=")]


def test_the_agent_starts_before_whatever_starts_pods_and_waits_for_no_network() -> None:
    unit = unit_text(Path("/etc/limpet/agent.toml"))

    before = " ".join(lines_of(unit, "Before")).split()
    after = " ".join(lines_of(unit, "After")).split()
    assert {"containerd.service", "crio.service", "kubelet.service"} <= set(before)
    assert not {"network.target", "network-online.target"} & set(after)


def test_nothing_keeps_the_agent_from_entering_namespaces() -> None:
    unit = unit_text(Path("/etc/limpet/agent.toml"))

    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(unit)
    service = dict(parser["Service"])
    mounts = {"PrivateTmp", "ProtectSystem", "ProtectHome", "PrivateMounts", "PrivateDevices"}
    assert not (mounts | {"RestrictNamespaces", "PrivateNetwork"}) & service.keys()
    assert "CAP_SYS_ADMIN" in service["CapabilityBoundingSet"]
    assert service["Restart"] == "always"
    assert service["KillMode"] == "process"


@pytest.mark.parametrize("name", ["agent.toml", "a b.toml", "50%$x.toml", 'a"b.toml', "a\\b.toml"])
def test_systemd_reads_the_command_as_it_is_meant(tmp_path: Path, name: str) -> None:
    config = tmp_path / name
    unit = tmp_path / "limpet-agent.service"
    unit.write_text(unit_text(config))

    # The only tool that parses ExecStart without running it: it complains of what it cannot parse.
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert "limpet-agent.service" not in done.stderr
    assert agent_command(config)[-1] == str(config)


def test_of_a_unit_for_which_systemctl_waits_too_long_it_is_said_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "systemctl"
    program.write_text("#!/bin/sh\nexec sleep infinity\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(service, "_SYSTEMCTL_S", 0.1)

    with pytest.raises(LimpetError, match=r"try-restart limpet-dns\.service: it did not end"):
        systemctl("try-restart", "limpet-dns.service")
