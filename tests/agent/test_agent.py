"""The agent with the real CNI binary and the real kernel, one node in namespaces."""

from __future__ import annotations

import json
import select
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from limpet.cni.shim_binary import shim_path
from limpet.lab.command import LabError, run_command
from limpet.lab.netns import delete_namespace, make_namespace
from limpet.lab.world.node import DEFAULT_CONF, LabNode
from limpet.lab.world.pod import LabPod
from limpet.linux.namespaces import Namespace
from tests.beds.namespaces import received
from tests.beds.traffic.tcp import fetch, serving
from tests.conftest import SEGMENTS, NodeFactory
from tests.waiting import wait_until


def dying(node: LabNode) -> list[str]:
    return [name for name in node.links() if name.startswith("limx")]


def host_ends(node: LabNode) -> list[str]:
    return [name for name in node.links() if name.startswith("lim") and len(name) == 15]


def records(node: LabNode) -> dict[str, dict[str, Any]]:
    return {record["address"]: record for record in node.ask("ipam.list")["records"]}


def live(node: LabNode) -> set[str]:
    return {address for address, record in records(node).items() if record["state"] == "live"}


def with_conf(**changes: Any) -> dict[str, Any]:
    return {**DEFAULT_CONF, **changes}


def reach_each_other(*pods: LabPod) -> bool:
    return all(a.reaches(address.ip) for a in pods for b in pods for address in b.addresses)


def test_pods_reach_each_other_and_the_node_reaches_them(node: LabNode) -> None:
    one, two = node.pod("one"), node.pod("two")
    result = one.add()
    two.add()

    assert [str(address) for address in one.addresses] == ["10.244.7.2/24", "fd00:7::2/64"]
    assert reach_each_other(one, two)
    assert one.reaches("10.244.7.1")
    assert one.reaches("fd00:7::1")
    for address in two.addresses:
        node.run("ping", "-c1", "-W1", str(address.ip))
    kinds = [interface["name"] for interface in result.document["interfaces"]]
    assert kinds[0] == "limpet0"
    assert result.document["interfaces"][2]["sandbox"] == one.netns_path
    assert result.document["ips"][0]["gateway"] == "10.244.7.1"


def test_del_leaves_nothing_and_can_be_repeated(node: LabNode) -> None:
    pod = node.pod("one")
    pod.add()

    pod.delete()
    assert "eth0" not in pod.run("ip", "-br", "link")
    pod.delete()
    pod.delete(netns="")

    assert live(node) == set()
    node.stop_agent()
    assert host_ends(node) == []
    assert dying(node) == []


def test_a_new_interface_can_be_added_at_once_after_del_in_the_same_namespace(
    node: LabNode,
) -> None:
    pod = node.pod("one")
    for _ in range(10):
        pod.add()
        assert pod.reaches("10.244.7.1")
        pod.delete()


def test_the_second_add_of_one_interface_fails_and_leaves_the_first(node: LabNode) -> None:
    pod, other = node.pod("one"), node.pod("two")
    pod.add()
    other.add()

    answer = node.cni("ADD", pod)

    assert answer.exit_code == 1
    assert answer.document["code"] == 104
    assert reach_each_other(pod, other)


def test_an_interface_that_another_made_is_never_taken_over(node: LabNode) -> None:
    pod = node.pod("one")
    pod.run("ip", "link", "add", "eth0", "type", "bridge")

    answer = node.cni("ADD", pod)

    assert answer.document["code"] == 104
    assert "bridge" in pod.run("ip", "-d", "link", "show", "eth0")
    assert live(node) == set()
    assert host_ends(node) == []


def test_a_pod_that_comes_back_has_the_address_it_had(node: LabNode) -> None:
    pods = [node.pod(f"pod-{n}") for n in range(5)]
    before = {pod.name: pod.add().addresses for pod in pods}
    for pod in pods:
        pod.delete()

    after = {
        name: node.pod(name, container_id=f"{name}-again").add().addresses
        for name in reversed(before)
    }

    assert after == before


def test_addresses_are_kept_over_a_reboot(node: LabNode) -> None:
    before = {name: node.pod(name).add().addresses for name in ("a", "b", "c")}

    node.reboot()
    node.start_agent()
    new = node.pod("new").add().addresses
    after = {
        name: node.pod(name, container_id=f"{name}2").add().addresses for name in ("c", "a", "b")
    }

    assert after == before
    assert new not in before.values()


