"""The agent under odd input, odd moments and other programs, with the real binary and kernel."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

import pytest

from limpet.agent.client import call
from limpet.base.errors import AgentUnavailable, StorageError
from limpet.base.settings import PodSettings
from limpet.cni import frames as shim
from limpet.cni import server
from limpet.cni.server import CniServer
from limpet.cni.shim_binary import shim_path
from limpet.datapath.loop import Loop
from limpet.datapath.node.forward_keeper import FORWARD_FILE
from limpet.datapath.node.part import NodePart
from limpet.datapath.node.pod.announcer import Announcer
from limpet.datapath.node.pod.attachment import Attachment, BridgeSpec, Netns, PodLink, PodName
from limpet.datapath.node.pod.attachments import Attachments
from limpet.datapath.node.pod.guards import PodGuards
from limpet.datapath.node.pod.keeper import PodKeeper
from limpet.datapath.node.ports.part import PortPart
from limpet.ipam.leases import Holder
from limpet.lab.command import LabError
from limpet.lab.world.node import LabNode
from limpet.lab.world.pod import LabPod
from tests.agent.test_agent import dying, host_ends, live, records, with_conf
from tests.beds.node_bed import NodeBed
from tests.beds.traffic.shim_frames import cni_frame
from tests.conftest import SEGMENTS, NodeFactory
from tests.waiting import PATIENCE_S, wait_until

HOST_PORT = {
    "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}],
}


def lan_conf(bridge: str, name: str = "lan", **changes: Any) -> dict[str, Any]:
    """A network with a subnet of its own."""
    ipam = {"type": "limpet", "ranges": [[{"subnet": "10.60.0.0/24"}]]}
    return with_conf(name=name, bridge=bridge, ipam=ipam, **changes)


def holders(node: LabNode) -> dict[str, str]:
    found = records(node).items()
    return {address: each["container_id"] for address, each in found if each["state"] == "live"}


def node_reaches(node: LabNode, pod: LabPod) -> None:
    for address in pod.addresses:
        node.run("ping", "-c1", "-W1", str(address.ip))


# What one pod asks for must not harm the others.


@pytest.mark.parametrize("ranges", [{}, {"ranges": [[{"subnet": "10.9.0.0/24"}]]}])
def test_an_mtu_that_would_end_ipv6_on_the_bridge_is_refused(
    node: LabNode, ranges: dict[str, Any]
) -> None:
    pod = node.pod("one")
    pod.add()
    conf = with_conf(name="small", mtu=1000, ipam={"type": "limpet", **ranges})

    answer = node.cni("ADD", node.pod("small"), conf=conf)

    assert answer.document["code"] == 7
    assert "MTU 1000 is too small for IPv6 on bridge limpet0" in answer.document["msg"]
    assert pod.reaches("fd00:7::1")
    node.pod("after").add()
    alone = {**conf, "bridge": "br9"}
    assert node.cni("ADD", node.pod("alone"), conf=alone).exit_code == bool(not ranges)


def test_a_link_that_is_no_bridge_is_left_alone_and_named(node: LabNode) -> None:
    node.run("ip", "link", "add", "up0", "type", "veth", "peer", "name", "up1")
    before = node.run("ip", "-d", "addr", "show", "up0")

    answer = node.cni("ADD", node.pod("one"), conf=lan_conf("up0"))

    assert answer.document["code"] == 102
    assert "it is a veth link; give the network another bridge name" in answer.document["msg"]
    assert node.run("ip", "-d", "addr", "show", "up0") == before
    node.pod("two").add()
    assert node.cni("STATUS", conf=with_conf(cniVersion="1.1.0")).exit_code == 0


def test_the_nodes_own_namespace_is_no_pod(node: LabNode) -> None:
    node.run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth1")
    pod = node.pod("one")
    result = {"cniVersion": "1.0.0", "interfaces": []}

    answer = node.cni("ADD", pod, netns=node.netns_path, ifname="eth7")
    assert answer.document["code"] == 4
    assert "eth7" not in node.links()

    conf = with_conf(prevResult=result)
    assert node.cni("DEL", pod, netns=node.netns_path, conf=conf).exit_code == 0
    assert "eth0" in node.links()


def test_ranges_inside_the_segments_give_no_address_twice(node: LabNode) -> None:
    ipam = {"type": "limpet", "ranges": [[{"subnet": SEGMENTS[0]}]]}

    first = node.pod("one").add().addresses
    second = node.pod("two").add(conf=with_conf(name="other", ipam=ipam)).addresses

    assert not {*first} & {*second}


def test_a_prefix_moves_to_another_bridge_when_its_last_pod_is_gone(node: LabNode) -> None:
    old, new = node.pod("old"), node.pod("new")
    old.add(conf=lan_conf("br-z"))

    answer = node.cni("ADD", new, conf=lan_conf("br-a"))
    assert answer.document["code"] == 7
    assert "10.60.0.0/24 cannot be on bridge br-a" in answer.document["msg"]

    old.delete(conf=lan_conf("br-z"))
    for bridge in ("br-zz", "br-a", "br-z"):
        new.add(conf=lan_conf(bridge, name=f"lan-{bridge}"))
        node_reaches(node, new)
        assert new.reaches("10.60.0.1")
        new.delete(conf=lan_conf(bridge, name=f"lan-{bridge}"))


def test_masquerade_ends_when_the_network_asks_for_it_no_more(node: LabNode) -> None:
    pod = node.pod("one")
    pod.add(conf=lan_conf("br9"))
    assert "10.60.0.0/24" in node.run("nft", "list", "set", "inet", "limpet", "masquerade4")
    pod.delete(conf=lan_conf("br9"))

    pod.add(conf=lan_conf("br9", ipMasq=False))

    assert "10.60.0.0/24" not in node.run("nft", "list", "set", "inet", "limpet", "masquerade4")


def test_the_gateways_mac_stays_when_a_segment_is_put_before_the_first(node: LabNode) -> None:
    pod = node.pod("one")
    pod.add()
    before = node.links()["limpet0"]["address"]
    node.stop_agent()

    node.settings["segments"] = ["10.244.1.0/24", *SEGMENTS]
    node.start_agent()

    assert node.links()["limpet0"]["address"] == before
    node.run("ip", "link", "set", "limpet0", "address", "02:00:00:00:00:01")
    node.stop_agent()
    node.start_agent()
    assert node.links()["limpet0"]["address"] == "0a:58:0a:f4:01:01"


def test_keys_that_nobody_knows_are_forgotten_with_them(node: LabNode) -> None:
    node.pod("one").add(conf=with_conf(colour="red"))
    assert node.ask("status")["unknown_keys"] == [{"network": "limpet", "key": "colour"}]

    node.pod("two").add()

    assert node.ask("status")["unknown_keys"] == []


# hostPorts.


def test_a_del_takes_the_interface_away_also_when_nftables_was_flushed(node: LabNode) -> None:
    conf = with_conf(runtimeConfig=HOST_PORT)
    for n in range(4):
        pod = node.pod(f"p{n}")
        pod.add(conf=conf)
        node.run("nft", "flush", "ruleset")
        pod.delete(conf=conf)
        assert "eth0" not in pod.run("ip", "-br", "link")

    wait_until(lambda: host_ends(node) == [])


def test_a_host_port_goes_back_to_the_pod_that_had_it(node: LabNode) -> None:
    conf = with_conf(runtimeConfig=HOST_PORT)
    old, new = node.pod("old"), node.pod("new")
    old.add(conf=conf)
    new.add(conf=conf)

    new.delete(conf=conf)

    shown = node.run("nft", "list", "map", "inet", "limpet", "hostport4")
    assert f"tcp . 8080 : {old.addresses[0].ip} . 80" in shown


def test_an_add_whose_host_port_cannot_be_opened_leaves_no_interface(node: LabNode) -> None:
    node.pod("other").add()
    with subprocess.Popen(
        ["nsenter", f"--net={node.netns_path}", "nft", "-i"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as owner:
        assert owner.stdin is not None
        # Nobody but this process may change a table with an owner. In one go: else the agent has
        # put its own back in between.
        owner.stdin.write("delete table inet limpet; add table inet limpet { flags owner; }\n")
        owner.stdin.flush()
        # Of this table: the one of port security has an owner as well, the agent.
        wait_until(lambda: "flags owner" in node.run("nft", "list", "table", "inet", "limpet"))
        pod = node.pod("one")
        answer = node.cni("ADD", pod, conf=with_conf(runtimeConfig=HOST_PORT))
        owner.stdin.close()

    assert answer.document["code"] == 102
    assert "eth0" not in pod.run("ip", "-br", "link")
    assert set(holders(node).values()) == {"other"}
    wait_until(lambda: dying(node) == [] and len(host_ends(node)) == 1)


# What an earlier agent, or another address manager, has left.


def test_an_add_is_served_again_after_the_agent_died_over_it(node: LabNode) -> None:
    """Interfaces are there, and nothing is on record: the agent died between the two."""
    pods = [node.pod(f"p{n}") for n in range(6)]
    for pod in pods:
        pod.add()
    node.stop_agent(signal.SIGKILL)
    shutil.rmtree(node.data_dir)
    shutil.rmtree(node.run_dir / "attachments")
    waiting = [_start_add(node, pod) for pod in pods]

    node.start_agent()

    assert [(shim.wait(), _said(shim).get("msg")) for shim in waiting] == [(0, None)] * len(pods)
    assert all(pod.reaches("10.244.7.1") for pod in pods)
    wait_until(lambda: dying(node) == [])


def _start_add(node: LabNode, pod: LabPod) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [str(shim_path())],
        env=node.cni_environment("ADD", pod),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(with_conf()).encode())
    process.stdin.close()
    return process


def _said(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    with process.stdout:
        document: dict[str, Any] = json.loads(process.stdout.read())
    return document


def test_what_is_answered_to_an_add_that_is_asked_again_is_on_disk(node: LabNode) -> None:
    pod = node.pod("one")
    pod.add()
    node.stop_agent(signal.SIGKILL)
    shutil.rmtree(node.data_dir)
    node.start_agent()
    environment = node.cni_environment("ADD", pod)
    variables = {key: value for key, value in environment.items() if key.startswith("CNI_")}

    again = shim.CniCall(variables, json.dumps(with_conf()).encode(), attempt=1)
    assert _ask(node.socket, cni_frame(again))[0] == 0

    node.stop_agent(signal.SIGKILL)
    shutil.rmtree(node.run_dir / "attachments")
    node.start_agent()
    assert live(node) == {str(address.ip) for address in pod.addresses}


def _ask(path: Path, request: bytes) -> tuple[int, bytes]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(str(path))
        connection.sendall(request)
        received = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    header = shim.ANSWER_HEADER_BYTES
    return shim.decode_answer_header(received[:header])[0], received[header:]


def test_one_lost_address_leaves_the_other_pods_theirs(node: LabNode) -> None:
    pods = [node.pod(f"p{n}") for n in range(3)]
    for pod in pods:
        pod.add()
    node.stop_agent(signal.SIGKILL)
    folder = node.data_dir / "limpet"
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / str(pods[0].addresses[0].ip)).write_text("a-stranger\r\neth0")

    node.start_agent()

    held = holders(node)
    assert held[str(pods[0].addresses[0].ip)] == "a-stranger"
    assert {held[str(address.ip)] for address in pods[1].addresses} == {"p1"}
    assert {held[str(address.ip)] for address in pods[2].addresses} == {"p2"}


_ALONE = ["10.251.8.0/24", "fd00:251:8::/64"]
"""No other test's: what any namespace of this machine has is in use."""


