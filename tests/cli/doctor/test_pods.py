"""Faults of a node with its agent and its pods: made, found, mended."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from limpet.agent.settings import load_settings
from limpet.base.ownership import TUNNEL_GROUP, VXLAN_GROUPS
from limpet.cli.doctor.doctor import diagnose
from limpet.cli.doctor.findings import Finding
from limpet.cli.main import main
from limpet.datapath.overlay.vtep import VTEP_FILE, adopt_vtep_macs
from limpet.lab.clock import LONG_AGO, clock_environment
from limpet.lab.world.node import DEFAULT_CONF, LabNode
from limpet.linux.namespaces import Namespace
from tests.conftest import NodeFactory
from tests.waiting import wait_until


class Doctor:
    """Looks at one node, as a person there."""

    def __init__(self, node: LabNode) -> None:
        self.node = node

    def found(self) -> dict[str, Finding]:
        settings = load_settings(self.node.config_path)
        with Namespace(self.node.netns_path) as netns, netns.entered():
            findings = diagnose(settings, self.node.folder / "net.d", self.node.folder / "bin")
        return {each.id: each for each in findings if each.id}


@pytest.fixture
def doctor(make_node: NodeFactory) -> Doctor:
    return _doctor(make_node, resync_s=1)


@pytest.fixture
def doctor_alone(make_node: NodeFactory) -> Doctor:
    """Its agent looks for leaks at its start, and then not before the test is over."""
    return _doctor(make_node, resync_s=3600)


def _doctor(make_node: NodeFactory, *, resync_s: float) -> Doctor:
    # Of its own: an address that some namespace of the machine has, another test's too, is no leak.
    segments, cidrs = ["10.245.79.0/24"], ["10.245.0.0/16"]
    node = make_node(segments=segments, cluster_cidrs=cidrs, resync_s=resync_s)
    node.start_agent()
    return Doctor(node)


def test_an_address_of_a_container_that_is_gone_is_a_leak_until_it_is_repaired(
    doctor_alone: Doctor,
) -> None:
    doctor = doctor_alone
    pod = doctor.node.pod("web-0")
    pod.add(conf={**DEFAULT_CONF, "type": "macvlan"})
    assert "address-leaks" not in doctor.found()
    pod.remove()

    assert "10.245.79.2" in doctor.found()["address-leaks"].what
    doctor.node.ask("ipam.repair")
    assert "address-leaks" not in doctor.found()


def test_files_that_are_no_reservations_and_empty_ones_are_named(doctor: Doctor) -> None:
    """A power cut leaves files empty that other programs have not synced."""
    node = doctor.node
    node.pod("web-0").add()
    assert "record-damaged" not in doctor.found()
    node.stop_agent()
    stray, empty = (node.data_dir / "limpet" / f"10.245.79.{each}" for each in ("300", "77"))
    stray.touch()
    node.start_agent()
    assert str(stray) in doctor.found()["record-damaged"].what

    node.stop_agent()
    stray.unlink()
    empty.touch()
    node.start_agent()
    assert str(empty) in doctor.found()["record-damaged"].what
    node.ask("ipam.repair")
    node.stop_agent()
    node.start_agent()
    assert "record-damaged" not in doctor.found()


def test_an_old_mac_of_a_pods_address_is_named(doctor: Doctor) -> None:
    doctor.node.pod("web-0").add()
    assert "stale-neighbour" not in doctor.found()
    entry = "10.245.79.2 dev limpet0"
    doctor.node.run(*f"ip neigh replace {entry} lladdr 02:00:00:00:00:09 nud permanent".split())

    found = doctor.found()["stale-neighbour"]
    assert "02:00:00:00:00:09" in found.what
    doctor.node.run(*found.advice.split())
    assert "stale-neighbour" not in doctor.found()


def test_where_no_agent_runs_it_is_told_in_words_and_so_is_what_is_not_as_planned(
    doctor: Doctor,
) -> None:
    doctor.node.pod("web-0").add()
    doctor.node.stop_agent(signal.SIGKILL)
    found = doctor.found()
    assert "Errno" not in found["agent-silent"].why
    assert "is it running?" in found["agent-silent"].why
    assert "not-as-planned" not in found

    doctor.node.run(*["ip", "address", "del", "10.245.79.1/24", "dev", "limpet0"])
    doctor.node.run(*["ip", "rule", "del", "priority", "5148"])
    doctor.node.run(*["nft", "delete", "table", "inet", "limpet"])
    words = doctor.found()["not-as-planned"].what
    assert "10.245.79.1/24 is missing" in words
    assert "rule is missing" in words
    assert "nftables table" in words

    doctor.node.start_agent()
    assert not {"not-as-planned", "agent-silent"} & doctor.found().keys()


def test_pods_that_are_larger_than_the_uplink_now_are_named(doctor: Doctor) -> None:
    node = doctor.node
    node.run(*["ip", "link", "add", "up0", "type", "veth", "peer", "name", "up1"])
    for command in (
        "link set up0 up",
        "link set up1 up",
        "address add 192.0.2.1/24 dev up0",
        "route add default via 192.0.2.2",
    ):
        node.run("ip", *command.split())
    node.pod("web-0").add()
    assert "pod-mtu" not in doctor.found()

    node.run(*["ip", "link", "set", "up0", "mtu", "1400"])
    wait_until(lambda: node.ask("status")["mtu_bytes"] == 1400)
    found = doctor.found()["pod-mtu"]
    assert found.what.startswith("1 pod with an MTU of up to 1450, where the uplink has 1400 now")
    assert "web-0" in found.what


def test_forwarding_that_somebody_turned_off_is_named(doctor: Doctor) -> None:
    node = doctor.node
    node.pod("web-0").add()
    node.stop_agent()
    assert "sysctl-wrong" not in doctor.found()
    node.run("sysctl", "-qw", "net.ipv4.ip_forward=0")

    assert "ip_forward is 0, not 1" in doctor.found()["sysctl-wrong"].what
    node.start_agent()
    assert "sysctl-wrong" not in doctor.found()


def test_a_node_that_would_send_pods_redirects_is_named(doctor: Doctor) -> None:
    """The kernel sends them when either of the two settings says so."""
    node = doctor.node
    node.pod("web-0").add()
    node.stop_agent()
    assert not {"sysctl-wrong", "not-as-planned"} & doctor.found().keys()
    node.run(*["sysctl", "-qw", "net.ipv4.conf.all.send_redirects=1"])
    node.run(*["sysctl", "-qw", "net.ipv4.conf.limpet0.send_redirects=1"])

    found = doctor.found()
    assert "net.ipv4.conf.all.send_redirects is 1, not 0" in found["sysctl-wrong"].what
    assert "net.ipv4.conf.limpet0.send_redirects should be 0" in found["not-as-planned"].what
    node.start_agent()
    assert not {"sysctl-wrong", "not-as-planned"} & doctor.found().keys()


def test_a_bridge_that_would_take_a_pod_for_its_router_is_named(make_node: NodeFactory) -> None:
    """The node has several prefixes: a table that has them all is as planned."""
    segments = ["10.245.80.0/24", "10.245.81.0/24", "fd00:245:79::/64", "fd00:245:81::/64"]
    cluster = ["10.245.0.0/16", "10.247.0.0/16", "fd00:245:79::/48", "fd00:246::/48"]
    node = make_node(segments=segments, cluster_cidrs=cluster, resync_s=1)
    node.start_agent()
    doctor = Doctor(node)
    node.pod("web-0").add()
    node.stop_agent()
    assert "not-as-planned" not in doctor.found()
    node.run(*["sysctl", "-qw", "net.ipv6.conf.limpet0.accept_ra=2"])

    words = doctor.found()["not-as-planned"].what
    assert "net.ipv6.conf.limpet0.accept_ra should be 0" in words
    node.start_agent()
    assert "not-as-planned" not in doctor.found()


@pytest.mark.parametrize("where", ["limvx4", "limwg0", "all"])
def test_a_way_to_other_nodes_whose_reverse_paths_are_strict_is_named_and_mended(
    doctor: Doctor, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    """The larger of the device's setting and the node's counts, so loose ones are loose."""
    node = doctor.node
    node.stop_agent()
    ways = {
        "limvx4": f"group {VXLAN_GROUPS[4]} type vxlan id 77 dstport 8999",
        "limwg0": f"group {TUNNEL_GROUP} type veth peer name far",
    }
    for ifname, marks in ways.items():
        node.run(*f"ip link add {ifname} {marks}".split())
        node.run("ip", "link", "set", ifname, "up")
    for each in (*ways, "all"):
        node.run("sysctl", "-qw", f"net.ipv4.conf.{each}.rp_filter=0")
    assert "sysctl-wrong" not in doctor.found()
    node.run("sysctl", "-qw", f"net.ipv4.conf.{where}.rp_filter=1")

    strict = where if where in ways else "limwg0"  # `found` keeps the last of several
    assert f"net.ipv4.conf.{strict}.rp_filter is" in doctor.found()["sysctl-wrong"].what
    mended(doctor, capsys, {"sysctl-wrong": f"set net.ipv4.conf.{strict}.rp_filter to 2"})


def test_a_bridge_that_follows_another_mac_is_named_while_no_agent_runs(doctor: Doctor) -> None:
    node = doctor.node
    node.pod("web-0").add()
    node.stop_agent()
    assert "not-as-planned" not in doctor.found()
    (pinned,) = json.loads(node.run(*["ip", "-j", "link", "show", "limpet0"]))
    node.run(*["ip", "link", "set", "limpet0", "address", "02:00:00:00:00:07"])

    assert "bridge limpet0" in doctor.found()["not-as-planned"].what
    node.start_agent()
    (mended,) = json.loads(node.run(*["ip", "-j", "link", "show", "limpet0"]))
    assert mended["address"] == pinned["address"]
    assert "not-as-planned" not in doctor.found()


def test_a_bridge_that_somebody_took_away_is_named_while_no_agent_runs(doctor: Doctor) -> None:
    doctor.node.pod("web-0").add()
    doctor.node.stop_agent(signal.SIGKILL)
    assert "not-as-planned" not in doctor.found()

    doctor.node.run("ip", "link", "delete", "limpet0")

    assert "bridge limpet0 is missing" in doctor.found()["not-as-planned"].what
    doctor.node.start_agent()
    assert not {"not-as-planned", "agent-silent"} & doctor.found().keys()


def test_a_right_node_without_pods_is_as_planned_whatever_was_on_it_before(doctor: Doctor) -> None:
    """Bridges of networks stay without pods, and chains of hostPorts behind the last of them: only
    the agent knew of them."""
    node = doctor.node
    ipam = {"type": "limpet", "ranges": [[{"subnet": "10.60.0.0/24"}]]}
    mapping = {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}
    networks: dict[str, dict[str, object]] = {
        "plain": {},
        "second": {"name": "second", "bridge": "limsec0", "ipam": ipam},
        "open": {"runtimeConfig": {"portMappings": [mapping]}},
    }
    for name, more in networks.items():
        pod, conf = node.pod(name), {**DEFAULT_CONF, **more}
        pod.add(conf=conf)
        pod.delete(conf=conf)
        node.stop_agent()
        found = doctor.found()
        assert "agent-silent" in found
        assert found.get("not-as-planned") is None, name
        node.start_agent()


def test_the_clock_of_a_machine_that_starts_without_a_battery_is_named(
    doctor: Doctor, tmp_path: Path
) -> None:
    words = ("doctor", "--output", "json", "--config", str(doctor.node.config_path))
    inside = ("nsenter", f"--net={doctor.node.netns_path}")

    def found(environment: Mapping[str, str]) -> dict[str, str]:
        done = subprocess.run(
            [*inside, sys.executable, "-m", "limpet", *words],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,  # it ends with 1 where anything is wrong
        )
        return {each["id"]: each["what"] for each in json.loads(done.stdout)["findings"]}

    assert "clock-wrong" not in found({})
    assert "hours behind" in found(clock_environment(LONG_AGO, tmp_path))["clock-wrong"]


def test_masquerade_that_was_taken_away_or_takes_in_the_cluster_is_named(doctor: Doctor) -> None:
    """Two faults: pods reach nothing beyond the cluster, or all nodes see them by their node's
    address, so no policy and no record tells them."""
    node = doctor.node
    node.pod("web-0").add()
    node.stop_agent()
    assert "not-as-planned" not in doctor.found()

    listed = node.run(*["nft", "-a", "list", "table", "inet", "limpet"])
    (rule,) = [
        line for line in listed.splitlines() if "@masquerade4" in line and "ip daddr" in line
    ]
    chain = chain_of(listed, rule)
    node.run(*f"nft delete rule inet limpet {chain} handle {rule.split()[-1]}".split())
    assert "the nftables table is another" in doctor.found()["not-as-planned"].what
    node.start_agent()
    assert "not-as-planned" not in doctor.found()

    node.stop_agent()
    node.run(*f"nft insert rule inet limpet {chain} ip saddr 10.245.79.0/24 masquerade".split())
    assert "the nftables table is another" in doctor.found()["not-as-planned"].what
    node.start_agent()
    assert "not-as-planned" not in doctor.found()


def chain_of(listed: str, rule: str) -> str:
    """Name of the chain in which that line stands."""
    before = listed[: listed.index(rule)].splitlines()
    return next(line.split()[1] for line in reversed(before) if "\tchain " in line)


# Mends: the fault is made, `--fix` mends it, and doctor is content.


def fix(doctor: Doctor, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Exit code, and what was said to the person."""
    node = doctor.node
    folders = ["--cni-conf-dir", str(node.folder), "--cni-bin-dir", str(node.folder)]
    with Namespace(node.netns_path) as netns, netns.entered():
        code = main(["doctor", "--config", str(node.config_path), *folders, "--fix", *words])
    return code, capsys.readouterr().err


