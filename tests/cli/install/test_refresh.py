"""What a package does after an upgrade, with units of a real systemd."""

from __future__ import annotations

from tests.cli.install.service_machine import ServiceMachine
from tests.cli.install.test_install import LIMPET

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