def test_of_an_adopted_pod_only_the_address_that_is_gone_is_released(
    make_node: NodeFactory,
) -> None:
    node = make_node(segments=_ALONE)
    pod = adopted(node, "running", "10.251.8.8", "running\r\neth0")
    (node.data_dir / "limpet" / "fd00:251:8::8").write_text("running\r\neth0")
    node.start_agent()
    node.pod("other").add()

    node.ask("ipam.repair")

    assert "10.251.8.8" in live(node)
    assert "fd00:251:8::8" not in live(node)
    assert "10.251.8.8" in pod.run("ip", "addr")


def test_gc_spares_a_valid_container_whose_interface_is_not_on_record(
    make_node: NodeFactory,
) -> None:
    node = make_node(segments=_ALONE)
    adopted(node, "kept", "10.251.8.8", "kept")
    adopted(node, "stale", "10.251.8.9", "stale")
    node.start_agent()
    node.pod("other").add()

    conf = with_conf(cniVersion="1.1.0")
    conf["cni.dev/valid-attachments"] = [{"containerID": "kept", "ifname": "eth0"}]
    assert node.cni("GC", conf=conf).exit_code == 0

    assert live(node) == {"10.251.8.8"}


def adopted(node: LabNode, name: str, address: str, reservation: str) -> LabPod:
    """A pod that host-local gave an address to."""
    folder = node.data_dir / "limpet"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / address).write_text(reservation)
    pod = node.pod(name)
    pod.run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "peer0")
    pod.run("ip", "addr", "add", f"{address}/24", "dev", "eth0")
    return pod


