"""Network policies of a node on its own, with the real agent, command and CNI binary."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from limpet.lab.command import LabError
from limpet.lab.launch import launcher
from limpet.lab.world.node import LabNode
from limpet.lab.world.pod import LabPod
from tests.beds.namespaces import Netns, NetnsFactory, connect_namespaces
from tests.beds.own_tables import others_can_delete
from tests.conftest import SEGMENTS, NodeFactory
from tests.waiting import wait_until

CLOSED = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Ingress]
"""
FROM_CLIENTS = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: clients, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress:
    - from: [{podSelector: {matchLabels: {app: client}}}]
      ports: [{port: 80}]
"""


def limpet(node: LabNode, *argv: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "limpet", *argv, "--config", str(node.config_path)]
    return launcher().run(command, input=text)


def apply(node: LabNode, text: str) -> str:
    done = limpet(node, "policy", "apply", "-", text=text)
    assert done.returncode == 0, done.stderr
    return done.stdout


def pod(node: LabNode, name: str, labels: dict[str, str], container_id: str = "") -> LabPod:
    found = node.pod(name, namespace="shop", container_id=container_id or None)
    found.add(conf={**CONF, "args": {"cni": {"labels": listed(labels)}}})
    return found


CONF: dict[str, Any] = {
    "cniVersion": "1.0.0",
    "name": "limpet",
    "type": "limpet",
    "isDefaultGateway": True,
    "ipam": {"type": "limpet"},
}


def listed(labels: dict[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in labels.items()]


class Knock:
    """Tries a port of a pod or an address from a pod or a host: what the table drops is counted."""

    def __init__(self, node: LabNode) -> None:
        self.node = node

    def dropped(self) -> int:
        shown = self.node.run("nft", "list", "counter", "inet", "limpet_policy", "dropped")
        found = re.search(r"packets (\d+)", shown)
        assert found is not None
        return int(found[1])

    def __call__(self, client: LabPod | Netns, server: LabPod | str, port: int = 80) -> bool:
        """True: refused by the server itself, which nobody listens in. False: dropped."""
        target = server if isinstance(server, str) else str(server.addresses[0].ip)
        place = client if isinstance(client, Netns) else Netns(Path(client.netns_path).name)
        before = self.dropped() if "limpet_policy" in self.node.run("nft", "list", "tables") else 0
        with place.open_socket(4, socket.SOCK_STREAM) as knocking:
            knocking.setblocking(False)
            knocking.connect_ex((target, port))

            def told() -> str:
                if knocking.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    return "refused"
                return "dropped" if before < self._dropped_or(before) else ""

            return wait_until(told, f"nothing came of a knock at {target}:{port}") == "refused"

    def _dropped_or(self, before: int) -> int:
        try:
            return self.dropped()
        except LabError:
            return before


def test_pods_are_held_on_a_bridge_of_somebody_else_whose_mac_changes_with_its_ports(
    node: LabNode,
) -> None:
    """A bridge that was given no MAC has the least of its ports'."""
    node.run("ip", "link", "add", "br9", "type", "bridge")
    node.run("ip", "link", "set", "br9", "up")
    ranges = [[{"subnet": "10.99.9.0/24"}]]
    conf = {**CONF, "name": "nine", "bridge": "br9", "ipam": {"type": "limpet", "ranges": ranges}}
    apply(node, FROM_CLIENTS)
    pods, knock = [], Knock(node)
    for name in ("web", "client", "other"):
        made = node.pod(name, namespace="shop")
        made.add(conf={**conf, "args": {"cni": {"labels": listed({"app": name})}}})
        pods.append(made)
    web, client, other = pods

    for mac in ("", "02:00:00:00:00:09"):
        if mac:
            node.run("ip", "link", "set", "br9", "address", mac)
        wait_until(lambda: mac_of(node, "br9") in routers(node))
        assert knock(client, web)
        assert not knock(other, web)


