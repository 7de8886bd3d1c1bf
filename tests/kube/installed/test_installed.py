"""One command installs Limpet in a cluster without a network; its pods come and go unnoticed."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import dns.message
import pytest
import yaml

from limpet.lab.kube.machine import KubeMachine
from limpet.lab.kube.programs import find_programs
from limpet.lab.kube.world import KubeWorld
from tests.beds.traffic.dns_client import asking_all_the_time
from tests.kube.installed.cluster import (
    CONTROL_PLANE,
    Stream,
    Watch,
    answers,
    ask,
    bare_world,
    deployment,
    install_service,
    kill_sandbox,
    manifest_for,
    rollout,
    running_pods,
    start_service,
    start_static_pod,
    static_pod,
    without_api_server,
)
from tests.kube.installed.test_manifests import MANIFEST, SPACE
from tests.waiting import PATIENCE_S, wait_until
from tests.web.test_access import Browser

NAMES_ADDRESS = "169.254.20.10"
Ran = subprocess.CompletedProcess[str]

pytestmark = pytest.mark.timeout(1500)  # the image is built, four kubelets start


@pytest.fixture(scope="module")
def took() -> dict[str, str]:
    """What was done since `kubectl apply`, and when."""
    return {}


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory, archive: Path, took: dict[str, str]
) -> Iterator[KubeWorld]:
    """Limpet is applied, and a Deployment beside it that waits for a network."""
    with bare_world(tmp_path_factory.mktemp("installed"), archive) as world:
        assert not world.ready_nodes()
        kubectl = world.plane.kubectl
        kubectl("label", "nodes", "cloud-1", "cloud-2", f"{CONTROL_PLANE}=")
        servers = deployment("server", len(world.machines))
        kubectl("apply", "-f", "-", stdin=json.dumps(servers))
        watch = Watch()
        manifest = manifest_for(world).replace('# dns = "on"', 'dns = "on"')
        kubectl("apply", "-f", "-", stdin=manifest)
        world.await_ready()
        took["all nodes are Ready"] = str(watch)
        rollout(world, "deployment/server", "default")
        pods = running_pods(world, "server", len(world.machines))
        took["a pod runs on each node"] = str(watch)
        client, server = pods["crane-1"], pods["digger-1"]
        wait_until(partial(answers, client, server), "a pod of another site answers")
        took["the first reply from another site"] = str(watch)
        yield world


def test_an_empty_cluster_gets_its_network_by_one_command(
    world: KubeWorld, took: dict[str, str], record_property: Callable[[str, object], None]
) -> None:
    for what, after in took.items():
        record_property(what, after)
        print(f"from apply until {what}: {after}")  # noqa: T201
    rollout(world, "daemonset/limpet-agent")
    rollout(world, "deployment/limpet-controller")
    pods = json.loads(world.plane.kubectl("get", "pods", "-n", SPACE, "-o", "json"))["items"]
    controllers = {
        each["spec"]["nodeName"]
        for each in pods
        if each["metadata"]["labels"]["app.kubernetes.io/component"] == "controller"
    }
    assert controllers == {"cloud-1", "cloud-2"}
    for machine in world.kube_machines:
        status = ask(machine, "status")
        assert status["ready"], status["reasons"]
        assert status["cluster"]["node"] == machine.label


def test_pods_reach_each_other_across_nodes_and_sites_by_both_families(world: KubeWorld) -> None:
    pods = running_pods(world, "server", len(world.machines))

    for client in pods.values():
        for server in pods.values():
            assert len(server.addresses) == 2
            wait_until(partial(answers, client, server), f"{server.name} answers {client.name}")


def test_an_agents_pod_that_goes_and_all_of_them_rolled_over_lose_no_packet_of_other_pods(
    world: KubeWorld,
) -> None:
    pods = running_pods(world, "server", len(world.machines))
    # Not those that go through tunnels: this kernel has no WireGuard, and what stands in for it
    # runs in the agent's pod (docs/kubernetes.md).
    pairs = [("crane-1", "digger-1"), ("digger-1", "crane-1"), ("cloud-1", "cloud-2")]
    streams = [Stream(pods[source], pods[target]) for source, target in pairs]
    try:
        wait_until(lambda: all(each.flows for each in streams), "packets arrive")
        component = "app.kubernetes.io/component=agent"
        here = ("-n", SPACE, "-l", component, "--field-selector=spec.nodeName=crane-1")
        world.plane.kubectl("delete", "pod", *here)
        rollout(world, "daemonset/limpet-agent")
        world.plane.kubectl("rollout", "restart", "daemonset/limpet-agent", "-n", SPACE)
        rollout(world, "daemonset/limpet-agent")
    finally:
        lost = {each.name: each.end() for each in streams}

    assert {name: numbers for name, numbers in lost.items() if numbers} == {}
    assert all(each.sent > 1000 for each in streams)


def names_manifest(node: str) -> str:
    """deploy/dns.yaml for one node: its pods are upgraded one after the other."""
    objects = list(yaml.safe_load_all((MANIFEST.parent / "dns.yaml").read_text()))
    objects[1]["spec"]["template"]["spec"]["nodeSelector"]["kubernetes.io/hostname"] = node
    return yaml.safe_dump_all(objects)


def headless(name: str) -> dict[str, Any]:
    """Of the pods of a Deployment."""
    ports = [{"name": "http", "port": 80}]
    spec = {"clusterIP": "None", "selector": {"app": name}, "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def test_a_pod_asks_for_names_while_what_answers_them_and_the_agent_are_replaced(
    world: KubeWorld,
) -> None:
    pods = running_pods(world, "server", len(world.machines))
    client, kubectl = pods["crane-1"], world.plane.kubectl
    kubectl("apply", "-f", "-", stdin=json.dumps(headless("server")))
    kubectl("apply", "-f", "-", stdin=names_manifest("crane-1"))
    rollout(world, "daemonset/limpet-dns")
    name = "server.default.svc.cluster.local"

    def addresses() -> list[str]:
        query = dns.message.make_query(name, "A")
        with client.namespace().entered(), socket.socket(type=socket.SOCK_DGRAM) as asking:
            asking.settimeout(1)
            asking.connect((NAMES_ADDRESS, 53))
            try:
                asking.send(query.to_wire())
                response = dns.message.from_wire(asking.recv(4096))
            except OSError:
                return []
        return [record.address for rrset in response.answer for record in rrset]

    own = next(each for each in client.addresses if ":" not in each)
    wait_until(lambda: len(addresses()) == len(pods), "all endpoints are heard of")
    wait_until(lambda: addresses()[:1] == [own], "the one of this node is the nearest")
    with client.namespace().entered():
        opened = socket.socket(type=socket.SOCK_DGRAM)
    with asking_all_the_time(opened, NAMES_ADDRESS, name) as somebody:
        before = names_pod(world)
        kubectl("rollout", "restart", "daemonset/limpet-dns", "-n", SPACE)
        rollout(world, "daemonset/limpet-dns")
        wait_until(lambda: names_pod(world) not in (None, before), "the pod is another one")
        somebody.await_answers(50)
        component = "app.kubernetes.io/component=agent"
        here = ("-n", SPACE, "-l", component, "--field-selector=spec.nodeName=crane-1")
        kubectl("delete", "pod", *here)
        rollout(world, "daemonset/limpet-agent")
        somebody.await_answers(50)
        assert somebody.end() == 0, "no question is lost"
    # What is said of a rollout may still be of the pod that was deleted.
    wait_until(lambda: limpet(world, "status", "--node=crane-1").returncode == 0)


def names_pod(world: KubeWorld) -> str | None:
    """Its name, where only one is left."""
    component = "app.kubernetes.io/component=dns"
    listed = world.plane.kubectl("get", "pods", "-n", SPACE, "-l", component, "-o", "name").split()
    return listed[0] if len(listed) == 1 else None


# What a person asks from a machine that has nothing of the cluster but a kubeconfig


def limpet(
    world: KubeWorld, *words: str, kubeconfig: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run there; what says where is in between, so that all of `words` has to get there."""
    command = [sys.executable, "-m", "limpet", *words]
    where = f"--kubeconfig={kubeconfig or world.plane.kubeconfig}"
    ran = subprocess.run([*command, where], capture_output=True, text=True, timeout=300)
    assert "Traceback" not in ran.stderr
    return ran


