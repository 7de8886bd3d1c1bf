"""`limpet doctor` where Limpet is installed: each trap is made, named by the command, and gone when
it is taken away. What a finding says in each case is in tests/cli/doctor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from limpet.base.process.wall_clock import is_kept
from tests.beds.tunnel_bed import kernel_has_wireguard, wireguard_go
from tests.cli.install.service_machine import ServiceMachine
from tests.cli.install.test_doctor_fix import found
from tests.cli.install.test_install import CONFIG, CONFLIST, SEGMENTS, limpet
from tests.cli.install.test_install_join import CONTROLLER, Cloud, joining
from tests.cli.install.test_install_tunnel import add_far_node, give_tun, has_tunnel, programs
from tests.waiting import wait_until

STATE = "/var/lib/limpet"
DOCKERS = "/var/lib/docker/containers/1"
WIREGUARD = "/opt/wireguard-go"
WIREGUARDS = {"new": "/opt/new/wireguard-go", "old": "/opt/old/wireguard-go"}
CONTROLLER_IN_A_POD = "10.244.200.7:7470"
OF_DEBIAN_12 = f"""#!/bin/sh
[ "$1" = --version ] || exec {WIREGUARDS["new"]} "$@"
echo wireguard-go v0.0.20220316
"""
"""A program is known to be old by its word alone: this one says it, and serves all the same."""
OPEN_FLOWS = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    for number in range(int(sys.argv[1])):
        host, port = divmod(number, 65535)
        sender.sendto(b"", (f"127.0.0.{1 + host}", 1 + port))
"""


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


@pytest.fixture(scope="module")
def joined() -> Iterator[ServiceMachine]:
    """A node of a cluster that has a node at another site; each test takes away what it makes."""
    with ServiceMachine() as machine:
        give_tun(machine)
        machine.run("mkdir", "/opt/new", "/opt/old")
        machine.run("cp", wireguard_go(), WIREGUARDS["new"])
        machine.write(WIREGUARDS["old"], OF_DEBIAN_12)
        machine.run("chmod", "755", WIREGUARDS["old"])
        machine.run("ln", "-s", WIREGUARDS["new"], WIREGUARD)
        machine.write(CONFIG, f"tunnel_program = {json.dumps(WIREGUARD)}\n")
        cloud = Cloud(machine).start()
        add_far_node(cloud)
        limpet(machine, "install", *joining(cloud))
        wait_until(lambda: found(machine) == set(), "the other site is reached")
        yield machine


@contextmanager
def named(machine: ServiceMachine, finding: str) -> Iterator[ExitStack]:
    """What is made within is named behind the block, and not any more when it was taken away by
    what was put on the stack."""
    with ExitStack() as undo:
        yield undo
        wait_until(lambda: finding in found(machine), f"{finding} is named")
    wait_until(lambda: found(machine) == set(), f"{finding} is not named any more, nor all else")


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


@pytest.mark.skipif(is_kept(), reason="a time server keeps this machine's clock")
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


def test_a_configuration_that_is_gone_or_half_written(installed: ServiceMachine) -> None:
    whole = installed.path(CONFLIST).read_text()
    with named(installed, "cni-config-missing") as undo:
        installed.run("rm", CONFLIST)
        undo.callback(installed.write, CONFLIST, whole)
    for half in ("/etc/cni/net.d/90-other.conflist", "/etc/cni/net.d/05-other.conflist"):
        with named(installed, "cni-config-broken") as undo:
            installed.write(half, whole[: len(whole) // 2])
            undo.callback(installed.run, "rm", half)


def test_anothers_chain_that_drops_what_is_forwarded(installed: ServiceMachine) -> None:
    with named(installed, "forward-drops") as undo:
        chain = "{ type filter hook forward priority filter; policy drop; }"
        installed.run("nft", f"add table ip docker; add chain ip docker FORWARD {chain}")
        undo.callback(installed.run, "nft", "delete table ip docker")


def test_legacy_tables_whose_program_is_gone(installed: ServiceMachine) -> None:
    program = "/usr/sbin/xtables-legacy-multi"
    with named(installed, "iptables-unreadable") as undo:
        installed.run("iptables-legacy", "--policy", "FORWARD", "ACCEPT")
        assert found(installed) == set()
        installed.run("mv", program, f"{program}-away")
        undo.callback(installed.run, "mv", f"{program}-away", program)


def test_flows_that_fill_connection_tracking(installed: ServiceMachine) -> None:
    """As many as the kernel takes of this machine, but for a few."""
    most = int(installed.run("sysctl", "-n", "net.netfilter.nf_conntrack_max"))
    patience = "net.netfilter.nf_conntrack_udp_timeout"
    before = installed.run("sysctl", "-n", patience).strip()
    with named(installed, "conntrack-full") as undo:
        undo.callback(installed.run, "sysctl", "-qw", f"{patience}={before}")
        installed.run("sysctl", "-qw", f"{patience}=3600")
        # The kernel follows flows where a rule asks for them, as those of most firewalls do.
        chain = "{ type filter hook input priority filter; ct state established accept; }"
        installed.run("nft", f"add table ip firewall; add chain ip firewall INPUT {chain}")
        undo.callback(installed.run, "nft", "delete table ip firewall")
        undo.callback(installed.run, "conntrack", "--flush")
        installed.run("python3", "-c", OPEN_FLOWS, str(most * 95 // 100))


def test_an_uplink_that_lost_its_default_routes(joined: ServiceMachine) -> None:
    with named(joined, "no-default-route") as undo:
        for version, router in (("-4", "192.0.2.1"), ("-6", "2001:db8::1")):
            ip(joined, f"{version} route delete default")
            undo.callback(ip, joined, f"{version} route add default via {router}")


def test_a_controller_that_runs_in_a_pod(joined: ServiceMachine) -> None:
    with named(joined, "server-inside") as undo:
        limpet(joined, "join", "--controller", CONTROLLER_IN_A_POD, "--force")
        undo.callback(limpet, joined, "join", "--controller", CONTROLLER)


@pytest.mark.skipif(
    kernel_has_wireguard(), reason="no program is asked for where the kernel has it"
)
def test_a_tunnel_by_an_old_program(joined: ServiceMachine) -> None:
    """Doctor's own advice mends it: the new program is put there, and the old one is ended."""

    def put(age: str) -> None:
        (before,) = programs(joined)
        joined.run("ln", "-sf", WIREGUARDS[age], WIREGUARD)
        joined.run("kill", before)
        wait_until(lambda: programs(joined) not in ([], [before]), "another program serves")
        wait_until(lambda: has_tunnel(joined), "there is a tunnel")

    with named(joined, "wireguard-slow") as undo:
        put("old")
        undo.callback(put, "new")


def test_what_is_left_of_limpet_where_it_is_not_installed(machine: ServiceMachine) -> None:
    assert "own-leftovers" not in found(machine)
    ip(machine, "link add limpet0 type bridge")
    ip(machine, "link set limpet0 alias limpet")
    assert "own-leftovers" in found(machine)
