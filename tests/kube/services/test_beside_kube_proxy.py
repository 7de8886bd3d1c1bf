"""Services of a node go from a real kube-proxy to Limpet and back, under held connections."""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from limpet.lab.kube.control_plane import ADMINISTRATORS
from limpet.lab.kube.kube_proxy import KubeProxy, Mode
from limpet.lab.kube.runtimes import find_runtimes
from limpet.lab.world.node import LabNode
from tests.beds.namespaces import Netns, NetnsFactory
from tests.kube.conftest import ADDRESSES
from tests.kube.flannel.flannel_bed import reference_folder
from tests.kube.installed.test_manifests import User, admin
from tests.kube.nodes.test_joining_agent import controller, node
from tests.kube.services.test_services import SERVICE, apply, endpoint_slice, joined
from tests.lab.bed import findings
from tests.waiting import PATIENCE_S, wait_until

__all__ = ["admin", "controller", "joined", "node"]

HELD = 8
"""Connections of each way, begun each time that somebody else serves."""
PROXIES: dict[str, Mode] = {
    "nftables": "nftables",
    "iptables": "iptables",
    "iptables-legacy": "iptables",
}
SHOP = {
    **SERVICE,
    "metadata": {"name": "shop", "namespace": "default"},
    "spec": {"type": "NodePort", "ports": [{"name": "http", "port": 80}]},
}
OUTSIDE = "203.0.113.2", "203.0.113.1"
"""A host elsewhere, and its router: the node."""


