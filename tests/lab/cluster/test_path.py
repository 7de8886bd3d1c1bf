"""What a person at a node sees of the cluster, with real agents."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from limpet.cluster.topology import transports
from limpet.lab.command import LabError
from limpet.lab.world.machine import Machine
from limpet.lab.world.world import World
from tests.lab.bed import ONE_LAN, a_world, doctor, findings, is_refused, limpet
from tests.lab.rungs import peer
from tests.waiting import wait_until

AT = "127.0.0.1:9471"
FETCH = f"import urllib.request as r; print(r.urlopen('http://{AT}/metrics').read().decode())"
TOPOLOGY = ONE_LAN + f'[agent]\nmetrics_listen = ["{AT}"]\n'


@pytest.fixture(scope="module")
def lan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with a_world(TOPOLOGY, tmp_path_factory.mktemp("path")) as world:
        # Pods are reached before it is known how: a peer tells its way to us now and then.
        for one, other in itertools.permutations(world.machines.values(), 2):
            (pod,), (far,) = one.pods.values(), other.pods.values()
            for address in far.addresses:
                wait_until(partial(is_route_both_ways, one, pod.name, str(address.ip)))
        yield world


def path(machine: Machine, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(limpet(machine, "path", *words, "--output", "json"))[
        "paths"
    ]
    return found


def is_route_both_ways(machine: Machine, *words: str) -> bool:
    """False also while one of the ways is not known at all, for which the command fails."""
    try:
        (found,) = path(machine, *words)
    except LabError:
        return False
    return bool(found["there"]["rung"] == found["back"]["rung"] == "route")


def test_a_pod_is_found_by_name_and_the_way_to_a_peer_is_a_route_of_both_ip_versions(
    lan: World,
) -> None:
    one, other = lan.machine("node-1"), lan.machine("node-2")
    (pod,), (far,) = one.pods.values(), other.pods.values()

    for address in far.addresses:
        (found,) = path(one, f"{pod.namespace}/{pod.name}", str(address.ip))
        there = found["there"]
        assert found["reachable"] is True
        assert (there["rung"], there["device"]) == ("route", "eth0")
        assert there["origin"] in {str(each.ip) for each in pod.addresses}
        assert (there["origin_node"], there["target_node"]) == ("node-1", "node-2")
        assert found["back"]["rung"] == "route"


def test_each_end_explains_both_directions_as_the_other_does(lan: World) -> None:
    one, other = lan.machine("node-1"), lan.machine("node-2")
    (pod,), (far,) = one.pods.values(), other.pods.values()
    ends = str(pod.addresses[0].ip), str(far.addresses[0].ip)

    (here,), (there,) = path(one, *ends), path(other, *ends)

    for leg in ("there", "back"):
        for key in ("rung", "device", "next_hop", "underlay", "mtu_bytes", "reason"):
            assert here[leg][key] == there[leg][key]
    assert there["back"]["origin_pod"].endswith(far.name)


def test_probes_tell_round_trips_by_what_the_path_stands_on(lan: World) -> None:
    node = lan.machine("node-1")
    (pod,) = node.pods.values()
    (far,) = lan.machine("node-3").pods.values()
    ends = pod.name, str(far.addresses[0].ip)

    probes = json.loads(limpet(node, "path", *ends, "--probe", "--output", "json"))["probes"]

    used = [each for each in probes if each["in_use"]]
    assert {each["asked"] for each in used} == {"link", "overlay"}
    for each in used:
        assert each["node"] == "node-3"
        # A busy machine may miss one within its second.
        assert 0 < each["answered"] == len(each["rtts_ms"]) <= each["sent"]
        assert all(trip_ms > 0 for trip_ms in each["rtts_ms"])
    assert "overlay address on the link" in limpet(node, "path", *ends, "--probe")


def test_what_policies_say_of_a_port_is_told_with_the_end_and_the_policy(lan: World) -> None:
    node, other = lan.machine("node-1"), lan.machine("node-2")
    (pod,), (far,) = node.pods.values(), other.pods.values()
    (address, *_), (origin, *_) = far.addresses, pod.addresses
    closed = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "few", "namespace": far.namespace},
        "spec": {"podSelector": {}, "ingress": [{"ports": [{"port": 80}]}]},
    }
    other.ask("policy.apply", documents=[closed])
    try:
        ends = str(origin.ip), str(address.ip)
        text = limpet(other, "path", *ends, "--port", "80")
        assert f"tcp 80 from {ends[0]} to {ends[1]}: not known here\n" in text
        assert f"egress of {ends[0]}: not known here: no pod of this node has it" in text
        allowed = f"ingress of {far.namespace}/{far.name} ({ends[1]}): allowed"
        assert f"{allowed}: by {far.namespace}/few (rule 1)\n" in text
        words = is_refused(lambda: limpet(other, "path", *ends, "--port", "81"))
        assert f"tcp 81 from {ends[0]} to {ends[1]}: denied\n" in words
        assert f"denied: isolated by {far.namespace}/few, and no rule allows it" in words
        is_refused(lambda: limpet(other, "path", *ends, "--port", "80", "--protocol", "udp"))
        answer = json.loads(limpet(node, "path", *ends, "--port", "81", "--output", "json"))
        (said,) = answer["policies"]
        assert [each["allowed"] for each in said["ends"]] == [True, None], "here and at the other"
    finally:
        other.ask("policy.delete", namespace=far.namespace, name="few")


def test_two_pods_of_a_node_meet_on_its_bridge(lan: World) -> None:
    node = lan.machine("node-1")
    (pod,) = node.pods.values()
    gateway = node.overlay_addresses()[0]

    text = limpet(node, "path", pod.name, str(gateway))

    assert "there: on this node, over limpet0" in text


def test_names_of_pods_and_nodes_are_known_across_nodes_without_a_controller(lan: World) -> None:
    node, other = lan.machine("node-1"), lan.machine("node-2")
    (pod,), (far,) = node.pods.values(), other.pods.values()
    lan.controller.stop()
    try:
        for word in (f"{far.namespace}/{far.name}", far.name, f"pod:{far.name}"):
            found = path(node, pod.name, word)
            assert {each["there"]["target"] for each in found} == {
                str(each.ip) for each in far.addresses
            }
            assert {each["there"]["target_pod"] for each in found} == {
                f"{far.namespace}/{far.name}"
            }
        # Neither end is here: the third node tells what it knows of the two.
        is_refused(lambda: limpet(lan.machine("node-3"), "path", pod.name, far.name))
        found = path(node, "node-1", "node-2")
        assert {each["there"]["target"] for each in found} == set(
            map(str, other.overlay_addresses())
        )
    finally:
        lan.controller.start()
        for machine in lan.machines.values():
            wait_until(partial(is_connected, machine))


def is_connected(machine: Machine) -> bool:
    return bool(machine.ask("status")["cluster"]["controller"]["connected"])


def test_what_nobody_has_is_refused_with_who_was_asked(lan: World) -> None:
    words = is_refused(lambda: limpet(lan.machine("node-1"), "path", "nobody", "10.244.0.1"))

    assert "2 other nodes were asked, none has it" in words


def test_an_address_without_a_node_is_exit_code_1(lan: World) -> None:
    node = lan.machine("node-1")
    (pod,) = node.pods.values()

    with pytest.raises(LabError):
        limpet(node, "path", pod.name, "10.244.255.9")


def test_peers_and_status_tell_how_the_node_stands(lan: World) -> None:
    node = lan.machine("node-1")

    peers = json.loads(limpet(node, "peer", "list", "--output", "json"))["peers"]
    status = json.loads(limpet(node, "status", "--output", "json"))["cluster"]

    assert [(each["name"], each["rung"]) for each in peers] == [
        ("node-2", "route"),
        ("node-3", "route"),
    ]
    assert all(each["heard_s"] is not None for each in peers)
    reached = {**dict.fromkeys((row for row in transports.TRANSPORTS), 0), "route": 2}
    assert status["peers"] == {**reached, "unreached": 0, "apart": 0}
    assert (status["node"], status["controller"]["connected"]) == ("node-1", True)
    assert status["links"][0]["ifname"] == "eth0"
    assert "2 other nodes: 2 by route" in limpet(node, "status")


def figures(node: Machine) -> dict[str, float]:
    text = node.run(sys.executable, "-c", FETCH)
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("limpet_")]
    return {name: float(value) for name, _, value in lines}


def test_figures_of_the_cluster_are_served(lan: World) -> None:
    found = figures(lan.machine("node-1"))

    assert found['limpet_agent_peers{rung="route"}'] == 2
    assert found["limpet_agent_controller_connected"] == 1
    assert found["limpet_agent_segments"] >= 2
    assert found["limpet_agent_snapshot_revision"] >= 3
    assert found['limpet_agent_messages_total{outcome="received"}'] > 0
    assert found['limpet_agent_rounds_total{part="overlay"}'] > 0
    assert found['limpet_agent_last_round_failures{part="overlay"}'] == 0


def test_doctor_finds_nothing_wrong_with_the_cluster_until_something_is(lan: World) -> None:
    node = lan.machine("node-3")
    sound = doctor(node)
    assert sound["warn"] == sound["error"] == []
    assert any("has an identity: node-3" in what for what in sound["ok"])
    assert any("all 2 other nodes are reached" in what for what in sound["ok"])
    assert any("the controller at" in what for what in sound["ok"])

    def about(found: dict[str, list[str]]) -> list[str]:
        words = ("flannel.9", "10.244.", "the controller", "other nodes", "not as planned")
        return [
            w for level in ("warn", "error") for w in found[level] if any(x in w for x in words)
        ]

    assert about(sound) == []

    node.stop_agent()
    node.run("ip", "link", "delete", "limvx4")
    node.run(
        *("ip", "link", "add", "flannel.9", "type", "vxlan", "id", "1"),
        *("dstport", "8472", "local", "192.0.2.9", "nolearning"),
    )
    node.start_agent()
    try:
        wait_until(lambda: node.ask("status")["cluster"]["last_round"]["failed"] != [])
        found = about(doctor(node))
        assert any("flannel.9 is a VXLAN device with the cluster's id 1" in w for w in found)
        assert "flannel.9" in findings(node)["vxlan-id-taken"]
    finally:
        node.run("ip", "link", "delete", "flannel.9")
    wait_until(lambda: node.ask("status")["cluster"]["last_round"]["failed"] == [])
    assert about(doctor(node)) == []


def test_doctor_names_a_network_of_the_node_that_overlaps_the_pods_of_the_cluster(
    lan: World,
) -> None:
    node = lan.machine("node-3")
    node.run("ip", "link", "add", "cellar", "type", "bridge")
    try:
        node.run("ip", "address", "add", "10.244.200.1/24", "dev", "cellar")
        node.run("ip", "link", "set", "cellar", "up")

        words = "cellar has 10.244.200.1/24, which overlaps the cluster CIDR 10.244.0.0/16"
        assert findings(node)["address-overlaps"] == words
    finally:
        node.run("ip", "link", "delete", "cellar")


def test_a_node_whose_agent_ended_answers_no_probe_and_without_an_agent_path_says_so(
    lan: World,
) -> None:
    node, other = lan.machine("node-2"), lan.machine("node-1")
    (far,) = node.pods.values()
    ends = str(other.overlay_addresses()[0]), str(far.addresses[0].ip)
    node.stop_agent()
    try:
        with pytest.raises(LabError):
            limpet(other, "path", *ends, "--probe")
        wait_until(lambda: peer(other, "node-2")["state"] == "silent")
        said = is_refused(lambda: limpet(other, "path", *ends))
        assert "node-2 is silent: its agent answers by no way" in said
        assert "not known here" in said, "its kernel goes on without it"
        words = is_refused(lambda: limpet(node, "path", "10.244.0.1", "10.244.1.1"))
        assert "is it running?" in words
    finally:
        node.start_agent()
