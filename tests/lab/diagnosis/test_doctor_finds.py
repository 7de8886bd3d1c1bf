"""Faults of the ways between sites, made for real: doctor names each, and it goes when mended."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from limpet.lab.topology import parse_topology
from limpet.lab.world.machine import Machine
from limpet.lab.world.world import World
from tests.lab.bed import findings, with_endpoint
from tests.lab.rungs import CLIMBS_WITHIN_S
from tests.waiting import wait_until

WITHOUT_RELAY = """
[cloud]
addresses = ["203.0.113.10/24"]
nodes = { hub = 1, port = 0 }
[site.harbour]
lan = ["192.168.1.0/24"]
nat = "cone"
nodes = { crane-1 = 0, crane-2 = 0 }
[site.quarry]
lan = ["192.168.1.0/24"]
nat = "symmetric"
nodes = { digger-1 = 1 }
[site.mast]
lan = ["192.168.30.0/24"]
nat = "symmetric"
nodes = { radio-1 = 1 }
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Two nodes are behind NATs that let nobody in, and there is no relay: not all is reached."""
    name = f"finds{os.getpid()}"
    made = World(parse_topology(WITHOUT_RELAY, name, "a test"), name, tmp_path_factory.mktemp(name))
    try:
        made.up()
        yield made
    finally:
        made.down()


def until_found(machine: Machine, finding: str) -> str:
    """What it says. Raises: AssertionError."""
    return wait_until(
        lambda: findings(machine).get(finding, ""), finding, patience_s=CLIMBS_WITHIN_S
    )


def until_gone(machine: Machine, finding: str) -> None:
    wait_until(lambda: finding not in findings(machine), finding, patience_s=CLIMBS_WITHIN_S)


def test_nats_that_let_nobody_in_are_named_until_there_is_a_relay(world: World) -> None:
    radio = world.machine("radio-1")
    assert "symmetric" in until_found(radio, "nat-without-relay")
    assert "not reached" in until_found(radio, "no-relay")

    world.controller.command("node", "set", "hub", "--add-role", "relay")

    until_gone(radio, "nat-without-relay")
    until_gone(radio, "no-relay")


def test_a_site_without_udp_is_told_that_it_reaches_others_slowly(world: World) -> None:
    """After the one before: there is a relay."""
    digger = world.machine("digger-1")
    until_gone(digger, "reached-by-tls")  # on the way up it may be TLS's turn for a moment
    world.gateway("quarry").block_udp()
    try:
        assert "a relay in TLS is the way" in until_found(digger, "reached-by-tls")
    finally:
        world.gateway("quarry").allow_udp()
    until_gone(digger, "reached-by-tls")


def test_an_endpoint_that_was_written_down_is_named_when_the_provider_changes_it(
    world: World,
) -> None:
    crane, gateway = world.machine("crane-1"), world.gateway("harbour")
    port = crane.ask("status")["cluster"]["tunnel"]["port"]
    with with_endpoint(crane, f"{gateway.public}:{port}"):
        wait_until(lambda: crane.ask("status")["ready"])
        assert "endpoint-stale" not in findings(crane)

        gateway.change_public_address()

        said = until_found(crane, "endpoint-stale")
        assert str(gateway.public) in said
    until_gone(crane, "endpoint-stale")


def test_one_endpoint_of_two_nodes_is_named_at_both(world: World) -> None:
    one, other = world.machine("crane-1"), world.machine("crane-2")
    endpoint = f"{world.gateway('harbour').public}:7471"
    with with_endpoint(one, endpoint), with_endpoint(other, endpoint):
        assert "crane-2" in until_found(one, "endpoint-shared")
        assert "crane-1" in until_found(other, "endpoint-shared")
    until_gone(one, "endpoint-shared")


def test_a_rule_that_another_program_takes_away_again_and_again_is_named(world: World) -> None:
    hub = world.machine("hub")
    assert "tunnel-rule-missing" not in findings(hub)
    rule = next(line for line in hub.run("ip", "rule").splitlines() if "fwmark" in line)
    priority = rule.partition(":")[0]
    # Faster than it is put back: one process that does nothing else.
    words = f"yes rule del priority {priority} | ip -force -batch - >/dev/null 2>&1"
    taking = subprocess.Popen(
        ["nsenter", f"--net={hub.netns_path}", "sh", "-c", words], start_new_session=True
    )
    try:
        until_found(hub, "tunnel-rule-missing")
    finally:
        os.killpg(taking.pid, signal.SIGKILL)
        taking.wait()
    until_gone(hub, "tunnel-rule-missing")
