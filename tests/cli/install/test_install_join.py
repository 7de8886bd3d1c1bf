"""Installing on a node of a cluster, with a real controller and another node next door.

Controller and neighbour run in the world outside the machine; what they write is in /tmp, which
is not looked at when the machine has to be as it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.cli.install.service_machine import ServiceMachine
from tests.cli.install.test_install import (
    BINARY,
    CONFIG,
    CONFLIST,
    LIMPET,
    SEGMENTS,
    assert_unchanged,
    cni,
    errors,
    furnish,
    limpet,
    plain_machine,
    refusal,
    state_of,
)
from tests.clients.machine import OUTSIDE, Machine
from tests.waiting import wait_until

__all__ = ["plain_machine"]
CONTROLLER = "192.0.2.1:7470"
IDENTITY = "/var/lib/limpet/cluster/cluster.json"


@dataclass(frozen=True, slots=True)
class Cloud:
    """A controller in the world outside."""

    machine: Machine
    folder: str = "/tmp/cloud"

    def start(self) -> Cloud:
        settings = {
            "state_dir": f"{self.folder}/state",
            "socket": f"{self.folder}/c.sock",
            "listen": CONTROLLER,
            "pod_cidrs": ["10.244.0.0/16", "fd00:244::/48"],
        }
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in settings.items()]
        self.machine.write(f"{self.folder}/controller.toml", "".join(lines))
        self.machine.start(*LIMPET, "controller", *self.config, netns=OUTSIDE)
        wait_until(self.machine.path(f"{self.folder}/c.sock").exists, "the controller listens")
        return self

    @property
    def config(self) -> tuple[str, str]:
        return "--config", f"{self.folder}/controller.toml"

    def ask(self, *words: str) -> dict[str, Any]:
        said = limpet(self.machine, *words, *self.config, "--output", "json")
        document: dict[str, Any] = json.loads(said)
        return document

    def token(self) -> str:
        return limpet(self.machine, "token", "create", *self.config).strip()

    def add_neighbour(self) -> None:
        """Another node of the cluster, beside the controller."""
        here = "/tmp/neighbour"
        settings = {
            "state_dir": f"{here}/state",
            "data_dir": f"{here}/data",
            "run_dir": f"{here}/run",
            "socket": f"{here}/agent.sock",
        }
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in settings.items()]
        self.machine.write(f"{here}/agent.toml", "".join(lines))
        join = ("join", "--token", self.token(), "--controller", CONTROLLER, "--name", "neighbour")
        config = ("--config", f"{here}/agent.toml")
        self.machine.run(*LIMPET, *join, *config, netns=OUTSIDE)
        self.machine.start(*LIMPET, "agent", *config, netns=OUTSIDE)
        wait_until(self.machine.path(f"{here}/agent.sock").exists, "the neighbour is ready")


@pytest.fixture
def cloud(machine: ServiceMachine) -> Cloud:
    return Cloud(machine).start()


@pytest.fixture(scope="module")
def untouched() -> Iterator[Cloud]:
    """A machine and its cloud for what is refused: whoever uses it shows that it is as it was."""
    with ServiceMachine() as machine:
        yield Cloud(machine).start()


def joining(cloud: Cloud, name: str = "n1") -> tuple[str, ...]:
    return ("--token", cloud.token(), "--controller", CONTROLLER, "--name", name)


def cluster_of(machine: Machine) -> dict[str, Any]:
    """The cluster's part of the agent's status."""
    status = json.loads(machine.try_run(*LIMPET, "status", "--output", "json").stdout)
    cluster: dict[str, Any] = status["cluster"]
    return cluster


def await_neighbour(machine: Machine) -> None:
    """Raises: AssertionError with what both nodes say of each other."""
    try:
        wait_until(lambda: reached(machine) == 1, "the neighbour is reached")
    except AssertionError as error:
        for config in ((), ("--config", "/tmp/neighbour/agent.toml")):
            error.add_note(limpet(machine, "peer", "list", "--all", *config))
            error.add_note(machine.try_run(*LIMPET, "status", *config).stdout)
        for name, log in machine.logs():
            error.add_note(f"{name}: {log}")
        raise


def reached(machine: Machine) -> int:
    peers: dict[str, int] = cluster_of(machine)["peers"]
    return sum(peers.values()) - peers["unreached"] - peers["apart"]


def nft_tables(machine: Machine) -> set[str]:
    said = machine.run("nft", "list", "tables")
    return {line.removeprefix("table ") for line in said.splitlines()}


# The whole life of a node.


def test_a_node_of_a_cluster_is_as_it_was_after_it_came_and_went(
    machine: ServiceMachine, cloud: Cloud
) -> None:
    furnish(machine)
    machine.run("sysctl", "-qw", "net.ipv4.conf.uplink.rp_filter=1")
    before = state_of(machine)
    cloud.add_neighbour()

    said = limpet(machine, "install", *joining(cloud), "--allow-forward")

    assert "joined" in said
    await_neighbour(machine)
    with machine.namespace("c1"):
        address = cni(machine, "ADD", "c1")["ips"][0]["address"].split("/")[0]
        ping = ("ping", "-c", "1", "-w", "10", address)  # the neighbour hears of the way back later
        wait_until(lambda: machine.try_run(*ping, netns=OUTSIDE).returncode == 0, "it is reached")
        assert errors(machine, "doctor") == []
        assert {"inet limpet", "inet limpet_overlay"} <= nft_tables(machine)
        assert machine.links("vxlan") == {"limvx4", "limvx6"}
        assert machine.run("sysctl", "-n", "net.ipv4.conf.uplink.rp_filter") == "2\n"
        cni(machine, "DEL", "c1")
    limpet(machine, "uninstall", "--purge")

    assert_unchanged(before, machine)


def test_a_node_stays_the_same_unless_it_is_purged(machine: ServiceMachine, cloud: Cloud) -> None:
    before = state_of(machine)
    limpet(machine, "install", *joining(cloud))
    uid, segments = (cluster_of(machine)[key] for key in ("uid", "segments"))

    said = limpet(machine, "uninstall")
    assert "the node stays n1" in said
    assert machine.path(IDENTITY).exists()
    assert not machine.path(BINARY).exists()
    limpet(machine, "install")
    assert [cluster_of(machine)[key] for key in ("uid", "segments")] == [uid, segments]

    said = limpet(machine, "uninstall", "--purge")
    assert "limpet node remove n1" in said
    assert "limpet token create" in said
    assert_unchanged(before, machine)


def test_a_purge_that_has_failed_finds_all_of_it_again(plain_machine: Machine) -> None:
    """The configuration says where the node's key is."""
    limpet(plain_machine, "install", *SEGMENTS, "--no-start")
    script = f"""
        mv /var/lib/limpet /opt/limpet
        sed -i '1i state_dir = "/opt/limpet"' {CONFIG}
        mkdir /opt/limpet/cluster
        mount -t tmpfs none /opt/limpet/cluster
    """
    plain_machine.run("sh", "-euc", script)
    refused = refusal(plain_machine, "uninstall", "--purge")[1]
    assert "remove /opt/limpet/cluster" in refused

    plain_machine.run("umount", "/opt/limpet/cluster")
    limpet(plain_machine, "uninstall", "--purge")

    assert not plain_machine.path("/opt/limpet/cluster").exists()
    assert not plain_machine.path(CONFIG).exists()


