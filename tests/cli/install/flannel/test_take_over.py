"""A node is taken over from flannel and given back: what a cluster of Kubernetes is not needed for.

Pods that go on meanwhile, and nodes of both kinds, are in tests/kube/flannel.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.cli.install.service_machine import ServiceMachine
from tests.cli.install.test_install import CONFLIST, LIMPET, cni, limpet
from tests.cli.install.test_install_join import Cloud, joining

NETWORK = "podnet"
RECORDS = f"/var/lib/cni/networks/{NETWORK}"
FLANNELS = "/etc/cni/net.d/10-flannel.conflist"
_FURNISH = """
    ip link add cni0 type bridge
    ip link set cni0 up
    ip link add flannel.1 type vxlan id 1 dev uplink local 192.0.2.10 dstport 8472 nolearning
    ip address add 10.244.77.0/32 dev flannel.1
    ip link set flannel.1 up
    iptables -N FLANNEL-FWD
    iptables -A FLANNEL-FWD -s 10.244.0.0/16 -j ACCEPT
    iptables -A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
"""
TAKE_OVER = ("install", "--take-over", "flannel")


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    """Its machine is a node of flannel's, whose plugin has a record with an address that a pod has
    and one that is kept."""
    with ServiceMachine() as machine:
        machine.run("sh", "-euc", _FURNISH)
        plugins = [{"type": "flannel", "delegate": {"isDefaultGateway": True}}]
        conflist = {"cniVersion": "1.0.0", "name": NETWORK, "plugins": plugins}
        machine.write(FLANNELS, json.dumps(conflist))
        machine.write(f"{RECORDS}/10.244.0.9", "c0ffee\r\neth0")
        machine.write(f"{RECORDS}/10.244.0.8_default_web-0", "")
        yield Cloud(machine).start()


def _records(cloud: Cloud) -> set[str]:
    return {path.name for path in cloud.machine.path(RECORDS).iterdir()}


def test_what_was_given_back_to_flannel_is_never_purged(cloud: Cloud) -> None:
    limpet(cloud.machine, *TAKE_OVER, *joining(cloud))
    assert "limpet.journal" in _records(cloud)

    limpet(cloud.machine, "uninstall")
    kept = _records(cloud)
    limpet(cloud.machine, "uninstall", "--purge")

    assert _records(cloud) == kept
    assert {"10.244.0.9", "10.244.0.8_default_web-0"} <= kept
    assert "limpet.journal" not in kept


def test_a_pod_that_was_given_back_to_flannel_is_flannels(cloud: Cloud) -> None:
    """Whatever Limpet does on the node later on."""

    def links(netns: str = "") -> set[str]:
        found = json.loads(cloud.machine.run("ip", "-json", "link", netns=netns))
        return {each["ifname"] for each in found}

    # As a boot leaves it: the agent is there before the bridge plugin is asked for anything.
    cloud.machine.run("sysctl", "-qw", "net.ipv4.ip_forward=0")
    limpet(cloud.machine, *TAKE_OVER, *joining(cloud))
    with cloud.machine.namespace("c1"):
        gateway = cni(cloud.machine, "ADD", "c1")["ips"][0]["gateway"]
        of_pod = {each for each in links() if each.startswith("lim")} - {"limvx4", "limvx6"}
        assert len(of_pod) == 2, "its host end, and the link that limits what it sends"

        said = limpet(cloud.machine, "uninstall")
        assert "links of pods, 2: given back to flannel" in said
        assert cloud.machine.run("sysctl", "-n", "net.ipv4.ip_forward") == "1\n"
        limpet(cloud.machine, *TAKE_OVER)
        assert of_pod < links()
        cloud.machine.ping_all([gateway], netns="c1")
        limpet(cloud.machine, "uninstall")
        limpet(cloud.machine, "uninstall", "--purge")

        assert of_pod < links()
        assert "eth0" in links("c1")
        found = cloud.machine.try_run(*LIMPET, "doctor", "--output", "json").stdout
        assert "own-leftovers" not in [each["id"] for each in json.loads(found)["findings"]]


def test_a_configuration_with_another_bridge_than_flannels_is_a_conflict_with_flannel(
    cloud: Cloud,
) -> None:
    """A person was told to leave out an option that nobody had given."""
    cloud.machine.write("/etc/limpet/agent.toml", 'log_level = "debug"\n')

    said = cloud.machine.try_run(*LIMPET, *TAKE_OVER, *joining(cloud)).stdout

    assert "/etc/limpet/agent.toml has another value of bridge than flannel\n" in said
    assert 'write bridge = "cni0" there\n' in said


def _rules(cloud: Cloud) -> str:
    return cloud.machine.run("ip", "rule") + cloud.machine.run("ip", "-6", "rule")


def test_the_way_back_from_half_way_leaves_no_rule(cloud: Cloud) -> None:
    """Or the next installation would send pods' packets by the main table."""
    before = _rules(cloud)
    # The runtime's configuration is not written when the agent is not reached by the CNI binary.
    cloud.machine.write("/etc/limpet/shim.conf", "socket=/run/wrong.sock\n")
    done = cloud.machine.try_run(*LIMPET, *TAKE_OVER, *joining(cloud))
    assert "does not reach the agent" in done.stderr
    assert "5146:\tfrom all lookup main" in cloud.machine.run("ip", "rule")
    assert "5146" not in cloud.machine.run("ip", "-6", "rule")  # where flannel has no device
    assert "flannel.1" in cloud.machine.run("ip", "link")

    said = limpet(cloud.machine, "uninstall")

    assert "rule 5146 for table 254 (IPv4): removed" in said
    assert _rules(cloud) == before


def test_the_same_command_once_more_changes_nothing(cloud: Cloud) -> None:
    limpet(cloud.machine, *TAKE_OVER, *joining(cloud))
    conflist = cloud.machine.path(CONFLIST).read_text()
    assert json.loads(conflist)["name"] == NETWORK

    said = limpet(cloud.machine, *TAKE_OVER)

    assert f"{CONFLIST}: up to date" in said
    assert "put aside" not in said
    assert cloud.machine.path(CONFLIST).read_text() == conflist


def test_the_way_back_from_half_way_leaves_flannels_chains_as_they_were(cloud: Cloud) -> None:
    before = cloud.machine.run("iptables", "-S")
    cloud.machine.write("/etc/limpet/shim.conf", "socket=/run/wrong.sock\n")
    cloud.machine.try_run(*LIMPET, *TAKE_OVER, *joining(cloud))

    limpet(cloud.machine, "uninstall")

    assert cloud.machine.run("iptables", "-S") == before
