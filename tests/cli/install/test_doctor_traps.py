"""`limpet doctor` where Limpet is installed: each trap is made, named by the command, and gone when
it is taken away. What a finding says in each case is in tests/cli/doctor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.cli.install.service_machine import ServiceMachine
from tests.cli.install.test_doctor_fix import found
from tests.cli.install.test_install import SEGMENTS, limpet

STATE = "/var/lib/limpet"
DOCKERS = "/var/lib/docker/containers/1"


@pytest.fixture(scope="module")
def installed() -> Iterator[ServiceMachine]:
    """A machine with Limpet on it; each test takes away what it makes."""
    with ServiceMachine() as machine:
        limpet(machine, "install", *SEGMENTS)
        machine.run("ip", "link", "add", "up0", "type", "veth", "peer", "name", "up1")
        for end in ("up0", "up1"):
            machine.run("ip", "link", "set", end, "up")
        assert found(machine) == set()
        yield machine


def ip(machine: ServiceMachine, command: str) -> None:
    machine.run("ip", *command.split())


@contextmanager
def named(machine: ServiceMachine, finding: str) -> Iterator[ExitStack]:
    """What is made within is named behind the block, and not any more when it was taken away by
    what was put on the stack."""
    with ExitStack() as undo:
        yield undo
        assert finding in found(machine)
    assert found(machine) == set()


def test_links_of_a_network_that_is_gone(installed: ServiceMachine) -> None:
    with named(installed, "leftover-links") as undo:
        ip(installed, "link add flannel.1 type vxlan id 77 dstport 8999")
        undo.callback(ip, installed, "link delete flannel.1")


def test_a_rule_that_takes_pods_packets_first(installed: ServiceMachine) -> None:
    with named(installed, "rule-before-ours") as undo:
        ip(installed, "route add 10.240.0.0/12 dev up0 table 77")
        undo.callback(ip, installed, "route delete 10.240.0.0/12 table 77")
        ip(installed, "rule add priority 100 lookup 77")
        undo.callback(ip, installed, "rule delete priority 100")


def test_a_file_that_turns_forwarding_off_at_the_next_boot(installed: ServiceMachine) -> None:
    file = "/etc/sysctl.d/99-x.conf"
    with named(installed, "sysctl-file") as undo:
        installed.write(file, "net.ipv4.ip_forward = 0\n")
        undo.callback(installed.run, "rm", file)


def test_a_pod_on_dockers_own_bridge(installed: ServiceMachine) -> None:
    with named(installed, "pods-on-docker") as undo:
        undo.callback(installed.run, "rm", "-r", "/var/lib/docker")
        name = {"Name": "/k8s_POD_web-0_shop_1_0"}
        installed.write(f"{DOCKERS}/config.v2.json", json.dumps(name))
        installed.write(f"{DOCKERS}/hostconfig.json", json.dumps({"NetworkMode": "bridge"}))


def test_a_clock_that_is_behind_what_was_written(installed: ServiceMachine) -> None:
    file = f"{STATE}/written-later"
    with named(installed, "clock-wrong") as undo:
        installed.run("touch", "-d", "+50 days", file)
        undo.callback(installed.run, "rm", file)


def test_records_that_a_reboot_would_lose(installed: ServiceMachine) -> None:
    with named(installed, "records-volatile") as undo:
        installed.run("mount", "-t", "tmpfs", "none", STATE)
        undo.callback(installed.run, "umount", STATE)


def test_another_configuration_that_runtimes_take_first(installed: ServiceMachine) -> None:
    file = "/etc/cni/net.d/00-other.conflist"
    with named(installed, "cni-config-before-ours") as undo:
        plugin = {"type": "bridge", "ipam": {"type": "host-local", "subnet": "10.22.0.0/16"}}
        other = {"cniVersion": "1.0.0", "name": "other", "plugins": [plugin]}
        installed.write(file, json.dumps(other))
        undo.callback(installed.run, "rm", file)


def test_anothers_chain_that_drops_what_is_forwarded(installed: ServiceMachine) -> None:
    with named(installed, "forward-drops") as undo:
        chain = "{ type filter hook forward priority filter; policy drop; }"
        installed.run("nft", f"add table ip docker; add chain ip docker FORWARD {chain}")
        undo.callback(installed.run, "nft", "delete table ip docker")


def test_what_is_left_of_limpet_where_it_is_not_installed(machine: ServiceMachine) -> None:
    assert "own-leftovers" not in found(machine)
    ip(machine, "link add limpet0 type bridge")
    ip(machine, "link set limpet0 alias limpet")
    assert "own-leftovers" in found(machine)
