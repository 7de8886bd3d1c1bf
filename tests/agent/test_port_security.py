"""Port security by the real agent: kept, mended, told, and given way to where that is granted."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from limpet.lab.command import LabError
from limpet.lab.world.node import LabNode
from limpet.lab.world.pod import LabPod
from tests.agent.test_agent import with_conf
from tests.beds.own_tables import others_can_delete
from tests.conftest import SEGMENTS, NodeFactory
from tests.waiting import wait_until

TABLE = ("bridge", "limpet_ports")
ALERTS = Path(__file__).parents[2] / "deploy" / "monitoring" / "alerts.yaml"


def listing(node: LabNode) -> str:
    """But for whose it is; empty where there is no table."""
    try:
        listed = node.run("nft", "-s", "list", "table", *TABLE)
    except LabError:
        return ""
    return re.sub(r" # progname .*$|^\tflags .*\n\n", "", listed, flags=re.MULTILINE)


def elements(node: LabNode, name: str = "own4") -> set[str]:
    listed = json.loads(node.run("nft", "-j", "list", "set", *TABLE, name))
    found = next(each["set"].get("elem", []) for each in listed["nftables"] if "set" in each)
    return {" ".join(map(str, each["concat"])) if "concat" in each else each for each in found}


def forged_ping(pod: LabPod, address: str, source: str) -> bool:
    """A ping from an address that the pod gives itself for it."""
    length, options = (128, ["nodad"]) if ":" in source else (32, [])
    given = (f"{source}/{length}", "dev", "eth0")
    pod.run("ip", "address", "replace", *given, *options)
    ping = ["ip", "netns", "exec", pod.netns, "ping", "-c1", "-W1", "-I", source, address]
    arrives = subprocess.run(ping, capture_output=True, check=False).returncode == 0
    pod.run("ip", "address", "delete", *given)  # or what follows is sent from it
    return arrives


def test_a_pod_is_held_to_its_addresses_from_its_first_frame_to_its_last(node: LabNode) -> None:
    one, other = node.pod("one"), node.pod("other")
    one.add()
    other.add()
    at, at6 = (str(each.ip) for each in other.addresses)

    assert one.reaches(at)
    assert one.reaches("fd00:7::1")
    assert not forged_ping(one, at, "10.244.7.99")
    assert not forged_ping(one, at6, "fd00:7::99")
    assert not forged_ping(one, "fd00:7::1", "fd00:7::99")
    assert len(elements(node)) == 4  # of each its own, and 0.0.0.0

    one.delete()
    wait_until(lambda: len(elements(node)) == 2, "what a pod may send from goes with it")


def test_what_the_alert_names_says_what_each_pods_host_end_may_send_from(node: LabNode) -> None:
    pods = [node.pod("one"), node.pod("other")]
    for pod in pods:
        pod.add()
    alert = re.search(r"LimpetPodForges.*?- alert:", ALERTS.read_text(), re.DOTALL)
    assert alert
    (listing4,) = re.findall(r"`(nft list [^`]*)`", alert[0])

    for version, command in ((4, listing4), (6, listing4.replace("own4", "own6"))):
        said = node.run(*command.split())
        for pod in pods:
            (address,) = [each.ip for each in pod.addresses if each.version == version]
            word = str(address) if version == 4 else f"0x{int(address):032x}"
            assert re.search(rf'"lim\w+" \. 0a:58:[0-9a-f:]+ \. {word}\b', said), said


def test_it_is_kept_while_the_agent_is_dead_and_by_the_next_one(node: LabNode) -> None:
    one, other = node.pod("one"), node.pod("other")
    one.add()
    other.add()
    at, at6 = (str(each.ip) for each in other.addresses)
    node.stop_agent(signal.SIGKILL)
    before = listing(node)

    assert "limpet_ports" in before
    assert not forged_ping(one, at, "10.244.7.99")
    assert not forged_ping(one, at6, "fd00:7::99")

    node.start_agent()
    assert listing(node) == before
    assert one.reaches(at)
    assert one.reaches(at6)
    assert not forged_ping(one, at, "10.244.7.98")
    assert not forged_ping(one, at6, "fd00:7::98")


def test_pods_of_an_agent_without_it_are_held_to_their_addresses_too(node: LabNode) -> None:
    one, other = node.pod("one"), node.pod("other")
    one.add()
    other.add()
    node.stop_agent()
    node.run("nft", "delete", "table", *TABLE)
    # As an agent wrote them that knew of nothing that is allowed beside.
    for path in (node.run_dir / "attachments").glob("*.json"):
        document = json.loads(path.read_bytes())
        del document["link"]["allowed"]
        path.write_text(json.dumps(document))

    node.start_agent()
    assert len(elements(node)) == 4
    assert one.reaches(str(other.addresses[0].ip))


def test_a_pod_whose_record_is_lost_is_not_cut_off(node: LabNode) -> None:
    one, other = node.pod("one"), node.pod("other")
    one.add()
    other.add()
    node.stop_agent()
    (path,) = [
        each
        for each in (node.run_dir / "attachments").glob("*.json")
        if json.loads(each.read_bytes())["pod"]["name"] == "one"
    ]
    ifname = path.stem
    path.unlink()

    node.start_agent()
    assert elements(node, "unchecked") == {ifname}
    assert one.reaches(str(other.addresses[0].ip))


def test_damage_is_mended(node: LabNode) -> None:
    pod = node.pod("one")
    conf = with_conf(prevResult=pod.add().document)
    assert node.cni("CHECK", pod, conf=conf).exit_code == 0

    whole = listing(node)
    # One of an earlier Limpet's, that was nobody's, stays so; else nobody could damage it.
    node.stop_agent(signal.SIGKILL)
    node.run("nft", "delete", "table", *TABLE)
    node.run("nft", "add", "table", *TABLE)
    node.start_agent()
    for damage in (
        ("flush", "chain", *TABLE, "prerouting"),
        ("flush", "set", *TABLE, "own4"),
        ("delete", "table", *TABLE),  # which the agent makes its own
    ):
        node.run("nft", *damage)
        wait_until(lambda: listing(node) == whole, f"{damage} is mended")


@pytest.mark.skipif(others_can_delete(), reason="before Linux 6.9 tables belong to nobody")
def test_nobody_else_can_take_the_table_away_and_the_next_agent_goes_on_with_it(
    node: LabNode,
) -> None:
    node.pod("one").add()
    whole = listing(node)
    for end in (None, signal.SIGTERM, signal.SIGKILL):
        if end is not None:
            node.stop_agent(end)
            node.start_agent()
        with pytest.raises(LabError, match="not permitted"):
            node.run("nft", "delete", "table", *TABLE)
        node.run("nft", "flush", "ruleset")
        assert listing(node) == whole


def test_an_agent_that_is_killed_amid_an_add_leaves_no_pod_unguarded(node: LabNode) -> None:
    """What is entered for a pod is there before its interface is, and goes when it came to
    nothing."""
    one = node.pod("one")
    one.add()
    node.stop_agent(signal.SIGKILL)
    node.run("nft", "add", "element", *TABLE, "own4", "{ limabc . 0a:58:0a:f4:07:09 . 10.244.7.9 }")
    assert len(elements(node)) == 3

    node.start_agent()
    assert len(elements(node)) == 2


# What a pod asks for.


def annotated(**annotations: str) -> dict[str, Any]:
    named = {f"limpet.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return with_conf(runtimeConfig={"io.kubernetes.cri.pod-annotations": {"other": "x", **named}})


@pytest.mark.parametrize("way", ["annotation", "args"])
def test_a_pod_gets_what_the_node_grants_and_no_more(make_node: NodeFactory, way: str) -> None:
    node = make_node(
        segments=SEGMENTS,
        pod_extra_addresses=["10.244.7.200/29", "fd00:7::f0/125"],
        pod_extra_macs=["00:00:5e:00:01"],
    )
    node.start_agent()

    def asking(addresses: str, macs: str) -> dict[str, Any]:
        if way == "annotation":
            return annotated(allowed_addresses=addresses, allowed_macs=macs)
        lists = {"allowedAddresses": addresses.split(", "), "allowedMacs": macs.split(", ")}
        return with_conf(args={"cni": lists})

    one, other, third = node.pod("one"), node.pod("other"), node.pod("third")
    one.add(
        conf=asking("10.244.7.201, 10.244.7.204/30, fd00:7::f1", "00:00:5e:00:01:07"),
    )
    other.add()
    at, at6 = (str(each.ip) for each in other.addresses)
    wait_until(lambda: forged_ping(one, at, "10.244.7.201"))
    wait_until(lambda: forged_ping(one, at6, "fd00:7::f1"))
    assert not forged_ping(one, at, "10.244.7.202")
    assert not forged_ping(one, at6, "fd00:7::f2")

    answer = node.cni("ADD", third, conf=asking("10.244.7.0/24", "00:00:5e:00:01:07"))
    assert "10.244.7.0/24 is not what a pod of this node may ask for" in answer.document["msg"]
    assert 'pod_extra_addresses = ["10.244.7.0/24"]' in answer.document["details"]
    answer = node.cni("ADD", third, conf=asking("fd00:7::/64", "00:00:5e:00:01:07"))
    assert "fd00:7::/64 is not what a pod of this node may ask for" in answer.document["msg"]
    answer = node.cni("ADD", third, conf=asking("10.244.7.201", "0a:58:0a:f4:07:02"))
    assert "0a:58:0a:f4:07:02 is not what a pod of this node may ask for" in answer.document["msg"]

    # Kept by the node, whatever a runtime says later.
    node.stop_agent(signal.SIGKILL)
    node.run("nft", "delete", "table", *TABLE)
    node.start_agent()
    wait_until(lambda: forged_ping(one, at, "10.244.7.201"))
    assert not forged_ping(one, at, "10.244.7.202")
    one.delete()
    wait_until(lambda: "wide4" not in listing(node), "the sets go with the last that needs them")


def test_a_network_may_have_pods_that_are_not_checked(node: LabNode) -> None:
    one, other = node.pod("one"), node.pod("other")
    one.add(conf=with_conf(portSecurity=False))
    other.add()

    for number, (forged, another) in enumerate(
        (("10.244.7.99", "10.244.7.98"), ("fd00:7::99", "fd00:7::98"))
    ):
        at = str(other.addresses[number].ip)
        wait_until(partial(forged_ping, one, at, forged))
        assert not forged_ping(other, str(one.addresses[number].ip), another)


def test_a_node_may_be_without(make_node: NodeFactory) -> None:
    node = make_node(segments=SEGMENTS)
    node.start_agent()
    one, other = node.pod("one"), node.pod("other")
    one.add()
    other.add()
    assert listing(node)
    node.stop_agent()
    node.settings["port_security"] = "off"
    node.start_agent()

    assert listing(node) == ""
    wait_until(lambda: forged_ping(one, str(other.addresses[0].ip), "10.244.7.99"))