def test_a_namespace_is_found_wherever_it_is_mounted(make_node: NodeFactory) -> None:
    """Names of mounts are bytes; blanks come escaped."""
    node = make_node(segments=SEGMENTS)
    pod = adopted(node, "running", "10.244.7.8", "running\r\neth0")
    other = node.pod("other")
    odd = os.fsencode(node.folder) + b"/a m\xfcll\xc3\xbc"
    with open(odd, "wb"):
        pass
    hide = f'mount --bind {pod.netns_path} "$0" && umount {pod.netns_path} && exec "$@"'
    node.agent_prefix = ["unshare", "-m", "sh", "-c", hide, os.fsdecode(odd)]
    node.start_agent()
    other.add()

    assert node.ask("ipam.check")["leaks"] == []
    assert node.ask("ipam.repair")["released"] == []
    assert "10.244.7.8" in live(node)


def test_status_makes_no_record(make_node: NodeFactory) -> None:
    node = make_node(segments=SEGMENTS)
    node.start_agent()

    assert node.ask("status")["ready"]

    assert not node.data_dir.exists()


# Odd input.


def test_check_of_a_second_network_knows_that_the_first_has_the_default_route(
    node: LabNode,
) -> None:
    pod = node.pod("one")
    first = pod.add().document
    second = pod.add(conf=lan_conf("br9"), ifname="eth1").document

    conf = lan_conf("br9", prevResult=second)
    assert node.cni("CHECK", pod, conf=conf, ifname="eth1").exit_code == 0

    pod.run("ip", "route", "del", "default")
    answer = node.cni("CHECK", pod, conf=with_conf(prevResult=first))
    assert "route 0.0.0.0/0 via 10.244.7.1 is missing" in answer.document["msg"]


