"""A node whose containerd runs already gets Limpet installed, and loses it again."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.clients.containerd import Containerd, url
from tests.clients.machine import Machine
from tests.clients.networks import LimpetNetwork
from tests.waiting import wait_until

CHECKOUT = Path(__file__).resolve().parents[3]
LIMPET = (sys.executable, "-m", "limpet")


class NothingYet(LimpetNetwork):
    """The folders and the `loopback` plugin, as a node has them before a pod network."""

    environment = {}  # noqa: RUF012

    def install(self) -> None:
        self.machine.run("mkdir", "-p", "/opt/cni/bin", "/etc/cni/net.d")
        self.machine.run("ln", "-s", "/usr/lib/cni/loopback", "/opt/cni/bin/")


def test_containerd_uses_limpet_from_its_installation_to_its_removal() -> None:
    with Machine() as machine:
        network = NothingYet(machine)
        network.install()
        containerd = Containerd(machine, network)
        try:
            containerd.install()
            assert not containerd.network_ready()[0]
            try_out(machine, containerd)
        finally:
            containerd.close()


def try_out(machine: Machine, containerd: Containerd) -> None:
    options = ("--segment", "10.244.7.0/24", "--segment", "fd00:7::/64")
    machine.try_run(*LIMPET, "install", *options)
    machine.start(*LIMPET, "agent")
    wait_until(machine.path("/run/limpet/agent.sock").exists, "the agent listens")
    machine.run(*LIMPET, "install", *options)
    # It is told by the file's appearance; nobody restarts it.
    wait_until(lambda: containerd.network_ready()[0], "containerd has seen the configuration")
    machine.run(*LIMPET, "doctor")

    one = containerd.run_pod(containerd.pod_config("one", host_ports={8080: 80}))
    two = containerd.run_pod(containerd.pod_config("two"))
    server = containerd.serve_http(one)
    client = containerd.serve_http(two)
    for address in one.addresses:
        assert containerd.fetch(client, url(address)) == "one"
    assert machine.fetch("http://192.0.2.10:8080/") == "one"
    assert containerd.fetch(server, url(two.v4)) == "two"

    refused = machine.try_run(*LIMPET, "uninstall")
    assert refused.returncode == 1
    assert "default/one" in refused.stderr
    containerd.remove_all_pods()
    machine.run(*LIMPET, "uninstall", "--purge")
    wait_until(lambda: not containerd.network_ready()[0], "containerd has seen that it is gone")
    assert machine.links("veth", "bridge") == set()
