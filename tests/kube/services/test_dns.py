"""Names from a real API server's Services by way of an agent's disk, asked from inside a pod."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dns.rcode
import dns.reversename
import pytest

from limpet.lab.world.node import LabNode
from tests.beds.namespaces import Netns, NetnsFactory, connect_namespaces
from tests.beds.traffic.dns_client import asking_all_the_time
from tests.controller.machines import Controller
from tests.dns.test_process import ADDRESS, ADDRESS_6, Serving, ask, values
from tests.kube.installed.test_manifests import User, admin
from tests.kube.nodes.test_joining_agent import controller, node
from tests.kube.services.test_services import apply, is_in_the_cluster
from tests.waiting import wait_until

__all__ = ["admin", "controller", "node"]

pytestmark = pytest.mark.timeout(900)  # an API server with watches ends within a minute

DOMAIN = "default.svc.cluster.local"


def service(name: str, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def slice_of(name: str, family: str, *endpoints: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{name}-{family.lower()}",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": [{"name": "sql", "port": 5432}],
    }


OBJECTS = (
    service("web", ports=[{"name": "http", "port": 80}]),
    service("db", clusterIP="None", ports=[{"name": "sql", "port": 5432}]),
    slice_of(
        "db",
        "IPv4",
        {"addresses": ["10.244.9.2"], "hostname": "db-0"},
        {"addresses": ["10.244.9.3"], "hostname": "db-1"},
        {"addresses": ["10.244.9.4"], "hostname": "db-2", "conditions": {"ready": False}},
    ),
    slice_of("db", "IPv6", {"addresses": ["fd00:9::2"], "hostname": "db-0"}),
    service("shop", type="ExternalName", externalName=f"web.{DOMAIN}"),
)


@pytest.fixture
def joined(node: LabNode, controller: Controller, tmp_path: Path) -> LabNode:
    """Of the cluster; it answers names, and serves no Services itself."""
    resolv_conf = tmp_path / "resolv.conf"
    resolv_conf.write_text("")
    node.settings |= {"dns": "on", "dns_resolv_conf": str(resolv_conf)}
    controller.start()
    node.start_agent()
    wait_until(lambda: is_in_the_cluster(node), "it is in the cluster")
    return node


@pytest.fixture
def serving(admin: User, joined: LabNode) -> Iterator[Serving]:
    made = Serving(Netns(admin.api.netns), joined.config_path, joined.run_dir)
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def pod(admin: User, make_netns: NetnsFactory) -> Netns:
    """A namespace whose gateway is the node."""
    made, host = make_netns("pod"), Netns(admin.api.netns)
    number = f"veth{os.getpid() % 10000}"
    connect_namespaces(host, number, made, "eth0")
    host.ip(
        f"address add 10.243.7.1/24 dev {number}", f"address add fd00:7::1/64 dev {number} nodad"
    )
    made.ip(
        "address add 10.243.7.2/24 dev eth0",
        "address add fd00:7::2/64 dev eth0 nodad",
        "route add default via 10.243.7.1",
        "route add default via fd00:7::1",
    )
    return made


def code(at: Netns, name: str, kind: str = "A") -> str:
    return dns.rcode.to_text(ask(at, name, kind).rcode())


def assert_all_is_answered(pod: Netns, address: str) -> None:
    """Every kind of name that OBJECTS have, by both of the node's addresses, by UDP and TCP."""
    for to, by_tcp in itertools.product((ADDRESS, ADDRESS_6), (False, True)):
        assert values(ask(pod, f"web.{DOMAIN}", to=to, by_tcp=by_tcp)) == [address]
    headless = ask(pod, f"db.{DOMAIN}")
    assert sorted(values(headless)) == ["10.244.9.2", "10.244.9.3"]
    assert values(ask(pod, f"db.{DOMAIN}", "AAAA")) == ["fd00:9::2"]
    assert values(ask(pod, f"db-1.db.{DOMAIN}")) == ["10.244.9.3"]
    ports = values(ask(pod, f"_sql._tcp.db.{DOMAIN}", "SRV"))
    assert sorted(ports) == [f"0 100 5432 db-{n}.db.{DOMAIN}." for n in (0, 1)]
    assert values(ask(pod, f"_http._tcp.web.{DOMAIN}", "SRV")) == [f"0 100 80 web.{DOMAIN}."]
    reverse = dns.reversename.from_address(address).to_text()
    assert values(ask(pod, reverse, "PTR")) == [f"web.{DOMAIN}."]
    assert values(ask(pod, "2.9.244.10.in-addr.arpa", "PTR")) == [f"db-0.db.{DOMAIN}."]
    assert values(ask(pod, f"shop.{DOMAIN}")) == [f"web.{DOMAIN}.", address]
    assert values(ask(pod, "10-244-9-2.default.pod.cluster.local")) == ["10.244.9.2"]
    assert code(pod, f"none.{DOMAIN}") == code(pod, f"db-2.db.{DOMAIN}") == "NXDOMAIN"
    nothing = ask(pod, f"web.{DOMAIN}", "MX")
    assert (nothing.rcode(), nothing.answer, len(nothing.authority)) == (0, [], 1)