def test_a_fifo_holds_nobody_up(node: LabNode, tmp_path: Path) -> None:
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)

    assert node.cni("ADD", node.pod("one"), netns=fifo).document["code"] == 4
    ipam = {"type": "limpet", "resolvConf": fifo}
    node.pod("two").add(conf=with_conf(ipam=ipam))


def test_a_resolv_conf_is_read_before_anything_is_made(node: LabNode, tmp_path: Path) -> None:
    path = tmp_path / "resolv.conf"
    conf = with_conf(ipam={"type": "limpet", "resolvConf": str(path)})
    pod = node.pod("one")

    assert node.cni("ADD", pod, conf=conf).document["code"] == 7
    assert "eth0" not in pod.run("ip", "-br", "link")
    assert live(node) == set()

    path.write_text("nameserver 192.0.2.53\n")
    assert pod.add(conf=conf).document["dns"]["nameservers"] == ["192.0.2.53"]
    own = {**conf, "dns": {"nameservers": ["192.0.2.54"]}}
    assert node.pod("two").add(conf=own).document["dns"]["nameservers"] == ["192.0.2.54"]


def test_rules_in_anothers_chain_go_when_the_agent_starts_without_allow_forward(
    node: LabNode,
) -> None:
    def others() -> str:
        return node.run("nft", "list", "table", "ip", "others")

    drops = "type filter hook forward priority 0; policy drop;"
    node.run("nft", f"add table ip others; add chain ip others through {{ {drops} }}")
    node.pod("one").add()
    node.stop_agent()
    node.settings["allow_forward"] = True
    node.start_agent()
    wait_until(lambda: others().count('comment "limpet"') == 2)
    node.stop_agent()
    node.settings["allow_forward"] = False

    node.start_agent()

    wait_until(lambda: not (node.run_dir / FORWARD_FILE).exists(), "they are removed")
    assert "accept" not in others()
    assert "policy drop" in others()