def test_pods_do_not_notice_that_the_agent_is_killed_and_started(node: LabNode) -> None:
    one, two = node.pod("one"), node.pod("two")
    one.add()
    two.add()
    before = set(node.links())

    node.stop_agent(signal.SIGKILL)
    assert reach_each_other(one, two)
    node.start_agent()

    assert reach_each_other(one, two)
    assert set(node.links()) == before
    assert len(live(node)) == 4
    three = node.pod("three")
    three.add()
    assert reach_each_other(one, three)


def test_of_two_sandboxes_of_one_pod_the_newest_has_the_address(node: LabNode) -> None:
    old = node.pod("web", container_id="old")
    peer = node.pod("peer")
    addresses = old.add().addresses
    peer.add()
    new = node.pod("web", container_id="new")

    assert new.add().addresses == addresses
    assert "eth0" not in old.run("ip", "-br", "link")
    assert reach_each_other(new, peer)

    old.delete()  # late: changes nothing
    assert reach_each_other(new, peer)
    assert {str(address.ip) for address in addresses} <= live(node)


def test_check_tells_what_is_wrong(node: LabNode) -> None:
    pod = node.pod("one")
    result = pod.add().document
    conf = with_conf(prevResult=result)

    assert node.cni("CHECK", pod, conf=conf).exit_code == 0

    pod.run("ip", "addr", "del", "10.244.7.2/24", "dev", "eth0")
    answer = node.cni("CHECK", pod, conf=conf)
    assert answer.exit_code == 1
    assert "10.244.7.2/24 is missing" in answer.document["msg"]


def test_the_main_plugin_is_given_the_leases_alone_and_not_what_plugins_before_it_have_made(
    node: LabNode,
) -> None:
    """It takes all addresses of the answer for its own interface."""
    before = {
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "lo", "sandbox": "/run/netns/one"}],
        "ips": [{"address": "127.0.0.1/8", "interface": 0}],
        "routes": [{"dst": "192.0.2.0/24"}],
    }
    conf = with_conf(type="bridge", ipam={"type": "limpet"}, prevResult=before)
    pod = node.pod("one")

    answer = node.cni("ADD", pod, conf=conf)

    assert answer.exit_code == 0
    assert "127.0.0.1/8" not in [each["address"] for each in answer.document["ips"]]
    assert "192.0.2.0/24" not in [each["dst"] for each in answer.document.get("routes", [])]
    assert "interfaces" not in answer.document
    assert node.cni("DEL", pod, conf=conf).exit_code == 0


def test_check_of_an_unknown_container_says_so(node: LabNode) -> None:
    pod = node.pod("one")
    answer = node.cni(
        "CHECK", pod, conf=with_conf(prevResult={"cniVersion": "1.0.0", "interfaces": []})
    )
    assert answer.exit_code == 1
    assert answer.document["code"] == 3


def test_gc_takes_away_what_is_not_listed(node: LabNode) -> None:
    kept, stale = node.pod("kept"), node.pod("stale")
    kept.add()
    stale.add()
    conf = with_conf(cniVersion="1.1.0")

    assert node.cni("GC", conf=conf).exit_code == 0
    assert len(live(node)) == 4, "an absent list is no list"

    valid = [{"containerID": "kept", "ifname": "eth0"}]
    conf["cni.dev/valid-attachments"] = valid
    assert node.cni("GC", conf=conf).exit_code == 0
    assert live(node) == {str(address.ip) for address in kept.addresses}
    assert kept.reaches("10.244.7.1")

    conf["cni.dev/valid-attachments"] = []
    assert node.cni("GC", conf=conf).exit_code == 0
    assert live(node) == set()


def test_gc_takes_the_others_away_where_one_cannot_be_and_says_so(
    node: LabNode, tmp_path: Path
) -> None:
    """The first one has its address from a folder of before, which is no folder any more."""
    before = tmp_path / "before"
    ipam = {"type": "limpet", "dataDir": str(before), "ranges": [[{"subnet": "10.9.0.0/24"}]]}
    node.pod("first").add(conf=with_conf(ipam=ipam))
    node.pod("second").add()
    node.stop_agent()
    shutil.rmtree(before)
    before.touch()
    node.start_agent()

    conf = with_conf(cniVersion="1.1.0") | {"cni.dev/valid-attachments": []}
    answer = node.cni("GC", conf=conf)

    assert answer.exit_code == 1
    assert str(before) in answer.document["msg"]
    assert live(node) == set()


