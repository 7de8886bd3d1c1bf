"""What a package does after an upgrade and before it goes; with units of a real systemd."""

from __future__ import annotations

import subprocess

from limpet.cni.shim_binary import shim_path
from limpet.ipam.hostlocal import JOURNAL
from tests.cli.install.service_machine import ServiceMachine
from tests.cli.install.test_install import (
    BINARY,
    CONFIG,
    CONFLIST,
    LIMPET,
    limpet,
    plain_machine,
)
from tests.clients.machine import CHECKOUT, Machine

__all__ = ["plain_machine"]
UNITS = ("limpet-controller", "limpet-agent", "limpet-dns", "limpet-page")
_UNIT = """\
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/test ! -e /run/{unit}-fails
"""


def invocations(machine: ServiceMachine) -> dict[str, str]:
    """Another one of each unit for each time that it is started."""
    asked = ("systemctl", "show", "--property=InvocationID", "--value")
    return {unit: machine.run(*asked, unit).strip() for unit in UNITS}


def test_a_unit_that_fails_keeps_no_other_from_this_version(machine: ServiceMachine) -> None:
    for unit in UNITS:
        path = machine.path(f"/etc/systemd/system/{unit}.service")
        path.write_text(_UNIT.format(unit=unit))
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", *UNITS)
    failing = {"limpet-controller", "limpet-dns"}
    for unit in failing:
        machine.path(f"/run/{unit}-fails").touch()
    before = invocations(machine)

    done = machine.try_run(*LIMPET, "install", "--refresh")

    after = invocations(machine)
    assert {unit for unit in UNITS if after[unit] == before[unit]} == set()
    assert done.returncode == 1
    assert {unit for unit in UNITS if f"try-restart {unit}.service" in done.stderr} == failing


def packages(machine: Machine, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A script of the Debian package, as dpkg runs it on a machine whose `limpet` is this one."""
    text = (CHECKOUT / "deploy" / "debian" / script).read_text()
    text = text.replace("@JOURNAL@", JOURNAL).replace("/usr/lib/limpet/", "/opt/packaged/")
    machine.write("/opt/packaged/site-packages/of-the-package", "")
    machine.write("/opt/commands/limpet", f'#!/bin/sh\nexec {" ".join(LIMPET)} "$@"\n')
    machine.path("/opt/commands/limpet").chmod(0o755)
    path = "/opt/commands:/usr/sbin:/usr/bin"
    return machine.try_run("sh", "-s", *words, stdin=text, env={"PATH": path})


def test_a_node_whose_state_is_elsewhere_is_the_packages_as_well(plain_machine: Machine) -> None:
    """It would be taken away from under pods, with the runtime's configuration left behind."""
    state = "/opt/state/limpet"
    plain_machine.write(CONFIG, f'segments = ["10.244.7.0/24"]\nstate_dir = "{state}"\n')
    limpet(plain_machine, "install", "--cni-only")
    plain_machine.path(BINARY).write_bytes(b"of another version")

    upgraded = packages(plain_machine, "postinst", "configure", "0.1")
    assert upgraded.returncode == 0
    assert plain_machine.path(BINARY).read_bytes() == shim_path().read_bytes()

    removed = packages(plain_machine, "prerm", "remove")
    assert removed.returncode == 0, removed.stderr
    assert not plain_machine.path(CONFLIST).exists()
    assert not plain_machine.path(BINARY).exists()

    plain_machine.write(f"{state}/cluster/identity", "")
    purged = packages(plain_machine, "postrm", "purge")
    assert f"limpet: {state} (state_dir) stays" in purged.stderr
    assert purged.returncode == 0