def test_a_runtime_is_told_where_this_node_answers_names_unless_the_network_says_otherwise(
    node: LabNode,
) -> None:
    assert "dns" not in node.pod("none").add().document
    node.stop_agent()
    node.settings |= {"dns": "on", "dns_in_results": True}
    node.start_agent()

    told = node.pod("one").add(args="K8S_POD_NAMESPACE=shop;K8S_POD_NAME=one").document["dns"]
    assert told == {
        "nameservers": ["169.254.20.10", "fd5b:9ad1:7e3c::53"],
        "search": ["shop.svc.cluster.local", "svc.cluster.local", "cluster.local"],
        "options": ["ndots:5"],
    }
    assert "shop.svc.cluster.local" not in node.pod("two").add().document["dns"]["search"]
    own = with_conf(dns={"nameservers": ["192.0.2.54"]})
    assert node.pod("three").add(conf=own).document["dns"] == {"nameservers": ["192.0.2.54"]}


def test_del_with_a_folder_that_cannot_be_is_done(node: LabNode) -> None:
    conf = with_conf(ipam={"type": "limpet", "dataDir": "/" + "a" * 300})

    assert node.cni("DEL", node.pod("one"), conf=conf).exit_code == 0


def test_what_an_add_that_failed_has_made_is_removed(node: LabNode) -> None:
    routes = [{"dst": "198.51.100.0/24", "gw": "203.0.113.1"}]
    conf = with_conf(ipam={"type": "limpet", "routes": routes})

    answer = node.cni("ADD", node.pod("one"), conf=conf)

    assert "203.0.113.1" in answer.document["msg"]
    wait_until(lambda: dying(node) == [])


# The process.


def test_a_log_that_cannot_be_written_stops_nothing(make_node: NodeFactory) -> None:
    node = make_node(segments=SEGMENTS, log_level="debug")
    node.agent_prefix = ["sh", "-c", 'exec "$@" 2>/dev/full', "sh"]
    node.start_agent()
    pod = node.pod("one")
    pod.add()

    assert node.cni("ADD", pod).document["code"] == 104
    pod.delete()
    node.stop_agent()


def test_a_forged_name_gets_no_pod_and_no_line_of_the_log(node: LabNode) -> None:
    with pytest.raises(LabError, match="K8S_POD_NAME"):
        node.pod("one").add(args="K8S_POD_NAMESPACE=a;K8S_POD_NAME=b\nerror\r\x1b[2Jc")

    text = node.agent.log.read_bytes()
    assert b"request failed" in text
    assert not any(line.startswith(b"error") for line in text.splitlines())
    assert b"\x1b" not in text
    assert b"\r" not in text


def test_an_error_of_the_agent_is_not_taken_for_a_lock(make_node: NodeFactory) -> None:
    node = make_node(segments=SEGMENTS)
    (node.folder / "state" / "sysctls.json").mkdir(parents=True)

    with pytest.raises(Exception, match=r"sysctls.json: not a regular file"):
        node.start_agent()


async def _echo(call: server.Call, _gone: Callable[[], bool]) -> tuple[int, bytes]:
    if isinstance(call, shim.AdminCall) and call.verb == "fail":
        raise RuntimeError("of a test")
    return 0, b"x" * (4 << 20)


def _converse(path: Path, talk: Callable[[socket.socket], bytes]) -> bytes:
    """What `talk` makes of a connection to a server that is patient for a moment only."""

    def client() -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE_S)
            connection.connect(str(path))
            return talk(connection)

    async def run() -> bytes:
        listening = CniServer(path, _echo)
        await listening.start()
        try:
            return await asyncio.to_thread(client)
        finally:
            await listening.stop()

    return asyncio.run(run())


