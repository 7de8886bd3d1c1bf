"""Names as a service of systemd: installed by a setting, and no question lost to what it does."""

from __future__ import annotations

import json
import signal
import socket

from limpet.linux.namespaces import Namespace
from limpet.services.kept import encode_items
from limpet.services.values import Service
from tests.beds.traffic.dns_client import asking_all_the_time
from tests.cli.install.service_machine import ServiceMachine
from tests.cli.install.test_install import (
    CONFIG,
    LIMPET,
    assert_unchanged,
    limpet,
    refusal,
    state_of,
)
from tests.waiting import wait_until

WEB = "web.default.svc.cluster.local"
KEPT = "/var/lib/limpet/cluster/services.jsonl"
UNIT = "/etc/systemd/system/limpet-dns.service"
SETTINGS = 'segments = ["10.244.7.0/24"]\n'


def pid(machine: ServiceMachine) -> int:
    """Of the process that answers; 0: none does."""
    done = machine.try_run(*LIMPET, "dns", "status", "--output", "json")
    return int(json.loads(done.stdout)["pid"]) if done.returncode == 0 else 0


def udp_socket(machine: ServiceMachine) -> socket.socket:
    with Namespace(f"/proc/{machine.pid}/ns/net") as namespace, namespace.entered():
        return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def test_systemd_keeps_the_sockets_over_a_restart_and_a_crash(machine: ServiceMachine) -> None:
    machine.write(CONFIG, SETTINGS + 'dns = "on"\n')
    machine.write(
        KEPT, encode_items([Service("default", "web", cluster_ips=("10.96.0.10",))]).decode()
    )
    assert "names: answered at 169.254.20.10" in limpet(machine, "install")
    assert machine.run("systemctl", "is-enabled", "limpet-dns") == "enabled\n"
    assert "10.96.0.10" in limpet(machine, "dns", "query", WEB)
    told = json.loads(limpet(machine, "dns", "query", WEB, "--output", "json"))
    assert [each.split()[-1] for each in told["records"]] == ["10.96.0.10"]

    with asking_all_the_time(udp_socket(machine), "169.254.20.10", WEB) as somebody:
        machine.run("systemctl", "restart", "limpet-dns")
        somebody.await_answers(50)
        limpet(machine, "install")  # of a new version, say
        somebody.await_answers(50)
        machine.run("systemctl", "stop", "limpet-agent")
        somebody.await_answers(50)
        before = pid(machine)
        machine.run("systemctl", "kill", f"--signal={int(signal.SIGKILL)}", "limpet-dns")
        wait_until(lambda: pid(machine) not in (0, before), "systemd starts it again")
        somebody.await_answers(50)

        assert somebody.end() <= 1, "only what it had in its hand may be lost with it"


def test_what_is_turned_off_or_uninstalled_leaves_nothing(machine: ServiceMachine) -> None:
    machine.write(CONFIG, SETTINGS + 'dns = "on"\n')
    before = state_of(machine)
    limpet(machine, "install")
    assert machine.path(UNIT).exists()

    machine.write(CONFIG, SETTINGS)
    limpet(machine, "install")
    assert not machine.path(UNIT).exists()
    assert "limdns0" not in machine.run("ip", "link")
    _, said = refusal(machine, "dns", "query", WEB)
    assert "is it running?" in said

    machine.write(CONFIG, SETTINGS + 'dns = "on"\n')
    limpet(machine, "install")
    for left in ("here.json", "dns-held.sock"):  # by an agent of a cluster that was killed
        machine.write(f"/run/limpet/{left}", "")
    limpet(machine, "uninstall", "--purge")
    assert not machine.path("/run/limpet").exists()
    assert_unchanged(before, machine)
