"""Traps of the field on a machine: each is made in a namespace, found, and gone when mended."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from ipaddress import ip_network
from pathlib import Path

import pytest
from msgspec import convert

from limpet.agent.settings import parse_settings
from limpet.agent.status.cluster import ClusterStatus
from limpet.base.node_state import NodeState
from limpet.cli.doctor.cluster.ways import (
    examine_servers,
    examine_vtep_macs,
    examine_vxlan_packets,
)
from limpet.cli.doctor.findings import Finding, Level
from limpet.cli.doctor.installed.cni_configs import bridges_in_use
from limpet.cli.doctor.installed.leftovers import examine_own_leftovers
from limpet.cli.doctor.machine.links import examine_bridges
from limpet.cli.doctor.machine.network_daemons import NETWORK_DAEMONS, examine_network_daemons
from limpet.cli.doctor.machine.storage import examine_storage, filesystem_of
from limpet.cli.doctor.machine.traps import (
    examine_clock,
    examine_connection_tracking,
    examine_default_route,
    examine_leftovers,
    examine_own_links,
    examine_rules,
    examine_sysctl_files,
)
from limpet.cli.doctor.pods.attached import examine_docker
from limpet.cli.doctor.target import Installation
from limpet.datapath.overlay.vtep import VTEP_FILE, adopt_vtep_macs
from tests.beds.namespaces import Netns, NetnsFactory
from tests.unit.cli.commands.test_path import CLUSTER
from tests.waiting import wait_until

POD_CIDRS = [ip_network("10.244.0.0/16"), ip_network("fd00:244::/32")]
MAC = "0e:4c:c9:98:0e:74"


def ids(found: Iterable[Finding]) -> list[str]:
    return [each.id for each in found if each.id]


@pytest.fixture
def netns(make_netns: NetnsFactory) -> Netns:
    return make_netns("traps")


def in_(netns: Netns, look: Callable[[], Iterator[Finding]]) -> list[Finding]:
    with netns.entered():
        return [each for each in look() if each.id]


def test_a_node_without_a_default_route_is_named_and_one_with_one_is_not(netns: Netns) -> None:
    (found,) = in_(netns, lambda: examine_default_route([4]))
    assert found.id == "no-default-route"

    netns.ip("link add up0 type veth peer name up1", "link set up0 up", "link set up1 up")
    netns.ip("address add 192.0.2.1/24 dev up0", "route add default via 192.0.2.2")
    assert in_(netns, lambda: examine_default_route([4])) == []


@pytest.mark.parametrize(
    ("route", "told"),
    [
        ("route add default nexthop via 192.0.2.2 nexthop via 192.0.2.3", []),
        ("route add unreachable default", ["no-default-route"]),
        ("-6 route add unreachable default", ["no-default-route"]),
    ],
    ids=["by several next hops", "unreachable", "unreachable by lo"],
)
def test_a_default_route_is_one_that_leads_somewhere_by_one_link_or_by_several(
    netns: Netns, route: str, told: list[str]
) -> None:
    netns.ip("link add up0 type veth peer name up1", "link set up0 up", "link set up1 up")
    netns.ip("address add 192.0.2.1/24 dev up0", route)

    assert ids(in_(netns, lambda: examine_default_route([4]))) == told


@pytest.mark.parametrize(
    ("rule", "taken"),
    [
        ("rule add priority 100 lookup 77", True),
        ("rule add priority 100 lookup 77 suppress_prefixlength 8", True),
        ("rule add priority 100 lookup 77 suppress_prefixlength 12", False),
        ("rule add priority 100 fwmark 7 lookup 77", False),
        ("rule add priority 100 from 192.0.2.0/24 lookup 77", False),
        ("rule add priority 9000 lookup 77", False),
    ],
)
def test_a_rule_before_ours_is_named_where_it_takes_packets_of_pods(
    netns: Netns, rule: str, taken: bool
) -> None:
    netns.ip("link add up0 type veth peer name up1", "link set up0 up", "link set up1 up")
    netns.ip("address add 192.0.2.1/24 dev up0", "route add 10.0.0.0/12 dev up0 table 88", rule)
    netns.ip("route add 10.240.0.0/12 via 192.0.2.2 table 77")

    found = in_(netns, lambda: examine_rules(POD_CIDRS))

    assert ids(found) == (["rule-before-ours"] if taken else [])
    if taken:
        assert "10.244.0.0/16 by table 77" in found[0].what
        netns.ip("rule del priority 100")
        assert in_(netns, lambda: examine_rules(POD_CIDRS)) == []


def test_links_of_a_network_whose_program_is_gone_are_named(netns: Netns, tmp_path: Path) -> None:
    netns.ip("link add flannel.1 type vxlan id 77 dstport 8999", "link add cni0 type bridge")
    (tmp_path / "12").mkdir()

    (found,) = in_(netns, lambda: examine_leftovers((), tmp_path))
    assert found.id == "leftover-links"
    assert "flannel.1" in found.what
    assert "cni0" in found.what

    (tmp_path / "12" / "comm").write_text("flanneld\n")
    assert in_(netns, lambda: examine_leftovers((), tmp_path)) == []
    netns.ip("link del flannel.1", "link del cni0")
    (tmp_path / "12" / "comm").unlink()
    assert in_(netns, lambda: examine_leftovers((), tmp_path)) == []


def test_a_bridge_that_limpet_uses_or_that_has_ports_is_left_over_by_nobody(
    netns: Netns, tmp_path: Path
) -> None:
    """What `bridge = "cni0"` in the agent's settings, or `--take-over flannel`, comes to: nothing
    marks that bridge as ours, and `ip link delete cni0` would cut all pods of the node off."""
    netns.ip("link add cni0 type bridge", "link add flannel.1 type vxlan id 77 dstport 8999")

    (found,) = in_(netns, lambda: examine_leftovers({"cni0"}, tmp_path))
    assert found.what.startswith("flannel.1: ")
    assert found.advice == "when its pods are gone: ip link delete flannel.1"
    (found,) = in_(netns, lambda: examine_leftovers((), tmp_path))
    assert "cni0" in found.advice

    netns.ip("link add port0 type veth peer name port1", "link set port0 master cni0")
    (found,) = in_(netns, lambda: examine_leftovers((), tmp_path))
    assert "cni0" not in found.what + found.advice
    netns.ip("link del flannel.1")
    assert in_(netns, lambda: examine_leftovers((), tmp_path)) == []


def test_bridges_in_use_are_the_agents_and_those_that_configurations_and_pods_name(
    tmp_path: Path,
) -> None:
    configurations: dict[str, dict[str, object]] = {
        "10-limpet.conflist": {"name": "a", "plugins": [{"type": "limpet"}]},
        "20-own.conf": {"name": "b", "type": "limpet", "bridge": "br-own"},
        "30-ipam.conf": {"name": "c", "type": "bridge", "bridge": "br-ipam"},
        "40-flannel.conflist": {"name": "d", "plugins": [{"type": "flannel"}]},
        "50-broken.conf": {"name": "e"},
    }
    for name, document in configurations.items():
        (tmp_path / name).write_text(json.dumps(document))
    target = Installation(
        parse_settings({"bridge": "limpet7", "state_dir": str(tmp_path / "state")}, "test"),
        NodeState(()),
        conflist=tmp_path / "10-limpet.conflist",
        cni_bin_dir=tmp_path,
        network_name="a",
    )

    assert bridges_in_use(target, ()) == {"limpet7", "br-own", "br-ipam"}


def test_a_pod_does_not_see_the_programs_of_links_that_it_sees(
    netns: Netns, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netns.ip("link add flannel.1 type vxlan id 77 dstport 8999")

    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert ids(in_(netns, lambda: examine_leftovers((), tmp_path))) == ["leftover-links"]
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert in_(netns, lambda: examine_leftovers((), tmp_path)) == []


def test_a_link_of_ours_that_somebody_set_down_is_named(netns: Netns) -> None:
    netns.ip("link add limpet0 type bridge", "link add other0 type bridge")
    netns.ip("link set limpet0 alias limpet")

    (found,) = in_(netns, examine_own_links)
    assert found.id == "own-link-down"
    assert found.what == "limpet0 is down"

    netns.ip("link set limpet0 up")
    assert in_(netns, examine_own_links) == []


def test_pods_on_a_bridge_that_leads_out_are_named_in_a_cluster(netns: Netns) -> None:
    netns.ip("link add limpet0 type bridge", "link set limpet0 alias limpet up")
    netns.ip("link add br-lan type bridge", "address add 192.0.2.7/24 dev br-lan")
    netns.ip("link add br-pods type bridge", "address add 10.244.9.1/24 dev br-pods")

    def look(*bridges: str, in_cluster: bool = True) -> list[Finding]:
        state = NodeState((), tuple(POD_CIDRS), in_cluster=in_cluster)
        return in_(netns, lambda: examine_bridges(bridges, state))

    assert look("limpet0", "br-pods") == []
    assert look("br-lan", in_cluster=False) == []
    (found,) = look("limpet0", "br-lan", "br-pods")
    assert found.id == "bridge-leads-out"
    assert "br-lan" in found.what
    netns.ip("address del 192.0.2.7/24 dev br-lan")
    assert look("br-lan") == []


def test_a_vxlan_device_whose_mac_was_rewritten_is_named(netns: Netns, tmp_path: Path) -> None:
    settings = parse_settings({"state_dir": str(tmp_path)}, "test")
    folder = settings.folders.cluster_dir
    folder.mkdir(parents=True)
    adopt_vtep_macs(folder / VTEP_FILE, {4: MAC})
    netns.ip(f"link add limvx4 address {MAC} group {0x6C696D04} type vxlan id 77 dstport 8999")
    assert in_(netns, lambda: examine_vtep_macs(settings)) == []

    netns.ip("link set limvx4 address 0e:00:00:00:00:01")
    (found,) = in_(netns, lambda: examine_vtep_macs(settings))
    assert found.id == "vtep-mac-changed"
    netns.ip(found.advice.partition(";")[0].removeprefix("ip "))
    assert in_(netns, lambda: examine_vtep_macs(settings)) == []


def test_a_node_that_sends_by_vxlan_and_never_hears_by_it_is_named(netns: Netns) -> None:
    counts = {"vxlan": 1, "unreached": 0, "apart": 0}
    document = {**CLUSTER, "claims": [], "pod_cidrs": [], "segments": [], "peers": counts}
    status = convert(document, ClusterStatus)
    netns.ip(
        "link add up0 type veth peer name up1",
        "link set up1 up",
        "link set up0 up",
        "address add 192.0.2.1/24 dev up0",
        f"neigh add 192.0.2.2 lladdr {MAC} dev up0",
        "link add limvx4 group 0x6C696D04 type vxlan id 77 dstport 8999 remote 192.0.2.2 dev up0",
        "link set limvx4 up",
        "address add 10.244.1.1/24 dev limvx4",
        f"neigh add 10.244.1.2 lladdr {MAC} dev limvx4",
    )
    assert ids(in_(netns, lambda: examine_vxlan_packets(status))) == []

    with netns.open_socket(4, socket.SOCK_DGRAM) as opened:
        for _ in range(50):
            opened.sendto(b"to a pod", ("10.244.1.2", 53))

    assert ids(in_(netns, lambda: examine_vxlan_packets(status))) == ["vxlan-unheard"]


def test_what_is_left_of_limpet_where_it_is_not_installed_is_named(netns: Netns) -> None:
    assert in_(netns, examine_own_leftovers) == []
    netns.ip("link add limpet0 type bridge", "rule add priority 5148 lookup 5148")
    netns.ip("link set limpet0 alias limpet")

    (found,) = in_(netns, examine_own_leftovers)
    assert found.id == "own-leftovers"
    assert "limpet0" in found.what


def test_connection_tracking_that_is_nearly_full_is_named(netns: Netns) -> None:
    """The bound is the machine's, and filling it takes long: a thousandth of it is full here."""
    share = 0.001

    def look() -> list[Finding]:
        return in_(netns, lambda: examine_connection_tracking(share))

    netns.run("nft", "add table inet t; add chain inet t c { type filter hook output priority 0; }")
    netns.run("nft", "add rule inet t c ct state new counter")
    assert look() == []
    most = int(netns.sysctl("net/netfilter/nf_conntrack_max"))
    with netns.open_socket(4, socket.SOCK_DGRAM) as sender:
        for number in range(int(most * share) + 1):
            sender.sendto(b"", ("127.0.0.1", 1 + number))

    (found,) = look()
    assert found.id == "conntrack-full"
    assert f"of at most {most} flows" in found.what
    netns.run("conntrack", "-F")
    assert look() == []