def test_the_table_of_policies_is_not_held_open_for_pods_as_others_chains_that_drop_are(
    make_node: NodeFactory,
) -> None:
    node = make_node(segments=SEGMENTS, allow_forward=True)
    node.start_agent()
    node.run("nft", "add table ip others; add chain ip others forward { "
             "type filter hook forward priority filter; policy drop; }")  # fmt: skip
    apply(node, FROM_CLIENTS)
    web, client, other = (pod(node, name, {"app": name}) for name in ("web", "client", "other"))
    wait_until(lambda: "accept" in node.run("nft", "list", "table", "ip", "others"))

    assert Knock(node)(client, web)
    assert not Knock(node)(other, web)
    assert node.ask("status")["ready"]
    assert "comment" not in node.run("nft", "list", "chain", "inet", "limpet_policy", "forward")


def test_a_pod_is_closed_at_an_address_that_its_node_grants_it_too(make_node: NodeFactory) -> None:
    node = make_node(segments=SEGMENTS, pod_extra_addresses=["10.244.7.200/29"])
    node.start_agent()
    web, other = (node.pod(name, namespace="shop") for name in ("web", "other"))
    more = {"labels": listed({"app": "web"}), "allowedAddresses": ["10.244.7.201"]}
    web.add(conf={**CONF, "args": {"cni": more}})
    other.add(conf=CONF)
    web.run("ip", "address", "add", "10.244.7.201/24", "dev", "eth0")
    knock = Knock(node)

    assert knock(other, "10.244.7.201")
    apply(node, CLOSED)
    assert not knock(other, "10.244.7.201")


def mac_of(node: LabNode, ifname: str) -> str:
    (link,) = json.loads(node.run("ip", "-json", "link", "show", ifname))
    return str(link["address"])


def routers(node: LabNode) -> str:
    return node.run("nft", "list", "set", "bridge", "limpet_policy", "routers")


def test_policies_are_applied_told_and_deleted(node: LabNode) -> None:
    knock = Knock(node)
    web, client = pod(node, "web", {"app": "web"}), pod(node, "client", {"app": "client"})
    stranger = pod(node, "stranger", {})
    assert knock(client, web)

    assert apply(node, CLOSED) == "NetworkPolicy shop/closed: in force\n"
    assert not knock(client, web)
    assert knock(web, client)
    assert web.reaches("10.244.7.1")
    assert apply(node, FROM_CLIENTS) == "NetworkPolicy shop/clients: in force\n"
    assert knock(client, web)
    assert not knock(client, web, 81)
    assert not knock(stranger, web)

    shown = limpet(node, "policy", "list").stdout
    assert re.search(r"shop/clients +ingress +app=web +1\n", shown), shown
    shown = limpet(node, "policy", "show", "shop/web").stdout
    assert "labels: app=web\n" in shown
    assert "ingress: isolated by shop/clients, shop/closed\n" in shown
    assert re.search(r"shop/clients +pods app=client +2 +tcp 80\n", shown), shown
    assert "egress: everything, since no policy isolates the pod\n" in shown

    labelled = limpet(node, "pod", "label", "shop/stranger", "app=client")
    assert labelled.stdout == "shop/stranger: app=client\n"
    assert knock(stranger, web)

    for name in ("shop/closed", "shop/clients"):
        assert limpet(node, "policy", "delete", name).returncode == 0
    assert "limpet_policy" not in node.run("nft", "list", "tables")
    assert limpet(node, "policy", "delete", "shop/closed").stderr == (
        "limpet: delete policy shop/closed: there is none (limpet policy list tells all)\n"
    )