def mended(doctor: Doctor, capsys: pytest.CaptureFixture[str], faults: Mapping[str, str]) -> None:
    """`faults`: what the command has to say that it does, by the id of the finding."""
    assert faults.keys() <= doctor.found().keys()

    said = fix(doctor, capsys, "--yes")[1]
    for id, what in faults.items():
        assert f"limpet doctor: to mend {id}: {what}\n" in said
    assert not faults.keys() & doctor.found().keys()


def test_nothing_is_mended_unless_a_person_or_yes_says_so(
    doctor: Doctor, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    doctor.node.pod("web-0").add()
    entry = "10.245.79.2 dev limpet0"
    doctor.node.run(*f"ip neigh replace {entry} lladdr 02:00:00:00:00:09 nud permanent".split())
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))

    code, said = fix(doctor, capsys)
    assert code == 1
    assert "to mend stale-neighbour: forget on limpet0 that 10.245.79.2 is at 02:00" in said
    assert "nothing was done" in said
    assert "stale-neighbour" in doctor.found()

    what = "forget on limpet0 that 10.245.79.2 is at 02:00:00:00:00:09"
    mended(doctor, capsys, {"stale-neighbour": what})
    assert "nothing that --fix mends" in fix(doctor, capsys, "--yes")[1]


def test_leaks_are_mended(doctor_alone: Doctor, capsys: pytest.CaptureFixture[str]) -> None:
    pod = doctor_alone.node.pod("web-0")
    pod.add(conf={**DEFAULT_CONF, "type": "macvlan"})
    pod.remove()

    what = "release the addresses of containers that are gone (limpet ipam repair)"
    mended(doctor_alone, capsys, {"address-leaks": what})


def test_settings_links_and_macs_are_mended_without_an_agent(
    doctor: Doctor, capsys: pytest.CaptureFixture[str]
) -> None:
    node = doctor.node
    node.pod("web-0").add()
    node.stop_agent()
    folder = load_settings(node.config_path).folders.cluster_dir
    folder.mkdir(parents=True, exist_ok=True)
    adopt_vtep_macs(folder / VTEP_FILE, {4: "0e:4c:00:00:00:01"})
    node.run(*["sysctl", "-qw", "net.ipv4.ip_forward=0"])
    node.run(*["ip", "link", "set", "limpet0", "down"])
    vxlan = f"group {0x6C696D04} type vxlan id 77 dstport 8999"
    node.run(*f"ip link add limvx4 address 0e:4c:00:00:00:02 {vxlan}".split())

    mended(
        doctor,
        capsys,
        {
            "sysctl-wrong": "set net.ipv4.ip_forward to 1",
            "own-link-down": "set limpet0 up",
            "vtep-mac-changed": "give limvx4 its MAC 0e:4c:00:00:00:01 again",
        },
    )