def test_records_in_memory_are_named() -> None:
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        text = file.read()
    assert filesystem_of(Path("/dev/shm/x/y"), text) == "tmpfs"
    there = parse_settings({"data_dir": "/dev/shm/no/networks"}, "test")
    assert ids(examine_storage(there)) == ["records-volatile"]
    (found,) = examine_storage(there)
    assert "/dev/shm/no/networks is on a tmpfs" in found.what


def test_records_on_a_disk_are_fine(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "22 21 0:20 / /run rw - tmpfs tmpfs rw\n"
        "23 21 8:2 / /var/lib/my\\040disk rw - ext4 /dev/sda2 rw\n"
    )
    settings = parse_settings({}, "test")
    assert list(examine_storage(settings, mounts)) == []
    assert filesystem_of(Path("/var/lib/my disk/x"), mounts.read_text()) == "ext4"


def test_a_file_that_stops_forwarding_at_the_next_boot_is_named(tmp_path: Path) -> None:
    planned = {"net/ipv4/ip_forward": "1"}
    for name, text in (
        ("etc/sysctl.d/50-b.conf", "net.ipv4.ip_forward = 0\n"),
        ("usr/lib/sysctl.d/50-b.conf", "net.ipv4.ip_forward = 1\n"),
        ("usr/lib/sysctl.d/10-a.conf", "-net.ipv4.ip_forward=1\n# net.ipv4.ip_forward=0\n"),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    (found,) = examine_sysctl_files(planned, tmp_path)
    assert found.id == "sysctl-file"
    assert str(tmp_path / "etc/sysctl.d/50-b.conf") in found.what

    (tmp_path / "etc/sysctl.conf").write_text("net.ipv4.ip_forward=1\n")
    assert list(examine_sysctl_files(planned, tmp_path)) == []


def test_a_clock_that_is_behind_what_was_written_here_is_named(tmp_path: Path) -> None:
    (tmp_path / "own").touch()
    assert ids(examine_clock([tmp_path])) == []

    later_s = time.time() + 50 * 86400
    os.utime(tmp_path / "own", (later_s, later_s))
    (found,) = examine_clock([tmp_path], kept=lambda: False)
    assert found.id == "clock-wrong"
    assert "1200 hours behind" in found.what
    (found,) = examine_clock([tmp_path], kept=lambda: True)
    assert (found.id, found.level) == ("", Level.OK)
    assert "written when it was ahead" in found.what


def test_pods_of_kubernetes_on_dockers_bridge_are_named_and_containers_are_not(
    tmp_path: Path,
) -> None:
    for number, name, mode in (
        ("1", "/k8s_POD_web-0_default_x_0", "default"),
        ("2", "/k8s_POD_db-0_default_x_0", "none"),
        ("3", "/grafana", "bridge"),
    ):
        folder = tmp_path / number
        folder.mkdir()
        (folder / "config.v2.json").write_text(json.dumps({"Name": name}))
        (folder / "hostconfig.json").write_text(json.dumps({"NetworkMode": mode}))

    (found,) = examine_docker(tmp_path)
    assert found.id == "pods-on-docker"
    assert "1 pod of Kubernetes" in found.what
    assert "web-0" in found.what


@pytest.mark.parametrize("server", ["https://10.244.3.7:6443", "https://[fd00:244::7]:6443"])
def test_a_server_that_only_pods_network_leads_to_is_named(server: str, tmp_path: Path) -> None:
    document = {
        "state_dir": str(tmp_path),
        "source": "kubernetes",
        "kubernetes_server": server,
    }
    inside = parse_settings(document, "test")
    assert ids(examine_servers(inside, POD_CIDRS)) == ["server-inside"]
    outside = parse_settings({**document, "kubernetes_server": "https://192.0.2.7:6443"}, "test")
    assert ids(examine_servers(outside, POD_CIDRS)) == []


def test_programs_that_set_networks_up_are_named_while_they_run_here_until_they_are_told_of_us(
    netns: Netns, tmp_path: Path
) -> None:
    assert {each.id for each in NETWORK_DAEMONS} == {"networkd", "networkmanager"}

    def found() -> list[str]:
        return ids(in_(netns, lambda: examine_network_daemons("limpet0", tmp_path)))

    # What every machine with systemd has, whoever sets its network up, and what is left in /run.
    for folder in ("run/systemd/netif/leases", "run/NetworkManager"):
        (tmp_path / folder).mkdir(parents=True)
    assert found() == []

    with ExitStack() as running:
        for daemon in NETWORK_DAEMONS:
            program = shutil.copy("/bin/sleep", tmp_path / daemon.program)
            run(running, program)
            assert found() == []  # that of another network is none of ours
            run(running, "nsenter", f"--net={netns.path}", program)
            assert found() == [daemon.id]
            file = tmp_path / daemon.file.lstrip("/")
            file.parent.mkdir(parents=True)
            file.write_text(daemon.text("limpet0"))
            assert found() == []


def test_a_program_that_sets_networks_up_and_has_ended_is_not_named_though_nobody_waited_for_it(
    netns: Netns, tmp_path: Path
) -> None:
    with ExitStack() as running:
        program = shutil.copy("/bin/sleep", tmp_path / "NetworkManager")
        process = run(running, "nsenter", f"--net={netns.path}", program)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        comm = Path(f"/proc/{process.pid}/comm")
        assert comm.read_text() == "NetworkManager\n"

        found = in_(netns, lambda: examine_network_daemons("limpet0", tmp_path))
        assert ids(found) == []


def run(running: ExitStack, *command: str | Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([*command, "1000"])
    running.callback(process.wait)
    running.callback(process.kill)
    comm = Path(f"/proc/{process.pid}/comm")
    wait_until(lambda: comm.read_text().strip() == Path(command[-1]).name, "the program runs")
    return process