def test_a_bad_file_changes_nothing_and_is_told_in_words(node: LabNode, tmp_path: Path) -> None:
    done = limpet(node, "policy", "apply", "-", text=f"{CLOSED}\n---\nkind: Pod\n")
    assert done.returncode == 1
    assert done.stderr == ("limpet: document 2: apiVersion: None should be networking.k8s.io/v1\n")
    assert limpet(node, "policy", "list").stderr.startswith("there is no policy")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [", encoding="utf-8")
    done = limpet(node, "policy", "apply", str(broken))
    assert done.stderr.startswith(f"limpet: read {broken}: no YAML: while parsing")
    toml = tmp_path / "closed.toml"
    toml.write_text(
        'apiVersion = "networking.k8s.io/v1"\nkind = "NetworkPolicy"\n'
        'metadata.name = "closed"\nmetadata.namespace = "shop"\n'
        'spec.podSelector.matchLabels.app = "web"\n',
        encoding="utf-8",
    )
    done = limpet(node, "policy", "apply", str(toml))
    assert done.stdout == "NetworkPolicy shop/closed: in force\n"


def test_a_new_pod_is_closed_before_its_add_is_answered_and_over_restarts_of_the_agent(
    node: LabNode,
) -> None:
    knock = Knock(node)
    apply(node, CLOSED)
    client = pod(node, "client", {})
    web = pod(node, "web", {"app": "web"})
    assert not knock(client, web)

    node.stop_agent()
    assert not knock(client, web)
    table = held_by_all(node)
    node.start_agent()
    assert held_by_all(node) == table
    assert not knock(client, web)

    node.stop_agent()
    for family in ("inet", "bridge"):
        node.run("nft", "delete", "table", family, "limpet_policy")
    node.start_agent()
    assert not knock(client, web)


def held_by_all(node: LabNode) -> tuple[str, ...]:
    """What the tables have, whoever's they are."""
    tables = node.run("nft", "list", "tables")
    return tuple(
        re.sub(r" # progname .*|\n\tflags.*", "", each)
        for family in ("inet", "bridge")
        if f"{family} limpet_policy" in tables
        for each in [node.run("nft", "-s", "list", "table", family, "limpet_policy")]
    )


def test_tables_that_others_delete_or_flush_stay_or_come_back(node: LabNode) -> None:
    apply(node, CLOSED)
    pod(node, "web", {"app": "web"})
    before = held_by_all(node)
    assert len(before) == 2
    for damage in ("flush ruleset", "delete table bridge limpet_policy"):
        if damage == "flush ruleset" or others_can_delete():
            node.run("nft", damage)
        else:
            with pytest.raises(LabError, match="Operation not permitted"):
                node.run("nft", damage)
        if not others_can_delete():
            assert held_by_all(node) == before
        wait_until(lambda: held_by_all(node) == before, f"{damage}: {held_by_all(node)}")


OPEN_PORT = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: http, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{ports: [{port: 80}]}]
"""


@pytest.fixture
def outside(node: LabNode, make_netns: NetnsFactory) -> Netns:
    """A host beyond the node's uplink, which knows the way to its pods."""
    host, outside = Netns(node.name), make_netns("out")
    connect_namespaces(host, "up0", outside, "wan0")
    host.ip("address add 192.0.2.1/24 dev up0")
    outside.ip("address add 192.0.2.2/24 dev wan0", "route add 10.244.7.0/24 via 192.0.2.1")
    return outside


def test_what_got_through_while_the_tables_were_gone_goes_on_only_if_it_may(
    node: LabNode, outside: Netns
) -> None:
    """While an agent was dead: one that runs, or sleeps, keeps them or has their twins."""
    apply(node, OPEN_PORT)
    web = pod(node, "web", {"app": "web"})
    address, inside = str(web.addresses[0].ip), Netns(Path(web.netns_path).name)
    with ExitStack() as stack:
        servers = [stack.enter_context(inside.listening(address, port)) for port in (80, 81)]
        # Something else has the kernel track connections.
        chain = "add table ip other; add chain ip other x { type filter hook forward priority 0; }"
        node.run("nft", f"{chain}; add rule ip other x ct state new counter")
        node.stop_agent(signal.SIGKILL)
        for family in ("inet", "bridge"):
            node.run("nft", f"delete table {family} limpet_policy")
        may, may_not = (stack.enter_context(outside.connected(address, port)) for port in (80, 81))
        heard = [stack.enter_context(server.accept()[0]) for server in servers]
        node.start_agent()
        knock = Knock(node)
        wait_until(lambda: "inet limpet_policy" in node.run("nft", "list", "tables"))
        wait_until(lambda: "connections that no policy allows" in node.agent.log.read_text())
        may_not.sendall(b"words")
        wait_until(lambda: knock.dropped() > 0, "they are dropped")
        may.sendall(b"words")
        assert heard[0].recv(10) == b"words"
        heard[1].setblocking(False)
        with pytest.raises(BlockingIOError):
            heard[1].recv(10)