def test_a_machine_that_joined_before_it_was_installed_is_as_it_was_too(
    machine: ServiceMachine, cloud: Cloud
) -> None:
    before = state_of(machine)
    limpet(machine, "join", *joining(cloud))
    limpet(machine, "install")
    assert cluster_of(machine)["node"] == "n1"

    limpet(machine, "uninstall", "--purge")

    assert_unchanged(before, machine)


def test_installing_again_needs_no_token_and_minds_none_of_the_same_cluster(
    machine: ServiceMachine, cloud: Cloud
) -> None:
    words = joining(cloud)
    limpet(machine, "install", *words)
    uid = cluster_of(machine)["uid"]

    limpet(machine, "install", *words)
    assert "written" not in limpet(machine, "install")

    assert cluster_of(machine)["uid"] == uid
    assert len(cloud.ask("node", "list")["nodes"]) == 1


def test_an_installed_node_that_joins_gets_its_agent_restarted(
    machine: ServiceMachine, cloud: Cloud
) -> None:
    limpet(machine, "install", "--segment", "10.9.7.0/24")
    machine.path(CONFIG).write_text("# joins a cluster\n")

    done = machine.try_run(*LIMPET, "join", *joining(cloud))

    assert done.returncode == 0, done.stderr
    assert "the agent was restarted" in done.stderr
    assert cluster_of(machine)["node"] == "n1"


# What stands in the way.


def used_token(cloud: Cloud) -> str:
    token = cloud.token()
    done = ("join", "--token", token, "--controller", CONTROLLER, "--name", "other")
    cloud.machine.write("/tmp/other.toml", 'state_dir = "/tmp/other"\n')
    limpet(cloud.machine, *done, "--config", "/tmp/other.toml")
    return token


def token_of_another_cluster(cloud: Cloud) -> str:
    mark, name, digest, secret = cloud.token().split("_")
    return "_".join((mark, name, secret_like(digest), secret))


def guessed_token(cloud: Cloud) -> str:
    mark, name, digest, secret = cloud.token().split("_")
    return "_".join((mark, name, digest, secret_like(secret)))


def secret_like(text: str) -> str:
    """Of the same form, and another."""
    return ("b" if text[0] == "a" else "a") + text[1:]


def token_cut_short(cloud: Cloud) -> str:
    return cloud.token()[:-20]