def test_a_person_asks_the_agent_of_any_node_by_the_api_server(world: KubeWorld) -> None:
    pods = running_pods(world, "server", len(world.machines))
    for name, pod in pods.items():
        status = limpet(world, "status", "--node", name, "--output", "json")
        assert status.returncode == 0, status.stderr
        assert json.loads(status.stdout)["cluster"]["node"] == name
        records = limpet(world, "ipam", "list", f"--node={name}")
        assert set(pod.addresses) <= set(records.stdout.split())

    one, other = pods["crane-1"], pods["digger-1"]
    way = ("path", f"default/{one.name}", other.addresses[0], "--probe", "--node=crane-1")
    found = limpet(world, *way)
    assert found.returncode == 0, found.stderr
    assert f"default/{one.name} ({one.addresses[0]}) on crane-1 -> {other.addresses[0]}" in (
        found.stdout
    )
    lost = limpet(world, "path", one.addresses[0], "10.99.0.1", "--node=crane-1")
    assert lost.returncode == 1
    assert "no way" in lost.stdout
    wrong = limpet(world, "path", "nonsense", "10.99.0.1", "--node=crane-1")
    assert wrong.returncode == 1
    assert wrong.stdout == ""
    assert wrong.stderr.startswith("limpet: path: nonsense: no pod of this node, no node")