def test_status_says_why_no_pod_can_be_taken(make_node: NodeFactory) -> None:
    node = make_node()
    node.start_agent()
    conf = with_conf(cniVersion="1.1.0")

    answer = node.cni("STATUS", conf=conf)

    assert answer.exit_code == 1
    assert answer.document["code"] == 50
    assert "no address segment" in answer.document["msg"]
    ranges = {"type": "limpet", "ranges": [[{"subnet": "10.9.0.0/24"}]]}
    assert node.cni("STATUS", conf={**conf, "ipam": ranges}).exit_code == 0


def test_a_pod_that_goes_without_del_gives_its_address_back(node: LabNode) -> None:
    gone, stays = node.pod("gone"), node.pod("stays")
    gone.add()
    stays.add()

    gone.remove()

    # The kernel tears a namespace down behind the command; its notification wakes the agent.
    wait_until(lambda: live(node) == {str(address.ip) for address in stays.addresses})
    again = node.pod("gone", container_id="gone2")
    assert again.add().addresses == gone.addresses


@pytest.mark.parametrize(
    "damage",
    [
        ("ip", "link", "del", "limpet0"),
        ("ip", "link", "set", "limpet0", "down"),
        ("ip", "addr", "flush", "dev", "limpet0"),
        ("ip", "rule", "del", "priority", "5148"),
        ("ip", "-6", "rule", "del", "priority", "5148"),
        ("ip", "route", "flush", "table", "5148"),
        ("nft", "flush", "ruleset"),
    ],
    ids=" ".join,
)
def test_what_is_damaged_is_repaired_without_disturbing_pods(
    node: LabNode, damage: tuple[str, ...]
) -> None:
    one, two = node.pod("one"), node.pod("two")
    one.add()
    two.add()
    before = state(node)

    node.run(*damage)

    await_state(node, before)
    assert reach_each_other(one, two)
    assert one.reaches("10.244.7.1")


def state(node: LabNode) -> dict[str, Any]:
    links = node.links()
    return {
        "links": {
            name: (link.get("master"), "UP" in link["flags"]) for name, link in links.items()
        },
        "addresses": sorted(
            (link["ifname"], address["local"])
            for link in json.loads(node.run("ip", "-j", "addr", "show", "dev", "limpet0"))
            for address in link["addr_info"]
            if address["scope"] == "global"
        ),
        "rules": node.run("ip", "rule") + node.run("ip", "-6", "rule"),
        "routes": node.run("ip", "route", "show", "table", "5148")
        + node.run("ip", "-6", "route", "show", "table", "5148"),
        "nft": node.run("nft", "list", "ruleset"),
    }


def await_state(node: LabNode, wanted: dict[str, Any]) -> None:
    def repaired() -> bool:
        try:
            return state(node) == wanted
        except LabError:  # the bridge is not there yet
            return False

    wait_until(repaired)


def test_a_pods_host_end_that_is_deleted_is_made_anew(node: LabNode) -> None:
    one, two = node.pod("one"), node.pod("two")
    one.add()
    two.add()
    before = state(node)

    attached = node.ask("attachments")["attachments"][0]
    node.run("ip", "link", "del", attached["link"]["host_ifname"])

    await_state(node, before)
    assert reach_each_other(one, two)
    for _ in range(2):
        one.run("ip", "link", "del", "eth0")
        await_state(node, before)  # after a pause
    assert "deleted again and again" in node.log()


def test_live_pods_stay_connected_when_run_is_emptied(node: LabNode) -> None:
    one, two = node.pod("one"), node.pod("two")
    one.add()
    two.add()
    node.stop_agent(signal.SIGKILL)
    for path in (node.run_dir / "attachments").iterdir():
        path.unlink()

    node.start_agent()
    assert node.ask("ipam.repair")["released"] == []

    assert reach_each_other(one, two)
    one.delete()
    assert "eth0" not in one.run("ip", "-br", "link")
    assert live(node) == {str(address.ip) for address in two.addresses}


