"""Services of a node go from a real kube-proxy to Limpet and back, under held connections."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

import pytest

from limpet.lab.kube.control_plane import ADMINISTRATORS, ControlPlane
from limpet.lab.kube.kube_proxy import KubeProxy, Mode
from limpet.lab.kube.runtimes import find_runtimes
from limpet.lab.world.node import LabNode
from tests.beds.namespaces import Netns, NetnsFactory
from tests.beds.services.socket_bed import Cgroup, mounted
from tests.controller.machines import Controller
from tests.kube.conftest import ADDRESSES
from tests.kube.flannel.flannel_bed import reference_folder
from tests.kube.installed.test_manifests import User, admin
from tests.kube.nodes.test_joining_agent import controller, node
from tests.kube.services.test_services import SERVICE, apply, endpoint_slice, is_in_the_cluster
from tests.kube.services.ways import Held, How, Traffic, Way, check, echoing
from tests.lab.bed import findings
from tests.waiting import wait_until

__all__ = ["admin", "controller", "node"]

PROXIES: dict[str, Mode] = {
    "nftables": "nftables",
    "iptables": "iptables",
    "iptables-legacy": "iptables",
}
pytestmark = pytest.mark.timeout(900)  # kube-proxy comes and goes, by each of its modes

BACKENDS = ("nftables", "ebpf")
CLUSTER_PORTS = {"TCP": 80, "UDP": 80}
OUTSIDE = (("203.0.113.2/24", "203.0.113.1/24"), ("2001:db8:203::2/64", "2001:db8:203::1/64"))
"""A host elsewhere, and its router: the node."""
BOTH = {(name, family) for name in ("web", "shop") for family in (4, 6)}


@pytest.fixture
def serving(node: LabNode, controller: Controller) -> Iterator[LabNode]:
    """In the cluster, with addresses of both families for pods, and Services on; it and the test's
    own processes are in the cgroup that programs can be attached to."""
    controller.settings["pod_cidrs"] = ["10.0.0.0/16", "fd00:10:244::/48"]
    controller.start()
    node.run_dir.mkdir(exist_ok=True)
    with ExitStack() as undo:
        cgroup = Cgroup()
        undo.callback(cgroup.close)
        undo.enter_context(mounted("bpf", node.run_dir / "bpf"))
        undo.callback(node.agent.kill)
        undo.enter_context(cgroup.entered())
        node.settings |= {"services": "on", "services_cgroup": str(cgroup.path)}
        node.start_agent()
        wait_until(lambda: is_in_the_cluster(node), "it is in the cluster")
        yield node


def test_connections_outlive_the_move_to_limpet_and_back(
    admin: User, serving: LabNode, tmp_path: Path, make_netns: NetnsFactory
) -> None:
    """Of pods, of the node's own processes and from outside, to the node and to a pod, by cluster
    addresses and a port of the node, in both families, by TCP and UDP, to each backend from
    kube-proxy in each of its modes; none of those that begin meanwhile fails."""
    plane, node = admin.api, serving
    host, outside = Netns(plane.netns), make_netns("outside")
    wire(host, outside)
    kubeconfig = plane.write_kubeconfig("proxy", "proxy", groups=[ADMINISTRATORS], inside=True)
    # A kube-proxy waits half a minute for its Node's addresses, and serves the families of these.
    told = {"status": {"addresses": [{"type": "InternalIP", "address": at} for at in ADDRESSES]}}
    plane.kubectl("patch", "node", "node-a", "--subresource=status", "-p", json.dumps(told))
    wait_until(lambda: node.ask("status")["ready"], "pods can be started")
    client, server = node.pod("client"), node.pod("server")
    with ExitStack() as undo:
        for pod in (client, server):
            pod.add()
            undo.callback(pod.remove)
        endpoints = {
            "web": (host, ADDRESSES),
            "shop": (Netns(server.netns), [str(each.ip) for each in server.addresses]),
        }
        for name, (where, addresses) in endpoints.items():
            for address in addresses:
                undo.enter_context(echoing(where, address, 8080))
            apply(plane, service(name), *(slice_of(name, each) for each in addresses))
        ways = ways_to(
            plane, {"a process of the node": host, "a pod": Netns(client.netns)}, outside
        )

        def hold() -> list[Held]:
            for way in ways:
                wait_until(way.works, f"{way} is served")
            held = [undo.enter_context(way.held()) for way in ways]
            check({"just begun": held})
            return held

        legacy_iptables = legacy(tmp_path)
        held = {"begun by Limpet": hold()}
        with Traffic(ways) as traffic:
            for (name, mode), backend in itertools.product(PROXIES.items(), BACKENDS):
                iptables = legacy_iptables if name == "iptables-legacy" else reference_folder()
                proxy = KubeProxy(
                    plane.netns,
                    tmp_path / f"{name}-{backend}",
                    kubeconfig,
                    node="node-a",
                    mode=mode,
                    iptables=iptables,
                )
                undo.callback(proxy.process.kill)
                # Given back: kube-proxy first, then Limpet's rules go.
                proxy.start()
                wait_until(
                    lambda name=name, its=iptables: rules_of(host, name, its) == BOTH,  # type: ignore[misc]
                    "kube-proxy has its rules",
                )
                turn(node, "off")
                assert "limpet_services" not in host.run("nft", "list", "tables")
                services = node.ask("status")["cluster"]["services"]
                assert (services["on"], bool(services["kube_proxy"])) == (False, True)
                assert (name in services["kube_proxy"]) or name == "iptables"
                held[f"begun by kube-proxy ({name}), before {backend}"] = hold()
                check(held)

                # Taken over: Limpet first, then kube-proxy ends and cleans up.
                node.settings["services_backend"] = backend
                turn(node, "on")
                services = node.ask("status")["cluster"]["services"]
                assert (services["on"], bool(services["kube_proxy"])) == (True, True)
                assert "kube-proxy has rules here, too" in findings(node)["kube-proxy-beside"]
                proxy.process.stop()
                check(held)
                proxy.clean_up()
                assert not rules_of(host, name, iptables)
                wait_until(lambda: "kube-proxy-beside" not in findings(node), "doctor is content")
                held[f"begun by {backend} after kube-proxy ({name})"] = hold()
                check(held)
                assert node.ask("services")["backend"] == backend
                check_tracking(host, ways, backend)
    count = sum(map(len, held.values()))
    sys.stderr.write(
        f"{count} connections held; {traffic.asked} begun meanwhile, {len(traffic.failures)} "
        f"failed, the longest took {traffic.longest_s:.2f} s\n"
    )
    assert not traffic.failures, "\n".join(traffic.failures[:20])


def service(name: str) -> dict[str, Any]:
    """Of both families; `shop` has a port at the node, too."""
    ports = [{"name": each.lower(), "port": 80, "protocol": each} for each in ("TCP", "UDP")]
    kind = "NodePort" if name == "shop" else "ClusterIP"
    return {
        **SERVICE,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"type": kind, "ports": ports, "ipFamilyPolicy": "RequireDualStack"},
    }


def slice_of(service: str, address: str) -> dict[str, Any]:
    version = 6 if ":" in address else 4
    ports = [{"name": each.lower(), "port": 8080, "protocol": each} for each in ("TCP", "UDP")]
    return {
        **endpoint_slice(address),
        "metadata": {
            "name": f"{service}-{version}",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": f"IPv{version}",
        "ports": ports,
    }


def ways_to(plane: ControlPlane, inside: dict[str, Netns], outside: Netns) -> list[Way]:
    """By cluster addresses from inside, and by a port of the node from outside, too."""
    told = {
        name: json.loads(plane.kubectl("get", "service", name, "-o", "json"))["spec"]
        for name in ("web", "shop")
    }
    node_ports = {each["protocol"]: each["nodePort"] for each in told["shop"]["ports"]}
    targets = [
        (*who, address, CLUSTER_PORTS)
        for who in inside.items()
        for spec in told.values()
        for address in spec["clusterIPs"]
    ]
    everybody = {**inside, "a host outside": outside}
    targets += [(*who, address, node_ports) for who in everybody.items() for address in ADDRESSES]
    return [
        Way(who, netns, how, address, ports[how[:3]])
        for who, netns, address, ports in targets
        for how in get_args(How)
    ]


def check_tracking(host: Netns, ways: list[Way], backend: str) -> None:
    """Who asks a cluster address is led to an endpoint at the socket with eBPF: the kernel tracks
    nothing of that address then."""
    by_cluster_address = [way for way in ways if way.port == CLUSTER_PORTS["TCP"]]
    assert len(by_cluster_address) == 2 * 2 * 2 * len(get_args(How))
    for way in by_cluster_address:
        # Another connection of before may have had the same port, and is tracked for a while more.
        wait_until(
            lambda way=way: is_tracked(host, way) == (backend == "nftables"),  # type: ignore[misc]
            f"{way} is led to an endpoint by {backend}",
        )


def is_tracked(host: Netns, way: Way) -> bool:
    family = "ipv6" if ":" in way.address else "ipv4"
    with way.held() as connection:
        connection.ask(b"new")
        own_port = connection.opened.getsockname()[1]
        listed = host.run("conntrack", "-L", "-f", family, "-d", way.address)
    return f" sport={own_port} dport={way.port} " in listed


def wire(host: Netns, outside: Netns) -> None:
    """A link between a host elsewhere and the node, which is its router."""
    # Who asks a Service of IPv6 needs some route to it; of IPv4 there is one.
    host.run("ip", "route", "add", "::/0", "dev", "lo")
    link = ("ip", "link", "add", "to-outside", "type", "veth")
    host.run(*link, "peer", "name", "eth0", "netns", outside.name)
    for its, router in OUTSIDE:
        for netns, name, address in ((host, "to-outside", router), (outside, "eth0", its)):
            # An address of IPv6 is no source before it is known to be the only one.
            netns.run("ip", "address", "add", address, "dev", name, *(["nodad"] * (":" in its)))
            netns.run("ip", "link", "set", name, "up")
        outside.run("ip", "route", "add", "default", "via", router.partition("/")[0])


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


def rules_of(host: Netns, name: str, iptables: Path) -> set[tuple[str, int]]:
    """Services of this test, and families, of which kube-proxy has rules that lead to endpoints."""
    found = r"service-\S+-default/(web|shop)/" if name == "nftables" else r"default/(web|shop):"
    return {
        (service, family)
        for family in (4, 6)
        for service in re.findall(found, _rules_of(host, name, iptables, family))
    }


def _rules_of(host: Netns, name: str, iptables: Path, family: int) -> str:
    if name == "nftables":
        return host.run("nft", "list", "ruleset", "ip" if family == 4 else "ip6")
    modules = next(iptables.glob("usr/lib/*/xtables"))
    save = str(iptables / "bin" / ("iptables-save" if family == 4 else "ip6tables-save"))
    return host.run("env", f"XTABLES_LIBDIR={modules}", save, "-t", "nat")