def test_services_of_an_api_server_are_answered_from_the_disk_without_it_and_without_the_agent(
    admin: User, joined: LabNode, serving: Serving, pod: Netns
) -> None:
    plane = admin.api
    apply(plane, *OBJECTS)
    address = plane.kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")

    wait_until(lambda: values(ask(pod, f"shop.{DOMAIN}"))[1:] == [address], "Services are kept")
    wait_until(lambda: len(values(ask(pod, f"db.{DOMAIN}"))) == 2, "endpoints are kept")
    assert_all_is_answered(pod, address)
    tables = serving.node.run("nft", "list", "tables")
    assert "limpet_services" not in tables, (
        "names are answered where something else serves Services"
    )

    # What changes is answered anew.
    plane.kubectl("patch", "endpointslice", "db-ipv4", "--type=json", "-p", json.dumps([
        {"op": "replace", "path": "/endpoints/2/conditions/ready", "value": True},
    ]))  # fmt: skip
    wait_until(lambda: values(ask(pod, f"db-2.db.{DOMAIN}")) == ["10.244.9.4"])
    plane.kubectl("patch", "endpointslice", "db-ipv4", "--type=json", "-p", json.dumps([
        {"op": "replace", "path": "/endpoints/2/conditions/ready", "value": False},
    ]))  # fmt: skip
    wait_until(lambda: code(pod, f"db-2.db.{DOMAIN}") == "NXDOMAIN")

    # Who would know better is gone: first the agent and the API server, then the process itself.
    with asking_all_the_time(
        pod.open_socket(4, socket.SOCK_DGRAM), ADDRESS, f"web.{DOMAIN}"
    ) as somebody:
        joined.stop_agent()
        plane.stop_process("kube-apiserver")
        try:
            assert_all_is_answered(pod, address)
            before = serving.pid()
            serving.started[0].send_signal(signal.SIGHUP)
            wait_until(lambda: serving.pid() not in (None, before), "it has started anew")
            assert_all_is_answered(pod, address)
        finally:
            plane.start_process("kube-apiserver")
        somebody.await_answers(50)
        assert somebody.end() == 0, "no question is lost"

    # A boot: nothing runs, nothing is in the kernel, and nobody is there but the disk.
    serving.close()
    serving.node.ip("link delete limdns0")
    serving.start()
    assert_all_is_answered(pod, address)

    # Heard again, once the agent is there again.
    plane.kubectl("delete", "service", "shop")
    joined.start_agent()
    wait_until(lambda: code(pod, f"shop.{DOMAIN}") == "NXDOMAIN", "it has heard of it")