def test_several_segments_are_used_one_after_the_other(make_node: NodeFactory) -> None:
    node = make_node(segments=["10.244.1.0/29", "10.244.2.0/29", "fd00:1::/64"])
    node.start_agent()
    pods = [node.pod(f"p{n}") for n in range(10)]
    for pod in pods:
        pod.add()

    assert {str(pod.addresses[0].network) for pod in pods} == {"10.244.1.0/29", "10.244.2.0/29"}
    first, last = pods[0], pods[-1]
    assert reach_each_other(first, last)
    node.run("ip", "addr", "show", "dev", "limpet0", "to", "10.244.2.1")

    answer = node.cni("ADD", node.pod("one-too-many"))
    assert answer.document["code"] == 100
    text = json.dumps(answer.document)
    assert "10.244.1.0/29" in text
    assert "segment" in text


def test_addresses_asked_for_are_given(node: LabNode) -> None:
    pod = node.pod("one")
    asked = {"ips": ["10.244.7.77/24", "fd00:7::77/64"], "mac": "02:11:22:33:44:55"}
    result = pod.add(conf=with_conf(runtimeConfig=asked))

    assert [str(address) for address in pod.addresses] == ["10.244.7.77/24", "fd00:7::77/64"]
    assert result.document["interfaces"][2]["mac"] == "02:11:22:33:44:55"
    assert "02:11:22:33:44:55" in pod.run("ip", "link", "show", "eth0")

    answer = node.cni("ADD", node.pod("two"), conf=with_conf(runtimeConfig=asked))
    assert answer.document["code"] == 101


