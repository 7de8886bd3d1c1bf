"""The controller as a service of a real systemd, on a machine that is left as it was."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.install.service_machine import ServiceMachine
from tests.cli.install.test_install import (
    LIMPET,
    SEGMENTS,
    assert_unchanged,
    limpet,
    refusal,
    state_of,
)
from tests.clients.machine import Machine
from tests.waiting import wait_until

CONFIG = "/etc/limpet/controller.toml"
DATABASE = "/var/lib/limpet/controller/controller.db"
UNIT = "/etc/systemd/system/limpet-controller.service"


@pytest.fixture(scope="module")
def untouched() -> Iterator[ServiceMachine]:
    """For what is refused: whoever uses it shows that it is as it was."""
    with ServiceMachine() as machine:
        yield machine


@pytest.fixture
def plain_machine() -> Iterator[Machine]:
    """One on which systemd does not run."""
    with Machine() as machine:
        yield machine


def cluster_key(machine: Machine) -> str:
    shown = json.loads(limpet(machine, "network", "show", "--output", "json"))
    return str(shown["keys"][0])


def service(machine: Machine, name: str) -> str:
    return machine.run("systemctl", "show", "--value", "-p", name, "limpet-controller").strip()


def test_a_machine_is_as_it_was_after_a_controller_came_and_went(machine: ServiceMachine) -> None:
    before = state_of(machine)

    said = limpet(machine, "controller", "install", "--pod-cidr", "10.77.0.0/16")

    assert "limpet token create" in said
    assert machine.run("systemctl", "is-enabled", "limpet-controller") == "enabled\n"
    assert limpet(machine, "token", "create").startswith("lmp1_")
    shown = json.loads(limpet(machine, "network", "show", "--output", "json"))
    assert shown["pod_cidrs"] == ["10.77.0.0/16"]
    assert machine.path(str(Path(DATABASE).parent)).stat().st_mode & 0o777 == 0o700
    limpet(machine, "controller", "uninstall", "--purge")

    assert_unchanged(before, machine)


def test_what_is_installed_and_taken_away_is_told_to_programs_too(machine: ServiceMachine) -> None:
    """That these are as their schemas say is seen to by the launcher, as of all answers."""
    before = state_of(machine)
    to_programs = ("--output", "json")

    told = [
        limpet(machine, "controller", "install", *to_programs),
        limpet(machine, "install", *SEGMENTS, *to_programs),
        limpet(machine, "uninstall", "--purge", *to_programs),
        limpet(machine, "controller", "uninstall", "--purge", *to_programs),
    ]

    assert all(map(json.loads, told))
    assert_unchanged(before, machine)


def test_the_service_has_no_power_but_to_bind_a_port(machine: ServiceMachine) -> None:
    limpet(machine, "controller", "install")

    status = machine.path(f"/proc/{service(machine, 'MainPID')}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    bind_service = 1 << 10
    assert int(fields["CapBnd"], 16) == bind_service
    assert int(fields["CapEff"], 16) == bind_service
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == "2"
    limpet(machine, "controller", "uninstall", "--purge")


def test_a_controller_that_is_killed_comes_back_with_the_same_cluster(
    machine: ServiceMachine,
) -> None:
    limpet(machine, "controller", "install")
    key, pid = cluster_key(machine), service(machine, "MainPID")

    machine.run("systemctl", "kill", f"--signal={int(signal.SIGKILL)}", "limpet-controller")
    wait_until(lambda: service(machine, "MainPID") not in (pid, "0"), "systemd starts it again")
    wait_until(lambda: service(machine, "ActiveState") == "active", "it is ready")

    assert cluster_key(machine) == key
    limpet(machine, "controller", "uninstall", "--purge")


def test_one_that_was_restored_on_another_machine_comes_back_after_its_reboots(
    machine: ServiceMachine,
) -> None:
    """As docs/operations.md says it: nothing was installed on the machine that takes its place."""
    limpet(machine, "controller", "install")
    key = cluster_key(machine)
    limpet(machine, "controller", "backup", "/root/controller.backup")
    limpet(machine, "controller", "uninstall", "--purge")

    said = machine.try_run(*LIMPET, "controller", "restore", "/root/controller.backup").stderr
    assert "`limpet controller install`" in said
    limpet(machine, "controller", "install")

    assert machine.run("systemctl", "is-enabled", "limpet-controller") == "enabled\n"
    assert cluster_key(machine) == key


def test_the_cluster_and_its_settings_stay_unless_they_are_purged(machine: ServiceMachine) -> None:
    machine.write(CONFIG, '# mine\npod_cidrs = ["10.77.0.0/16"]\n')
    limpet(machine, "controller", "install")
    key = cluster_key(machine)

    said = limpet(machine, "controller", "uninstall")
    assert f"kept: {DATABASE}" in said
    assert not machine.path(UNIT).exists()
    limpet(machine, "controller", "install")
    assert cluster_key(machine) == key

    limpet(machine, "controller", "uninstall", "--purge")
    assert not machine.path(DATABASE).exists()
    assert machine.path(CONFIG).read_text().startswith("# mine")


def test_installing_again_keeps_what_a_person_has_edited(machine: ServiceMachine) -> None:
    limpet(machine, "controller", "install")
    key = cluster_key(machine)
    config, unit = machine.path(CONFIG), machine.path(UNIT)
    config.write_text(config.read_text() + "segment_quota = 3\n")
    unit.write_text(unit.read_text().replace("RestartSec=1", "RestartSec=2"))

    said = limpet(machine, "controller", "install")

    assert f"{CONFIG}: kept" in said
    assert f"{UNIT}: kept" in said
    assert cluster_key(machine) == key
    shown = json.loads(limpet(machine, "network", "show", "--output", "json"))
    assert shown["segment_quota"] == 3
    limpet(machine, "controller", "uninstall", "--purge")


@pytest.mark.parametrize(
    ("config", "options", "words"),
    [
        ('pod_cidrs = ["192.0.2.0/22"]\n', [], "192.0.2.10/24 of uplink overlaps"),
        ("bogus = 1\n", [], "unknown key 'bogus'"),
        ('pod_cidrs = ["10.1.0.0/16"]\n', ["--pod-cidr", "10.2.0.0/16"], "never overwritten"),
        (None, ["--pod-cidr", "10.244.0.0/16", "--pod-cidr", "10.245.0.0/16"], "more than one"),
        (None, ["--pod-cidr", "pods"], "pods"),
    ],
)
def test_what_cannot_work_is_told_before_anything_is_written(
    untouched: ServiceMachine, config: str | None, options: list[str], words: str
) -> None:
    machine = untouched
    try:
        if config is not None:
            machine.write(CONFIG, config.replace("192.0.2.0/22", "192.0.0.0/22"))
        before = state_of(machine)

        code = 2 if config is None else 1  # then the command line alone is wrong
        _, line = refusal(machine, "controller", "install", *options, code=code)

        assert words in line
        assert_unchanged(before, machine)
    finally:
        machine.path(CONFIG).unlink(missing_ok=True)


def test_a_damaged_database_is_told_before_anything_is_written(untouched: ServiceMachine) -> None:
    untouched.write(DATABASE, "x" * 5000)
    try:
        before = state_of(untouched)

        _, line = refusal(untouched, "controller", "install")

        assert "no SQLite database" in line
        assert "limpet controller restore" in line
        assert_unchanged(before, untouched)
    finally:
        untouched.path(DATABASE).unlink()


def test_without_systemd_nothing_is_written_unless_that_is_asked_for(
    plain_machine: Machine,
) -> None:
    before = state_of(plain_machine)
    _, line = refusal(plain_machine, "controller", "install")
    assert "systemd does not run here" in line
    assert_unchanged(before, plain_machine)

    limpet(plain_machine, "controller", "install", "--no-start")
    assert plain_machine.path(UNIT).exists()
    limpet(plain_machine, "controller", "uninstall", "--purge")
    assert_unchanged(before, plain_machine)


def test_a_controller_that_runs_without_systemd_is_not_taken_apart(plain_machine: Machine) -> None:
    limpet(plain_machine, "controller", "install", "--no-start")
    controller = plain_machine.start(*LIMPET, "controller")
    wait_until(plain_machine.path("/run/limpet/controller.sock").exists, "it listens")

    _, line = refusal(plain_machine, "controller", "uninstall", "--purge")

    assert "a controller runs on this database" in line
    assert plain_machine.path(UNIT).exists()
    assert controller.running


def test_the_page_is_a_service_of_its_own_where_the_settings_say_so(
    machine: ServiceMachine,
) -> None:
    before = state_of(machine)
    machine.write(CONFIG, 'page_listen = "[::]:7480"\n')

    said = limpet(machine, "controller", "install")

    assert "page: served at [::]:7480; let somebody look: limpet ui token create" in said
    assert machine.run("systemctl", "is-active", "limpet-page") == "active\n"
    token = limpet(machine, "ui", "token", "create", "ann").strip()
    script = (
        "import http.client, ssl, sys, urllib.parse\n"
        "trust = ssl.create_default_context(cafile='/var/lib/limpet/controller/page/page.crt')\n"
        "asked = http.client.HTTPSConnection('localhost', 7480, context=trust)\n"
        "body = urllib.parse.urlencode({'secret': sys.argv[1]})\n"
        "asked.request('POST', '/enter', body, {'Origin': 'https://localhost:7480',\n"
        "    'Content-Type': 'application/x-www-form-urlencoded'})\n"
        "print(asked.getresponse().status)\n"
    )
    assert machine.run(LIMPET[0], "-c", script, token) == "303\n"
    limpet(machine, "controller", "install", "--no-start")  # of a new version, say
    assert machine.path("/etc/systemd/system/limpet-page.service").exists()
    machine.write(CONFIG, "")
    limpet(machine, "controller", "install")
    assert not machine.path("/etc/systemd/system/limpet-page.service").exists()
    limpet(machine, "controller", "uninstall", "--purge")
    machine.path(CONFIG).unlink()
    machine.path(CONFIG).parent.rmdir()
    assert_unchanged(before, machine)