def test_doctor_in_an_agents_pod_looks_at_the_node_and_finds_nothing_wrong(
    world: KubeWorld,
) -> None:
    world.plane.kubectl("apply", "-f", "-", stdin=names_manifest("crane-1"))
    rollout(world, "daemonset/limpet-dns")
    said: list[subprocess.CompletedProcess[str]] = []

    def is_well() -> bool:
        """Where it is asked alone, peers may not be reached yet, nor names be answered. Machines of
        the lab have no name server to ask for other names."""
        said[:] = [limpet(world, "doctor", "--node=crane-1")]
        return all(each.startswith("error  name server ") for each in wrong_lines(said[0].stdout))

    wait_until(is_well)
    (found,) = said
    assert "ok     the CNI binary /opt/cni/bin/limpet reaches the agent" in found.stdout
    assert found.returncode == bool(wrong_lines(found.stdout))


def wrong_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(("warn", "error"))]


def test_who_may_not_ask_a_node_and_a_node_that_is_not_there_are_said_in_words(
    world: KubeWorld,
) -> None:
    carla = world.plane.write_kubeconfig("carla", "carla")

    nobody = limpet(world, "status", "--node", "nobody")
    refused = limpet(world, "status", "--node", "crane-1", kubeconfig=carla)
    # May ask the controller anything, and run nothing on any node.
    world.plane.kubectl(
        *("create", "rolebinding", "carla", "-n", SPACE),
        *("--role=limpet-administration", "--user=carla"),
    )
    no_exec = limpet(world, "status", "--node", "crane-1", kubeconfig=carla)

    assert "no Node of that name" in nobody.stderr
    assert 'cannot list resource "pods"' in refused.stderr
    assert 'resource "pods/exec"' in no_exec.stderr
    assert "pods/exec, in namespace limpet-system: administrators" in no_exec.stderr
    for each in (nobody, refused, no_exec):
        assert (each.returncode, each.stdout, len(each.stderr.splitlines())) == (1, "", 1)


