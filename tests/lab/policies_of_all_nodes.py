"""Policies that a person applies once, at the controller: every node holds its pods to them, and
knows those of other nodes by their labels, also while the cloud is away."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from limpet.lab.command import LabError
from limpet.lab.launch import launcher
from limpet.lab.world.machine import Machine
from limpet.lab.world.pod import LabPod
from limpet.lab.world.world import World
from tests.lab.bed import echo, echoing, everybody_reaches_everybody
from tests.lab.rungs import the_pod
from tests.waiting import wait_until

POLICY = """
[[policies]]
apiVersion = "networking.k8s.io/v1"
kind = "NetworkPolicy"
metadata = { name = "web", namespace = "default" }
[policies.spec]
podSelector = { matchLabels = { app = "web" } }
[[policies.spec.ingress]]
from = [{ podSelector = { matchLabels = { app = "client" } } }]
ports = [{ port = 7 }]
"""


def asked(world: World, *words: str) -> str:
    """A command at the controller's machine."""
    config = str(world.controller.config_path)
    done = launcher().run([sys.executable, "-m", "limpet", *words, "--cluster", "--config", config])
    assert done.returncode == 0, done.stderr
    return done.stdout


def label(machine: Machine, **labels: str) -> None:
    pod = the_pod(machine)
    machine.ask("pod.label", namespace=pod.namespace, name=pod.name, put=labels)


def judged(machine: Machine, source: LabPod, target: LabPod) -> list[bool | None]:
    """What the machine's agent says of both ends, of IPv4 and of IPv6."""
    pairs = [
        [str(one.ip), str(other.ip)]
        for one, other in zip(source.addresses, target.addresses, strict=True)
    ]
    flows = machine.ask("policy.judge", pairs=pairs, protocol="tcp", port=7)["flows"]
    return [end["allowed"] for flow in flows for end in flow["ends"]]


def until_judged(machine: Machine, source: LabPod, target: LabPod, want: list[bool | None]) -> None:
    wait_until(lambda: judged(machine, source, target) == want)


def passes(source: LabPod, target: LabPod) -> list[bool]:
    """By IPv4 and by IPv6."""
    return [_passes(source, address.ip) for address in target.addresses]


def _passes(source: LabPod, address: object) -> bool:
    try:
        return echo(source.netns, "tcp", address, 64) == "same"
    except LabError:
        return False


def cluster_policies_hold(world: World, folder: Path) -> None:
    """In a world of TWO_SITES. Raises: AssertionError, LabError."""
    serving, allowed, other = (world.machine(x) for x in ("digger-1", "crane-1", "crane-2"))
    web, client, stranger = map(the_pod, (serving, allowed, other))
    file = folder / "web.toml"
    file.write_text(POLICY)
    label(serving, app="web")
    label(allowed, app="client")

    assert "NetworkPolicy/default/web: signed, for all nodes" in asked(
        world, "policy", "apply", str(file)
    )
    assert "as it was" in asked(world, "policy", "apply", str(file))
    listed = json.loads(asked(world, "policy", "list", "--output", "json"))["policies"]
    assert [each["name"] for each in listed] == ["NetworkPolicy/default/web"]

    # The way of a connection is told whole, at either end: pods of the other node are known.
    for machine in (serving, allowed):
        until_judged(machine, client, web, [True] * 4)
    for machine in (serving, other):
        until_judged(machine, stranger, web, [True, False] * 2)
    with echoing(web.netns):
        wait_until(lambda: passes(client, web) == [True] * 2)
        wait_until(lambda: passes(stranger, web) == [False] * 2)

        # A label is changed at one node, and the other lets in whom it names now.
        label(other, app="client")
        wait_until(lambda: judged(serving, stranger, web) == [True] * 4)
        wait_until(lambda: passes(stranger, web) == [True] * 2)
        other.ask("pod.label", namespace=stranger.namespace, name=stranger.name, drop=["app"])
        wait_until(lambda: judged(serving, stranger, web) == [True, False] * 2)

        # Cut off, the agent has it from its disk.
        world.cut("quarry")
        try:
            serving.stop_agent()
            serving.run("nft", "delete", "table", "inet", "limpet_policy")
            serving.start_agent()
            assert judged(serving, stranger, web) == [True, False] * 2
            assert judged(serving, client, web) == [True] * 4
            assert "limpet_policy" in serving.run("nft", "list", "tables")
        finally:
            world.restore("quarry")

        # What a person says at the node itself counts there in place of the cluster's of that name.
        own = {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"]},
        }
        serving.ask("policy.apply", documents=[own])
        assert judged(serving, client, web) == [True, False] * 2
        serving.ask("policy.delete", namespace="default", name="web")
        wait_until(lambda: judged(serving, client, web) == [True] * 4)

        assert "withdrawn" in asked(world, "policy", "delete", "default/web")
        wait_until(lambda: False not in judged(serving, stranger, web))
        wait_until(lambda: passes(stranger, web) == [True] * 2)
    everybody_reaches_everybody(world)