@pytest.mark.parametrize("sent", [b"", b"LMP1", b"LMP1\xff\0\0\0C"])
def test_who_does_not_ask_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(server, "_PATIENCE_S", 0.05)

    def wait(connection: socket.socket) -> bytes:
        connection.sendall(sent)
        return connection.recv(1)

    assert _converse(tmp_path / "s", wait) == b""


def test_who_does_not_take_the_answer_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_PATIENCE_S", 0.05)

    def sleep(connection: socket.socket) -> bytes:
        connection.sendall(shim.encode_admin_call(shim.AdminCall("x", {})))
        hung_up = select.poll()
        hung_up.register(connection, 0)
        assert hung_up.poll(20_000)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))

    assert len(_converse(tmp_path / "s", sleep)) < 4 << 20


def test_a_request_that_breaks_the_agent_is_not_left_waiting(tmp_path: Path) -> None:
    def ask(connection: socket.socket) -> bytes:
        connection.sendall(shim.encode_admin_call(shim.AdminCall("fail", {})))
        return connection.recv(1)

    assert _converse(tmp_path / "s", ask) == b""


def test_an_agent_that_goes_away_over_a_question_is_said_to(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        async def ask() -> None:
            asking = asyncio.to_thread(call, path, "status")
            task = asyncio.ensure_future(asking)
            connection, _ = await asyncio.to_thread(listener.accept)
            connection.recv(1 << 16)
            connection.close()
            await task

        with pytest.raises(AgentUnavailable, match="it went away while it answered"):
            asyncio.run(ask())


def test_a_round_that_breaks_is_reported_and_the_next_one_runs(
    bed: NodeBed, tmp_path: Path
) -> None:
    broken = True

    class Originals:
        def keep(self, sysctl: str) -> None:
            if broken:
                raise RuntimeError("of a test")

        def was(self, sysctl: str) -> str | None:
            return None

    async def scenario() -> None:
        nonlocal broken
        announcer, loop = Announcer(), Loop()
        attachments = Attachments(tmp_path / "attachments")
        pods = PodKeeper(
            attachments,
            announcer,
            is_held=lambda _ifname: False,
            release=lambda _attachment: None,
            retired=lambda: None,
        )
        ports = PortPart(loop, "auto", attachments, set)
        rounds = NodePart(
            loop,
            PodSettings(),
            kernel=bed.kernel,
            pods=pods,
            guards=PodGuards(ports),
            originals=Originals(),
        )
        loop.add(rounds)
        spec = BridgeSpec("limpet0", (ip_interface("10.244.7.1/24"),))
        rounds.ensure_bridge("net", spec)
        assert "RuntimeError('of a test')" in rounds.failures[0]

        broken = False
        rounds.run("again")
        assert rounds.failures == []
        announcer.close()
        ports.close()
        loop.close()

    with bed.node.entered():
        asyncio.run(scenario())

    assert "10.244.7.1/24" in bed.node.run("ip", "addr", "show", "limpet0")


def test_an_uplink_that_comes_up_late_listens_to_its_router_at_once(node: LabNode) -> None:
    node.pod("one").add()
    node.run("ip", "link", "add", "late0", "type", "veth", "peer", "name", "late1")
    node.run("ip", "link", "add", "link", "late0", "name", "late5", "type", "macvlan")
    path = "net.ipv6.conf.late5.accept_ra"
    assert node.run("sysctl", "-n", path).strip() == "1"

    node.run("ip", "link", "set", "late1", "up")
    node.run("ip", "link", "set", "late0", "up")
    node.run("ip", "link", "set", "late5", "up")

    wait_until(lambda: node.run("sysctl", "-n", path).strip() == "2")


def test_an_attachment_that_does_not_fit_on_the_disk_leaves_no_file(tmp_path: Path) -> None:
    attachments = Attachments(tmp_path)
    pod = Attachment(
        "net",
        Holder("c", "eth0"),
        Netns("/run/netns/x", 1, 2),
        PodName("", "pod"),
        (),
        (),
        link=PodLink("limx"),
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        with pytest.raises(StorageError, match="No space left"):
            attachments.put(pod)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert list(tmp_path.iterdir()) == []
    assert len(attachments) == 0
