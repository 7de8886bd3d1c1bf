"""Services of a node go from a real kube-proxy to Limpet and back, under held connections."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from limpet.lab.kube.control_plane import ADMINISTRATORS
from limpet.lab.kube.kube_proxy import KubeProxy, Mode
from limpet.lab.world.node import LabNode
from tests.beds.namespaces import Netns
from tests.kube.conftest import ADDRESSES
from tests.kube.flannel.flannel_bed import reference_folder
from tests.kube.installed.test_manifests import User, admin
from tests.kube.nodes.test_joining_agent import controller, node
from tests.kube.services.test_services import SERVICE, apply, endpoint_slice, joined
from tests.lab.bed import findings
from tests.waiting import wait_until

__all__ = ["admin", "controller", "joined", "node"]

HELD = 20
MODES: tuple[Mode, ...] = ("nftables", "iptables")


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


def can_ask(client: Netns, address: str) -> bool:
    try:
        with client.connected(address, 80, patience_s=1.0) as connection:
            return answers(connection, b"new")
    except OSError:
        return False


def test_connections_outlive_the_move_to_limpet_and_back(
    admin: User, joined: LabNode, tmp_path: Path
) -> None:
    """Of pods and of the node's own processes, with kube-proxy in each of its modes."""
    plane, node = admin.api, joined
    host = Netns(plane.netns)
    kubeconfig = plane.write_kubeconfig("proxy", "proxy", groups=[ADMINISTRATORS], inside=True)
    apply(plane, SERVICE, endpoint_slice(ADDRESSES[0]))
    # A kube-proxy waits half a minute for its Node's address.
    told = {"status": {"addresses": [{"type": "InternalIP", "address": ADDRESSES[0]}]}}
    plane.kubectl("patch", "node", "node-a", "--subresource=status", "-p", json.dumps(told))
    address = plane.kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
    wait_until(lambda: node.ask("status")["ready"], "pods can be started")
    pod = node.pod("client")
    pod.add()
    clients = [host, Netns(pod.netns)]
    with ExitStack() as undo:
        undo.callback(pod.remove)
        undo.enter_context(echoing(host, ADDRESSES[0], 8080))

        def hold() -> list[socket.socket]:
            wait_until(lambda: all(can_ask(each, address) for each in clients), "it is served")
            return [
                undo.enter_context(client.connected(address, 80))
                for client in clients
                for _ in range(HELD)
            ]

        held = {"begun by Limpet": hold()}
        for mode in MODES:
            proxy = KubeProxy(
                plane.netns,
                tmp_path / mode,
                kubeconfig,
                node="node-a",
                mode=mode,
                iptables=reference_folder(),
            )
            undo.callback(proxy.process.kill)
            # Given back: kube-proxy first, then Limpet's rules go.
            proxy.start()
            wait_until(lambda mode=mode: rules_of(host, mode), "kube-proxy has its rules")  # type: ignore[misc]
            turn(node, "off")
            assert "limpet_services" not in host.run("nft", "list", "tables")
            services = node.ask("status")["cluster"]["services"]
            assert (services["on"], bool(services["kube_proxy"])) == (False, True)
            held[f"begun by kube-proxy ({mode})"] = hold()
            check(held)

            # Taken over: Limpet first, then kube-proxy ends and cleans up.
            turn(node, "on")
            services = node.ask("status")["cluster"]["services"]
            assert (services["on"], bool(services["kube_proxy"])) == (True, True)
            assert "kube-proxy has rules here, too" in findings(node)["kube-proxy-beside"]
            proxy.process.stop()
            check(held)
            proxy.clean_up()
            assert not rules_of(host, mode)
            wait_until(lambda: "kube-proxy-beside" not in findings(node), "doctor is content")
            held[f"begun by Limpet after {mode}"] = hold()
            check(held)


def turn(node: LabNode, mode: str) -> None:
    node.stop_agent()
    node.settings["services"] = mode
    node.start_agent()


def check(held: dict[str, list[socket.socket]]) -> None:
    broken = {
        whose: len([each for each in connections if not answers(each, b"still")])
        for whose, connections in held.items()
    }
    assert not any(broken.values()), broken


def rules_of(host: Netns, mode: Mode) -> bool:
    """Of kube-proxy, for a Service of this test."""
    ruleset = host.run("nft", "list", "ruleset")
    return ("service-" in ruleset and "kube-proxy" in ruleset) if mode == "nftables" else (
        "KUBE-SVC-" in ruleset
    )  # fmt: skip