BAD_TOKENS = (used_token, guessed_token, token_of_another_cluster, token_cut_short)


@pytest.mark.parametrize("bad_token", BAD_TOKENS)
def test_a_token_that_is_refused_changes_nothing(untouched: Cloud, bad_token: Any) -> None:
    machine = untouched.machine
    token = bad_token(untouched)
    before = state_of(machine)

    _, line = refusal(machine, "install", "--token", token, "--controller", CONTROLLER)

    assert "token" in line
    assert_unchanged(before, machine)


def test_a_controller_that_is_not_there_changes_nothing(untouched: Cloud) -> None:
    machine = untouched.machine
    token = untouched.token()
    before = state_of(machine)

    _, line = refusal(machine, "install", "--token", token, "--controller", "192.0.2.1:9")

    assert "192.0.2.1:9" in line
    assert_unchanged(before, machine)


def test_a_token_is_not_used_where_something_stands_in_the_way(
    machine: ServiceMachine, cloud: Cloud
) -> None:
    words = joining(cloud)
    machine.run("ip", "link", "add", "limpet0", "type", "veth", "peer", "name", "limpet1")
    before = state_of(machine)

    said, line = refusal(machine, "install", *words)
    assert "limpet0 is there and is a veth link" in said
    assert "nothing was changed" in line
    assert_unchanged(before, machine)

    machine.run("ip", "link", "delete", "limpet0")
    assert "would join" in limpet(machine, "install", *words, "--dry-run")
    limpet(machine, "install", *words)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (
            ["--segment", "10.244.7.0/24", "--token", "t", "--controller", "c"],
            2,
            "exclude each other",
        ),
        (["--token", "t"], 2, "belong together"),
        (["--controller", "192.0.2.1"], 2, "belong together"),
        (["--segment", "10.244.7.0/24", "--name", "n1"], 1, "leave --name out"),
        (["--token", "t", "--controller", "192.0.2.1"], 1, "limpet token create"),
    ],
)
def test_options_that_make_no_sense_together_change_nothing(
    untouched: Cloud, options: list[str], code: int, words: str
) -> None:
    machine = untouched.machine
    before = state_of(machine)

    _, line = refusal(machine, "install", *options, code=code)

    assert words in line
    assert_unchanged(before, machine)


def test_a_node_of_one_cluster_is_not_made_one_of_another(
    machine: ServiceMachine, cloud: Cloud
) -> None:
    limpet(machine, "install", *joining(cloud))
    for options, words in (
        (joining(cloud, "n2"), "as n1"),
        (("--segment", "10.244.7.0/24"), "leave --segment out"),
    ):
        _, line = refusal(machine, "install", *options)
        assert words in line
    assert cluster_of(machine)["node"] == "n1"


def test_a_lan_that_overlaps_the_pods_is_refused_and_the_token_works_afterwards(
    machine: ServiceMachine, cloud: Cloud
) -> None:
    words = joining(cloud)
    machine.run("ip", "address", "add", "10.244.200.7/24", "dev", "uplink")

    _, line = refusal(machine, "install", *words)

    assert "10.244.200.0/24" in line
    assert not machine.path(BINARY).exists()
    machine.run("ip", "address", "delete", "10.244.200.7/24", "dev", "uplink")
    limpet(machine, "install", *words)
    assert len(cloud.ask("node", "list")["nodes"]) == 1


def test_another_vxlan_device_in_the_way_is_named_before_anything_is_installed(
    machine: ServiceMachine, cloud: Cloud
) -> None:
    vxlan = ("type", "vxlan", "id", "1", "dstport", "8472", "local", "192.0.2.10", "nolearning")
    machine.run("ip", "link", "add", "flannel.1", *vxlan)

    said, line = refusal(machine, "install", *joining(cloud))

    assert "flannel.1 is a VXLAN device with the cluster's id 1 and port 8472" in said
    assert "has joined, but is not installed" in line
    assert not machine.path(CONFLIST).exists()
    machine.run("ip", "link", "delete", "flannel.1")
    limpet(machine, "install")
    assert cluster_of(machine)["node"] == "n1"


def test_an_input_chain_that_drops_is_a_warning_until_it_lets_other_nodes_in(
    machine: ServiceMachine, cloud: Cloud
) -> None:
    machine.run(
        *("nft", "add table inet site; add chain inet site in"),
        "{ type filter hook input priority filter; policy drop; }; "
        "add rule inet site in iif lo accept; add rule inet site in ct state established accept; "
        "add rule inet site in tcp dport 22 accept",
    )

    said = limpet(machine, "install", *joining(cloud))

    named = "nftables chain inet site in drops (policy drop)"
    assert f"{named}, and no rule of it seems to let UDP port 7471 and 8472 in" in said
    machine.run("nft", "add rule inet site in udp dport { 7000-7999, 8472 } accept")
    assert named not in limpet(machine, "doctor")