def test_a_network_with_ranges_of_its_own_stands_beside_the_segments(node: LabNode) -> None:
    conf = {
        "cniVersion": "1.0.0",
        "name": "lan",
        "type": "limpet",
        "bridge": "lan0",
        "isGateway": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": "192.168.50.0/24", "rangeStart": "192.168.50.100"}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    pod, other = node.pod("one"), node.pod("two")
    pod.add(conf=conf, ifname="net1")
    other.add()

    assert str(pod.addresses[0]) == "192.168.50.100/24"
    assert "default via 192.168.50.1" in pod.run("ip", "route")
    assert pod.reaches("192.168.50.1")
    node.stop_agent()
    reservation = node.data_dir / "lan" / "192.168.50.100"
    assert reservation.read_bytes() == b"one\r\nnet1"
    node.start_agent()
    pod.delete(conf=conf, ifname="net1")
    assert "net1" not in pod.run("ip", "-br", "link")


@pytest.fixture
def lan(node: LabNode) -> Iterator[str]:
    """A host beside the node: the node is 192.0.2.1 and 2001:db8::1 on its link."""
    lan = f"{node.name}-lan"
    make_namespace(lan)
    try:
        node.run("ip", "link", "add", "up0", "type", "veth", "peer", "name", "up0", "netns", lan)
        for netns, host in ((node.name, 1), (lan, 9)):
            run_command("ip", "addr", "add", f"192.0.2.{host}/24", "dev", "up0", netns=netns)
            run_command(
                "ip", "addr", "add", f"2001:db8::{host}/64", "dev", "up0", "nodad", netns=netns
            )
            run_command("ip", "link", "set", "up0", "up", netns=netns)
        yield lan
    finally:
        delete_namespace(lan)


def test_host_ports_lead_to_the_pod_from_wherever_they_are_asked(node: LabNode, lan: str) -> None:
    pod, other = node.pod("web"), node.pod("other")
    mapping = {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}
    conf = with_conf(runtimeConfig={"portMappings": [mapping]})
    pod.add(conf=conf)
    other.add()

    with serving(pod, 80, "hello"):
        for netns in (lan, node.name, pod.netns, other.netns):
            assert fetch("192.0.2.1", 8080, netns=netns) == "hello"
            assert fetch("2001:db8::1", 8080, netns=netns) == "hello"
        assert fetch("127.0.0.1", 8080, netns=node.name) == "hello"

    pod.delete(conf=conf)
    assert str(pod.addresses[0].ip) not in node.run("nft", "list", "table", "inet", "limpet")


def test_a_host_port_moves_to_the_pod_that_asked_last(node: LabNode, lan: str) -> None:
    mapping = {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}
    conf = with_conf(runtimeConfig={"portMappings": [mapping]})
    old, new = node.pod("old"), node.pod("new")
    old.add(conf=conf)
    new.add(conf=conf)

    with serving(old, 80, "old"), serving(new, 80, "new"):
        assert fetch("192.0.2.1", 8080, netns=lan) == "new"
        old.delete(conf=conf)
        assert fetch("192.0.2.1", 8080, netns=lan) == "new"


@pytest.mark.parametrize("address", ["192.0.2.1", "2001:db8::1"])
def test_who_goes_on_sending_datagrams_to_a_host_port_reaches_the_pod_that_comes(
    node: LabNode, lan: str, address: str
) -> None:
    """From one port all the time, as programs that tell figures and logs do: also before there is
    a pod, and between two."""
    mapping = {"hostPort": 5300, "containerPort": 53, "protocol": "udp"}
    conf = with_conf(runtimeConfig={"portMappings": [mapping]})
    anywhere = "::" if ":" in address else "0.0.0.0"
    node.pod("other").add()  # the node keeps track of flows from then on
    with (
        udp_socket(f"/run/netns/{lan}", address) as client,
        udp_socket(node.netns_path, address) as on_node,
    ):
        on_node.bind((anywhere, 5300))
        client.connect((address, 5300))
        for name in ("first", "second"):
            received(on_node, b"early", lambda: client.send(b"early"))
            pod = node.pod(name)
            pod.add(conf=conf)
            with udp_socket(pod.netns_path, address) as server:
                server.bind((anywhere, 53))
                received(server, b"late", lambda: client.send(b"late"))
            pod.delete(conf=conf)
            wait_until(lambda: dying(node) == [])


def udp_socket(netns: str, address: str) -> socket.socket:
    with Namespace(netns) as namespace, namespace.entered():
        return socket.socket(
            socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM
        )


def test_host_ports_are_there_again_after_somebody_flushed_the_ruleset(
    node: LabNode, lan: str
) -> None:
    mapping = {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}
    pod = node.pod("web")
    pod.add(conf=with_conf(runtimeConfig={"portMappings": [mapping]}))
    before = state(node)

    node.run("nft", "flush", "ruleset")

    await_state(node, before)
    with serving(pod, 80, "hello"):
        assert fetch("192.0.2.1", 8080, netns=lan) == "hello"


def test_pods_leave_the_cluster_by_the_nodes_address_and_stay_inside_by_their_own(
    make_node: NodeFactory,
) -> None:
    node = make_node(segments=SEGMENTS, cluster_cidrs=["10.244.0.0/16", "fd00::/32"])
    node.start_agent()
    pod = node.pod("one")
    pod.add()

    rules = node.run("nft", "list", "table", "inet", "limpet")
    assert "10.244.0.0/16" in rules
    with pytest.raises(LabError, match="No route to host"):
        node.run("ip", "route", "get", "10.244.99.1")


def test_an_add_whose_caller_was_killed_leaves_nothing_after_its_del(node: LabNode) -> None:
    pod = node.pod("one")
    environment = node.cni_environment("ADD", pod)
    for delay_s in [n / 4000 for n in range(24)]:
        with subprocess.Popen(
            [str(shim_path())], env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        ) as shim:
            assert shim.stdin is not None
            shim.stdin.write(json.dumps(DEFAULT_CONF).encode())
            shim.stdin.close()
            select.select([], [], [], delay_s)  # at another instant of the ADD each time
            shim.kill()
        pod.delete()
        assert "eth0" not in pod.run("ip", "-br", "link")

    assert live(node) == set()
    node.stop_agent()
    assert [name for name in node.links() if name.startswith("lim")] == ["limpet0"]


def test_two_networks_never_give_one_address_of_the_segments_twice(node: LabNode) -> None:
    pods = [node.pod(f"p{n}") for n in range(6)]
    given = []
    for n, pod in enumerate(pods):
        given += pod.add(conf=with_conf(name=("limpet", "second")[n % 2])).addresses

    assert len(set(given)) == len(given)


def test_a_damaged_file_of_an_attachment_is_named_and_harms_nobody(node: LabNode) -> None:
    pod, other = node.pod("one"), node.pod("two")
    pod.add()
    other.add()
    node.stop_agent()
    ends = {a: a for a in (node.run_dir / "attachments").iterdir()}
    victim = min(ends)
    victim.write_text("{")

    node.start_agent()

    findings = node.ask("status")["findings"]
    assert any(finding["path"] == str(victim) for finding in findings)
    assert reach_each_other(pod, other)
    pod.delete()
    other.delete()
    assert live(node) == set()


def test_bandwidth_of_a_pod_is_limited_both_ways(node: LabNode) -> None:
    limit = {"ingressRate": 8000000, "ingressBurst": 800000}
    limit |= {"egressRate": 4000000, "egressBurst": 400000}
    conf = with_conf(runtimeConfig={"bandwidth": limit})
    pod = node.pod("one")
    pod.add(conf=conf)

    shown = node.run("tc", "qdisc", "show")
    assert "rate 8Mbit" in shown
    assert "rate 4Mbit" in shown

    pod.delete(conf=conf)
    node.stop_agent()
    assert [name for name in node.links() if name.startswith("lim")] == ["limpet0"]


def test_a_node_that_ran_host_local_keeps_its_pods_and_their_addresses(
    make_node: NodeFactory,
) -> None:
    # No other node of this machine has these: what is held anywhere is in use.
    node = make_node(segments=["10.251.7.0/24", "fd00:251::/64"])
    folder = node.data_dir / "limpet"
    folder.mkdir(parents=True)
    running = node.pod("running", container_id="old-sandbox")
    running.run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "peer0")
    running.run("ip", "addr", "add", "10.251.7.5/24", "dev", "eth0")
    (folder / "10.251.7.5").write_text("old-sandbox\r\neth0")
    (folder / "10.251.7.6").write_text("a-dead-one\neth0")
    (folder / "10.251.7.9_default_kept").touch()
    (folder / "last_reserved_ip.0").write_text("10.251.7.6")
    node.start_agent()

    new = node.pod("new").add().addresses
    kept = node.pod("kept").add().addresses
    node.ask("ipam.repair")

    assert str(new[0]) == "10.251.7.7/24"
    assert str(kept[0]) == "10.251.7.9/24"
    assert "10.251.7.5" in live(node)
    assert "10.251.7.6" not in live(node)
    running.delete()
    assert "10.251.7.5" not in live(node)
    assert "eth0" not in running.run("ip", "-br", "link")


