"""`limpet doctor --fix` where Limpet is installed: the fault is made, and the command mends it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from limpet import _version
from limpet.cli.install.units.service import PACKAGED_UNIT_DIR, UNIT, unit_text
from limpet.cni.shim_binary import shim_path
from tests.cli.install.service_machine import ServiceMachine
from tests.cli.install.test_install import BINARY, CONFIG, LIMPET, SEGMENTS, limpet
from tests.clients.machine import Process
from tests.waiting import wait_until

PUT_BINARY = f"put the CNI binary of this version at {BINARY}"
OF_NETWORKD = "/etc/systemd/networkd.conf.d/limpet.conf"
OF_NETWORKMANAGER = "/etc/NetworkManager/conf.d/limpet.conf"


@pytest.fixture(scope="module")
def installed() -> Iterator[ServiceMachine]:
    """A machine with Limpet on it; each test leaves it whole, since it mends what it breaks."""
    with ServiceMachine() as machine:
        limpet(machine, "install", *SEGMENTS)
        assert found(machine) == set()
        yield machine


def found(machine: ServiceMachine) -> set[str]:
    """Ids of doctor's findings."""
    said = json.loads(machine.try_run(*LIMPET, "doctor", "--output", "json").stdout)
    return {each["id"] for each in said["findings"] if each["id"]}


def mended(machine: ServiceMachine, faults: Mapping[str, str]) -> None:
    """`faults`: what the command has to say that it does, by the id of the finding."""
    assert faults.keys() <= found(machine)

    said = limpet_said(machine, "doctor", "--fix", "--yes")
    for id, what in faults.items():
        assert f"limpet doctor: to mend {id}: {what}\n" in said
    assert found(machine) == set()


def limpet_said(machine: ServiceMachine, *words: str) -> str:
    """stderr. Raises: AssertionError unless it worked."""
    done = machine.try_run(*LIMPET, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


def agent(machine: ServiceMachine) -> tuple[int, str]:
    """Pid and version of the one that answers."""
    said = json.loads(limpet(machine, "status", "--output", "json"))
    return said["pid"], said["version"]


# The agent.


def test_an_agent_that_does_not_run_is_started(installed: ServiceMachine) -> None:
    pid, version = agent(installed)
    installed.run("systemctl", "stop", "limpet-agent")

    mended(installed, {"agent-silent": f"systemctl start {UNIT}"})

    after = agent(installed)
    assert after[1] == version
    assert after[0] != pid


def test_an_agent_of_a_package_is_started_too(machine: ServiceMachine) -> None:
    own = str(PACKAGED_UNIT_DIR / UNIT)
    machine.write(own, unit_text(Path(CONFIG)))
    machine.run("systemctl", "daemon-reload")
    # It came with the package, and nobody has asked for it yet.
    assert "agent-silent" in found(machine)
    assert "agent-silent" not in machine.try_run(*LIMPET, "doctor", "--fix", "--yes").stderr
    assert f"{own}: the package's" in limpet(machine, "install", *SEGMENTS)
    machine.run("systemctl", "stop", "limpet-agent")

    mended(machine, {"agent-silent": f"systemctl start {UNIT}"})

    assert agent(machine)[0]


def test_an_agent_of_before_an_upgrade_is_started_anew(installed: ServiceMachine) -> None:
    _, version = agent(installed)
    program = _version.__file__
    installed.write("/run/before.py", '__version__ = "0.0.0a0"\n')
    # The checkout is the tests' own: what is loaded of another version must not be kept there.
    installed.run("systemctl", "set-environment", "PYTHONDONTWRITEBYTECODE=1")
    installed.run("mount", "--bind", "/run/before.py", program)
    installed.run("systemctl", "restart", "limpet-agent")
    installed.run("umount", program)
    pid, of_before = agent(installed)
    assert of_before == "0.0.0a0"

    mended(installed, {"agent-version": f"systemctl restart {UNIT}"})

    after = agent(installed)
    assert after[1] == version
    assert after[0] != pid


# The CNI binary.


def test_a_binary_that_is_gone_is_put_back(installed: ServiceMachine) -> None:
    installed.path(BINARY).unlink()
    mended(installed, {"cni-binary-missing": PUT_BINARY})
    assert_own_binary(installed)


def test_a_binary_that_may_not_be_run_may_be_run_again(installed: ServiceMachine) -> None:
    installed.path(BINARY).chmod(0o644)
    mended(installed, {"cni-binary-not-executable": PUT_BINARY})
    assert_own_binary(installed)


def test_a_binary_of_another_version_is_replaced(installed: ServiceMachine) -> None:
    with installed.path(BINARY).open("ab") as binary:
        binary.write(b"\0")  # which nothing loads
    mended(installed, {"cni-binary-version": PUT_BINARY})
    assert_own_binary(installed)


def assert_own_binary(machine: ServiceMachine) -> None:
    binary = machine.path(BINARY)
    assert binary.read_bytes() == shim_path().read_bytes()
    assert binary.stat().st_mode & 0o7777 == 0o755


# Programs that set networks up.


def test_networkmanager_is_told_to_leave_our_links_alone(installed: ServiceMachine) -> None:
    installed.run("cp", "/bin/sleep", "/tmp/NetworkManager")
    program = running(installed, "/tmp/NetworkManager", "1000")
    what = f"write {OF_NETWORKMANAGER} (NetworkManager reads it at its next start)"

    mended(installed, {"networkmanager": what})

    program.kill()
    assert installed.path(OF_NETWORKMANAGER).read_text() == (
        "[keyfile]\nunmanaged-devices=interface-name:lim*;interface-name:limpet0\n"
    )


def test_networkd_is_told_to_leave_our_routes_alone_and_a_persons_own_words_come_back(
    machine: ServiceMachine,
) -> None:
    machine.write(OF_NETWORKD, "# a person's\n")
    limpet(machine, "install", *SEGMENTS)
    program = running(machine, "/usr/lib/systemd/systemd-networkd")
    what = f"write {OF_NETWORKD} (systemd-networkd reads it at its next start)"

    mended(machine, {"networkd": what})

    program.kill()
    # As systemd itself puts the files together.
    read = machine.run("systemd-analyze", "cat-config", "systemd/networkd.conf")
    assert f"{OF_NETWORKD}\n[Network]\nManageForeignRoutes=no\n" in read
    assert "\nManageForeignRoutingPolicyRules=no\n" in read
    limpet(machine, "uninstall")
    assert machine.path(OF_NETWORKD).read_text() == "# a person's\n"


def running(machine: ServiceMachine, *program: str) -> Process:
    """One that doctor sees by its name: it goes by another until it is what was started."""
    process = machine.start(*program)
    comm = Path(f"/proc/{process.pid}/comm")
    name = Path(program[0]).name[:15]
    wait_until(lambda: comm.read_text().strip() == name, f"{name} runs")
    return process