@contextmanager
def forwarded(world: KubeWorld, target: str, port: int) -> Iterator[int]:
    """`kubectl port-forward`; the port of this machine that leads there."""
    kubectl = find_programs("kubectl") / "kubectl"
    words = [str(kubectl), f"--kubeconfig={world.plane.kubeconfig}", "-n", SPACE]
    words += ["port-forward", target, f":{port}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            found = re.match(r"Forwarding from 127\.0\.0\.1:(\d+) -> ", said)
            assert found, said
            yield int(found[1])
        finally:
            process.terminate()


def test_the_page_is_a_pod_that_is_opened_through_a_port_forward_with_a_token(
    world: KubeWorld,
) -> None:
    """What docs/kubernetes.md says, word for word."""
    kubectl = world.plane.kubectl
    kubectl("apply", "-f", str(MANIFEST.with_name("page.yaml")))
    rollout(world, "deployment/limpet-page")
    tokens = ("-n", SPACE, "exec", "deploy/limpet-controller", "--", "limpet", "ui", "token")
    token = kubectl(*tokens, "create", "ann").strip()

    with forwarded(world, "deploy/limpet-page", 7480) as port:
        browser = Browser(f"http://127.0.0.1:{port}")
        wait_until(lambda: browser.enter(token).status == 303, "the token is taken")
        wait_until(
            lambda: all(each in browser.ask("GET", "/nodes").text for each in world.machines),
            "all nodes are shown",
        )
        assert "ann" in kubectl(*tokens, "list")
        kubectl(*tokens, "remove", "ann")
        wait_until(lambda: browser.ask("GET", "/").status == 303, "who is taken out is out")


# Without an API server


def test_with_the_api_server_away_a_pod_restarts_with_its_addresses(world: KubeWorld) -> None:
    pods = running_pods(world, "server", len(world.machines))
    pod, other = pods["crane-1"], pods["digger-1"]
    before = pod.attachment()

    with without_api_server(world.plane):
        kill_sandbox(pod)
        after = pod.attachment()
        wait_until(partial(answers, other, pod), "its new container answers another node")

    assert after["addresses"] == before["addresses"]
    assert running_pods(world, "server", len(world.machines))["crane-1"] == pod


@pytest.fixture(scope="module")
def service(world: KubeWorld) -> KubeMachine:
    """A node whose agent is a service, with a static pod, as docs/kubernetes.md advises."""
    (machine,) = (each for each in world.kube_machines if each.label == "digger-1")
    kubectl = world.plane.kubectl
    kubectl("label", "node", machine.label, "limpet.dev/agent=systemd")
    component = "app.kubernetes.io/component=agent"
    here = ("-l", component, f"--field-selector=spec.nodeName={machine.label}")
    kubectl("wait", "--for=delete", "pod", "-n", SPACE, *here, "--timeout=120s")
    install_service(world, machine)
    start_service(machine)
    start_static_pod(machine, "static")
    return machine


def presence(world: KubeWorld, node: str) -> dict[str, Any]:
    found = json.loads(world.plane.kubectl("get", "nodepresence", node, "-o", "json"))
    spec: dict[str, Any] = found["spec"]
    return spec


def test_a_node_reboots_without_the_api_server_and_is_what_it_was(
    world: KubeWorld, service: KubeMachine, record_property: Callable[[str, object], None]
) -> None:
    """Devices and /run are gone; its pod has its addresses, peers their way to it; then the API
    server comes back, and nobody notices but who looks at the objects."""
    client = running_pods(world, "server", len(world.machines))["crane-1"]
    before = static_pod(service, "static")
    wait_until(partial(answers, client, before), "it answers another node")
    told = presence(world, service.label)

    with without_api_server(world.plane):
        world.reboot([service])
        start_service(service)
        after = static_pod(service, "static")
        assert after.addresses == before.addresses
        wait_until(partial(answers, client, after), "a new container of it answers another node")
        links = json.loads(service.system.run("ip", "-json", "link", "show", "type", "vxlan"))
        assert {link["address"] for link in links} == set(told["vtepMACs"].values())

        stream = Stream(client, after)
        try:
            wait_until(lambda: stream.flows, "packets arrive")
            world.plane.start_process("kube-apiserver")
            back_s = time.monotonic()
            wait_until(
                lambda: presence(world, service.label)["bootID"] != told["bootID"],
                "the node's presence is that of this boot",
                patience_s=2 * PATIENCE_S,
            )
            took_s = time.monotonic() - back_s
            wait_until(lambda: ask(client.machine, "status")["cluster"]["api_server"]["connected"])
        finally:
            lost = stream.end()
    record_property("from the API server's return until the object is true", f"{took_s:.1f} s")
    assert lost == []
    world.await_ready()


def test_a_person_is_told_that_a_service_is_asked_on_its_node(
    world: KubeWorld, service: KubeMachine
) -> None:
    found = limpet(world, "status", "--node", service.label)

    assert found.returncode == 1
    assert "it is a service of the node (label limpet.dev/agent=systemd)" in found.stderr