def test_pods_get_through_anothers_dropping_forward_chain_where_that_is_asked_for(
    make_node: NodeFactory,
) -> None:
    node = make_node(segments=["10.244.1.0/29", "10.244.2.0/29"], allow_forward=True)
    drops = (
        "table ip others {\n chain through {\n"
        "  type filter hook forward priority 0; policy drop;\n }\n}\n"
    )
    run_command("nft", "-f", "-", netns=node.name, stdin=drops)
    node.start_agent()
    pods = [node.pod(f"p{n}") for n in range(7)]
    for pod in pods:
        pod.add()

    assert pods[0].addresses[0].network != pods[-1].addresses[0].network
    assert pods[0].reaches(pods[-1].addresses[0].ip), "routed from one segment to the other"
    assert "policy drop" in node.run("nft", "list", "table", "ip", "others")


def test_add_and_del_at_the_same_moment_leave_all_or_nothing(node: LabNode) -> None:
    pod = node.pod("one")
    with ThreadPoolExecutor(2) as pool:
        for _ in range(20):
            add = pool.submit(node.cni, "ADD", pod)
            delete = pool.submit(node.cni, "DEL", pod)
            assert add.result().exit_code == delete.result().exit_code == 0
            attached = "eth0" in pod.run("ip", "-br", "link")
            assert attached == bool(live(node))
            assert not attached or pod.reaches("10.244.7.1")
            pod.delete()
    assert live(node) == set()


def test_many_pods_at_once_have_addresses_of_their_own_and_reach_each_other(node: LabNode) -> None:
    pods = [node.pod(f"p{n}") for n in range(30)]
    with ThreadPoolExecutor(15) as pool:
        list(pool.map(LabPod.add, pods))

    given = [address for pod in pods for address in pod.addresses]
    assert len(given) == len(set(given)) == 60
    assert reach_each_other(pods[0], pods[15], pods[29])