class Echo:
    """Gives back what each connection says, in the namespace where its socket was made."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                asked, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return  # the test is over
            threading.Thread(target=self._serve, args=(asked,), daemon=True).start()

    @staticmethod
    def _serve(asked: socket.socket) -> None:
        with asked:
            try:
                while said := asked.recv(4096):
                    asked.sendall(said)
            except OSError:
                return


@contextmanager
def echoing(host: Netns, address: str, port: int) -> Iterator[None]:
    with host.listening(address, port) as listener:
        Echo(listener)
        yield


def answers(connection: socket.socket, words: bytes) -> bool:
    try:
        connection.sendall(words)
        return connection.recv(len(words), socket.MSG_WAITALL) == words
    except OSError:
        return False


class Way(NamedTuple):
    """Who asks, and where."""

    who: str
    client: Netns
    address: str
    port: int

    def __str__(self) -> str:
        return f"{self.who} by {self.address} port {self.port}"

    def works(self) -> bool:
        try:
            self.ask(patience_s=1.0)
        except OSError:
            return False
        return True

    def ask(self, *, patience_s: float = PATIENCE_S) -> None:
        """Raises: OSError."""
        to = self.address, self.port
        with self.client.connected(*to, patience_s=patience_s) as connection:
            if not answers(connection, b"new"):
                raise OSError("it was accepted, and not answered")


class Traffic(threading.Thread):
    """New connections by every way, one after the other, whoever serves meanwhile."""

    def __init__(self, ways: list[Way]) -> None:
        super().__init__()
        self.failures: list[str] = []
        self.asked = 0
        self.longest_s = 0.0
        self._ways = ways
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.005):
            for way in self._ways:
                began_s = time.monotonic()
                try:
                    way.ask()
                except OSError as error:
                    self.failures.append(f"{way}, after {self.asked} answers: {error!r}")
                self.longest_s = max(self.longest_s, time.monotonic() - began_s)
                self.asked += 1

    def __enter__(self) -> Traffic:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


def test_connections_outlive_the_move_to_limpet_and_back(
    admin: User, joined: LabNode, tmp_path: Path, make_netns: NetnsFactory
) -> None:
    """Of pods, of the node's own processes and from outside, to the node and to a pod, by cluster
    addresses and a port of the node, with kube-proxy in each of its modes; none of those that
    begin meanwhile fails."""
    plane, node = admin.api, joined
    host, outside = Netns(plane.netns), make_netns("outside")
    wire(host, outside)
    kubeconfig = plane.write_kubeconfig("proxy", "proxy", groups=[ADMINISTRATORS], inside=True)
    # A kube-proxy waits half a minute for its Node's address.
    told = {"status": {"addresses": [{"type": "InternalIP", "address": ADDRESSES[0]}]}}
    plane.kubectl("patch", "node", "node-a", "--subresource=status", "-p", json.dumps(told))
    wait_until(lambda: node.ask("status")["ready"], "pods can be started")
    client, server = node.pod("client"), node.pod("server")
    with ExitStack() as undo:
        for pod in (client, server):
            pod.add()
            undo.callback(pod.remove)
        its_address = str(next(each.ip for each in server.addresses if each.version == 4))
        undo.enter_context(echoing(host, ADDRESSES[0], 8080))
        undo.enter_context(echoing(Netns(server.netns), its_address, 8080))
        of_shop = endpoint_slice(its_address)
        of_shop["metadata"] = {
            **of_shop["metadata"],
            "name": "shop-1",
            "labels": {"kubernetes.io/service-name": "shop"},
        }
        apply(plane, SERVICE, endpoint_slice(ADDRESSES[0]), SHOP, of_shop)

        def told_of(service: str, path: str) -> str:
            return plane.kubectl("get", "service", service, "-o", f"jsonpath={{{path}}}")

        node_port = int(told_of("shop", ".spec.ports[0].nodePort"))
        inside = {"a process of the node": host, "a pod": Netns(client.netns)}
        ways = [
            Way(who, netns, told_of(service, ".spec.clusterIP"), 80)
            for who, netns in inside.items()
            for service in ("web", "shop")
        ]
        everybody = {**inside, "a host outside": outside}
        ways += [Way(who, netns, ADDRESSES[0], node_port) for who, netns in everybody.items()]

        def hold() -> list[tuple[Way, socket.socket]]:
            for way in ways:
                wait_until(way.works, f"{way} is served")
            return [
                (way, undo.enter_context(way.client.connected(way.address, way.port)))
                for way in ways
                for _ in range(HELD)
            ]

        held = {"begun by Limpet": hold()}
        with Traffic(ways) as traffic:
            for name, mode in PROXIES.items():
                iptables = reference_folder() if name != "iptables-legacy" else legacy(tmp_path)
                proxy = KubeProxy(
                    plane.netns,
                    tmp_path / name,
                    kubeconfig,
                    node="node-a",
                    mode=mode,
                    iptables=iptables,
                )
                undo.callback(proxy.process.kill)
                # Given back: kube-proxy first, then Limpet's rules go.
                proxy.start()
                wait_until(
                    lambda name=name, its=iptables: rules_of(host, name, its) >= {"web", "shop"},  # type: ignore[misc]
                    "kube-proxy has its rules",
                )
                turn(node, "off")
                assert "limpet_services" not in host.run("nft", "list", "tables")
                services = node.ask("status")["cluster"]["services"]
                assert (services["on"], bool(services["kube_proxy"])) == (False, True)
                assert (name in services["kube_proxy"]) or name == "iptables"
                held[f"begun by kube-proxy ({name})"] = hold()
                check(held)

                # Taken over: Limpet first, then kube-proxy ends and cleans up.
                turn(node, "on")
                services = node.ask("status")["cluster"]["services"]
                assert (services["on"], bool(services["kube_proxy"])) == (True, True)
                assert "kube-proxy has rules here, too" in findings(node)["kube-proxy-beside"]
                proxy.process.stop()
                check(held)
                proxy.clean_up()
                assert not rules_of(host, name, iptables)
                wait_until(lambda: "kube-proxy-beside" not in findings(node), "doctor is content")
                held[f"begun by Limpet after {name}"] = hold()
                check(held)
    count = sum(map(len, held.values()))
    sys.stderr.write(
        f"{count} connections held; {traffic.asked} begun meanwhile, {len(traffic.failures)} "
        f"failed, the longest took {traffic.longest_s:.2f} s\n"
    )
    assert not traffic.failures, "\n".join(traffic.failures[:20])


def wire(host: Netns, outside: Netns) -> None:
    """A link between a host elsewhere and the node, which is its router."""
    its, router = OUTSIDE
    link = ("ip", "link", "add", "to-outside", "type", "veth")
    host.run(*link, "peer", "name", "eth0", "netns", outside.name)
    for netns, name, address in ((host, "to-outside", router), (outside, "eth0", its)):
        netns.run("ip", "address", "add", f"{address}/24", "dev", name)
        netns.run("ip", "link", "set", name, "up")
    outside.run("ip", "route", "add", "default", "via", router)


def legacy(folder: Path) -> Path:
    """The older iptables, in a folder as kube-proxy is given one."""
    usr = Path(find_runtimes()) / "usr"
    (libraries,) = (usr / "lib").glob("*-linux-gnu")
    made = folder / "legacy"
    (made / "bin").mkdir(parents=True)
    (made / "usr").symlink_to(usr)
    for ending in ("", "-save", "-restore"):
        for name in (f"iptables{ending}", f"ip6tables{ending}"):
            script = made / "bin" / name
            script.write_text(
                f"#!/bin/sh\nexport LD_LIBRARY_PATH={libraries} XTABLES_LIBDIR={libraries}/xtables "
                f"XTABLES_LOCKFILE={made}/lock\n"
                f'exec {usr}/sbin/xtables-legacy-multi {name} "$@"\n',
                encoding="ascii",
            )
            script.chmod(0o755)
    return made


def turn(node: LabNode, mode: str) -> None:
    node.stop_agent()
    node.settings["services"] = mode
    node.start_agent()


def check(held: dict[str, list[tuple[Way, socket.socket]]]) -> None:
    broken = {
        whose: Counter(str(way) for way, connection in those if not answers(connection, b"still"))
        for whose, those in held.items()
    }
    assert not any(broken.values()), broken


def rules_of(host: Netns, name: str, iptables: Path) -> set[str]:
    """Services of this test of which kube-proxy has rules that lead to endpoints."""
    if name == "nftables":
        rules = host.run("nft", "list", "ruleset")
    else:
        modules = next(iptables.glob("usr/lib/*/xtables"))
        save = str(iptables / "bin" / "iptables-save")
        rules = host.run("env", f"XTABLES_LIBDIR={modules}", save, "-t", "nat")
    found = r"service-\S+-default/(web|shop)/" if name == "nftables" else r"default/(web|shop):"
    return set(re.findall(found, rules))