def test_what_is_left_of_an_add_that_was_cut_is_open_to_nobody(node: LabNode) -> None:
    """Its address is on record already, as that of a pod would be whose attachment is lost."""
    apply(node, CLOSED)
    pod(node, "web", {"app": "web"})
    node.stop_agent(signal.SIGKILL)
    (recorded,) = (Path(node.settings["run_dir"]) / "attachments").glob("*.json")
    recorded.rename(recorded.with_suffix(".new"))  # as it is while the interface is made
    assert recorded.stem in node.run("ip", "-br", "link")

    node.start_agent()

    assert recorded.stem not in node.run("ip", "-br", "link", "show", "up")
    assert list(recorded.parent.iterdir()) == []


def test_the_last_pod_that_a_policy_selects_takes_the_tables_with_it(node: LabNode) -> None:
    apply(node, CLOSED)
    web = pod(node, "web", {"app": "web"})
    assert "limpet_policy" in node.run("nft", "list", "tables")
    web.delete()
    wait_until(lambda: "limpet_policy" not in node.run("nft", "list", "tables"))


def test_labels_that_a_person_gave_stay_with_a_pod_that_comes_back(node: LabNode) -> None:
    apply(node, CLOSED)
    first = pod(node, "web", {})
    assert limpet(node, "pod", "label", "shop/web", "app=web").returncode == 0
    first.delete()
    again = pod(node, "web", {}, container_id="web-again")
    assert not Knock(node)(pod(node, "client", {}), again)


def test_where_what_was_kept_is_damaged_pods_are_closed_until_a_person_has_seen_to_it(
    node: LabNode,
) -> None:
    knock = Knock(node)
    apply(node, CLOSED)
    client, web = pod(node, "client", {}), pod(node, "web", {"app": "web"})
    node.stop_agent()
    kept = Path(node.settings["state_dir"]) / "policies.json"
    assert json.loads(kept.read_text())["policies"]
    kept.write_text("{}", encoding="utf-8")
    node.start_agent()
    other = pod(node, "other", {})
    assert not knock(client, web)
    assert not knock(client, other)
    for verb in (("policy", "list"), ("policy", "delete", "closed")):
        asked = limpet(node, *verb)
        assert "policies.json: not what was kept" in asked.stdout + asked.stderr
    refused = limpet(node, "policy", "apply", "-", text=CLOSED)
    assert "delete it and apply all policies again while the agent runs" in refused.stderr
    assert kept.read_text() == "{}"
    assert not knock(client, other)

    kept.unlink()
    refused = limpet(node, "policy", "delete", "closed")
    assert refused.returncode == 1
    assert not knock(client, other)
    apply(node, CLOSED)
    assert not knock(client, web)
    assert knock(client, other)
    assert "not what was kept" not in limpet(node, "policy", "list").stdout

    node.stop_agent()
    kept.unlink()
    node.start_agent()
    assert "limpet_policy" not in node.run("nft", "list", "tables")
    assert knock(client, web)


def test_what_holds_stays_while_a_node_waits_to_join_the_cluster_that_may_have_told_it(
    node: LabNode, tmp_path: Path
) -> None:
    apply(node, CLOSED)
    pod(node, "web", {"app": "web"})
    node.stop_agent()
    (Path(node.settings["state_dir"]) / "policies.json").unlink()
    before = held_by_all(node)
    joining = {"source": "kubernetes", "kubernetes_server": "https://127.0.0.1:1"}
    node.settings |= {**joining, "kubernetes_join_token_file": str(tmp_path / "token")}
    del node.settings["segments"]
    node.start_agent()
    assert held_by_all(node) == before != ()
    asked = limpet(node, "policy", "list")
    assert asked.returncode == 1
    assert "has not joined its cluster yet" in asked.stderr
    assert held_by_all(node) == before
