"""Limpet in a conflist with the reference plugins before and after it."""

from __future__ import annotations

import json

import pytest

from tests.clients.cni import Attachment, Chain
from tests.clients.containerd import url
from tests.clients.machine import NODE_V4, NODE_V6, OUTSIDE, Machine
from tests.clients.networks import Network, make_conflist, network_under_test

TUNING = {"type": "tuning", "mtu": 1400, "sysctl": {"net.core.somaxconn": "321"}}
PORTMAP = {"type": "portmap", "capabilities": {"portMappings": True}}
BANDWIDTH = {"type": "bandwidth", "capabilities": {"bandwidth": True}}
RATE = {
    "ingressRate": 80_000_000,
    "ingressBurst": 8_000_000,
    "egressRate": 80_000_000,
    "egressBurst": 8_000_000,
}


@pytest.fixture(scope="module")
def network(machine: Machine) -> Network:
    network = network_under_test(machine)
    network.install()
    network.start()
    return network


def test_plugins_after_it_do_their_work_and_take_it_back(
    machine: Machine, network: Network
) -> None:
    conflist = make_conflist("followed", [network.main(), TUNING, PORTMAP, BANDWIDTH])
    chain = Chain(machine, conflist, network.environment)
    runtime_config = {
        "portMappings": [{"hostPort": 18080, "containerPort": 80, "protocol": "tcp"}],
        "bandwidth": RATE,
    }
    with machine.namespace("lct-followed") as netns:
        attachment = Attachment(netns, "followed", runtime_config=runtime_config)
        chain.add(attachment)
        server = machine.serve_http("lct-followed", "through portmap")

        assert machine.fetch(url(NODE_V4, 18080), netns=OUTSIDE) == "through portmap"
        assert machine.fetch(url(NODE_V6, 18080), netns=OUTSIDE) == "through portmap"
        pod_link = json.loads(
            machine.run("ip", "-json", "link", "show", "eth0", netns="lct-followed")
        )[0]
        assert pod_link["mtu"] == 1400
        assert machine.run("sysctl", "-n", "net.core.somaxconn", netns="lct-followed") == "321\n"
        assert "rate 80Mbit" in machine.run("tc", "qdisc", "show")
        assert len(machine.links("ifb")) == 1
        # Without portmap: its CHECK (1.1.1) wants the IPv4 rules among the IPv6 ones.
        checked = make_conflist("followed", [network.main(), TUNING, BANDWIDTH])
        Chain(machine, checked, network.environment).check(attachment)

        server.kill()
        chain.delete(attachment)
        chain.delete(attachment, forgotten=True)
        assert machine.links("veth", "ifb") == set()
        assert network.reservations("followed") == {}
        assert "18080" not in machine.run("iptables-save") + machine.run("ip6tables-save")


def test_a_plugin_before_it_is_kept_in_the_result(machine: Machine, network: Network) -> None:
    conflist = make_conflist("led", [{"type": "loopback"}, network.main()])
    chain = Chain(machine, conflist, network.environment)
    with machine.namespace("lct-led") as netns:
        attachment = Attachment(netns, "led")
        result = chain.add(attachment)

        owners = {
            entry["address"].split("/")[0]: result["interfaces"][entry["interface"]]["name"]
            for entry in result["ips"]
        }
        assert owners.pop("127.0.0.1") == "lo"
        owners.pop("::1", None)
        assert list(owners.values()) == ["eth0", "eth0"]
        machine.ping_all(owners)
        chain.check(attachment)

        chain.delete(attachment)
        assert network.reservations("led") == {}
