"""nftables text; tests/datapath/node proves that nft takes it and that packets go where it says."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import attachment, port_mappings

from limpet.base.addresses import is_plain_name
from limpet.base.node_state import NodeState
from limpet.datapath.node.plan import NodeFacts, plan_node
from limpet.datapath.node.pod.attachment import Attachment, BridgeSpec, HostPortMapping
from limpet.datapath.node.ruleset import (
    HostPort,
    host_port_commands,
    plan_host_ports,
    plan_host_ports_of,
    plan_ruleset,
)

GOLDEN = Path(__file__).parent / "golden"
V4, V6 = ip_address("10.244.7.2"), ip_address("fd00:7::2")
SEGMENTS = (ip_network("10.244.7.0/24"), ip_network("fd00:7::/64"))


def golden(name: str) -> str:
    return (GOLDEN / f"{name}.nft").read_text(encoding="utf-8")


def ruleset_of_a_node() -> str:
    """Two segments, a network of another bridge, three pods with hostPorts of all kinds."""
    state = NodeState(SEGMENTS, (ip_network("10.244.0.0/16"), ip_network("fd00::/16")))
    own = BridgeSpec(
        "limpet0",
        (ip_interface("10.244.7.1/24"), ip_interface("fd00:7::1/64")),
        masquerade=SEGMENTS,
    )
    other = BridgeSpec("br9", (ip_interface("10.9.0.1/24"),))
    pods = [
        attachment(
            "web",
            "10.244.7.2/24",
            "fd00:7::2/64",
            bridge=own,
            ports=(HostPortMapping(8080, 80, "tcp"), HostPortMapping(8443, 443, "tcp", V4)),
        ),
        attachment(
            "dns",
            "10.244.7.3/24",
            "fd00:7::3/64",
            bridge=own,
            ports=(
                HostPortMapping(53, 5353, "udp", ip_address("0.0.0.0")),
                HostPortMapping(53, 5353, "udp", ip_address("2001:db8::1")),
            ),
        ),
        attachment("old", "10.9.0.2/24", bridge=other, ports=(HostPortMapping(36412, 1, "sctp"),)),
    ]
    return plan_node(
        "limpet0", state, pods, [own, other], NodeFacts(own_bridge_exists=True)
    ).ruleset


def test_the_ruleset_of_a_node_with_pods() -> None:
    assert ruleset_of_a_node() == golden("node")


def test_the_ruleset_of_a_node_without_pods() -> None:
    assert plan_node("limpet0", NodeState(), []).ruleset == golden("empty")


def chains(**asked: Any) -> set[str]:
    nothing = {"masquerade": (), "cluster": (), "pods": (), "host_ports": ()}
    text = plan_ruleset(**{**nothing, **asked})
    assert text.endswith("\t}\n}\n")
    return set(re.findall(r"\tchain (\w+) ", text))


def test_only_chains_that_have_something_to_do_are_there() -> None:
    port = HostPort(4, "", "tcp", 8080, "10.244.7.2", 80)
    for_host_ports = {"hostports", "prerouting", "output", "postrouting"}

    assert chains() == chains(cluster=SEGMENTS, pods=SEGMENTS) == set()
    assert chains(masquerade=SEGMENTS) == {"postrouting"}
    assert chains(bridges=["limpet0"]) == {"localhost"}
    assert chains(host_ports=[port]) == chains(expect_host_ports=True) == for_host_ports


def test_networks_are_merged_as_the_kernel_merges_them() -> None:
    halves = [ip_network("10.0.0.128/25"), ip_network("10.0.0.0/25"), ip_network("10.0.0.0/26")]
    text = plan_ruleset(masquerade=halves, cluster=(), pods=(), host_ports=())

    assert text.count("elements") == 1
    assert "elements = { 10.0.0.0/24 }" in text


@given(st.permutations([ip_network(f"10.{n}.0.0/24") for n in (3, 1, 2)]))
def test_the_order_of_prefixes_does_not_matter(prefixes: list[object]) -> None:
    def text(given: Iterable[object]) -> str:
        some = list(given)
        return plan_ruleset(masquerade=some, cluster=some, pods=some, host_ports=())  # type: ignore[arg-type]

    assert text(prefixes) == text(sorted(prefixes, key=str))


# HostPorts.


def elements(*mappings: HostPortMapping, addresses: tuple[object, ...] = (V4, V6)) -> list[str]:
    ports = plan_host_ports(mappings, addresses)  # type: ignore[arg-type]
    return [f"{port.map_name} {port.element}" for port in ports]


def test_a_mapping_without_address_serves_every_family_of_the_pod() -> None:
    mapping = HostPortMapping(8080, 80, "tcp")

    assert elements(mapping) == [
        "hostport4 tcp . 8080 : 10.244.7.2 . 80",
        "hostport6 tcp . 8080 : fd00:7::2 . 80",
    ]
    assert elements(mapping, addresses=(V6,)) == ["hostport6 tcp . 8080 : fd00:7::2 . 80"]


@pytest.mark.parametrize(
    ("at", "element"),
    [
        ("0.0.0.0", "hostport4 udp . 53 : 10.244.7.2 . 5353"),
        ("::", "hostport6 udp . 53 : fd00:7::2 . 5353"),
        ("192.0.2.1", "hostport4_at 192.0.2.1 . udp . 53 : 10.244.7.2 . 5353"),
        ("127.0.0.1", "hostport4_at 127.0.0.1 . udp . 53 : 10.244.7.2 . 5353"),
        ("2001:db8::1", "hostport6_at 2001:db8::1 . udp . 53 : fd00:7::2 . 5353"),
    ],
)
def test_a_mapping_with_an_address_serves_its_family_only(at: str, element: str) -> None:
    assert elements(HostPortMapping(53, 5353, "udp", ip_address(at))) == [element]


def test_a_mapping_of_a_family_that_the_pod_lacks_serves_nothing() -> None:
    assert elements(HostPortMapping(53, 53, "udp", ip_address("::")), addresses=(V4,)) == []


def test_the_first_address_of_a_family_is_the_target() -> None:
    addresses = (ip_address("10.244.7.9"), V4, V6)

    assert elements(HostPortMapping(1, 2, "sctp"), addresses=addresses) == [
        "hostport4 sctp . 1 : 10.244.7.9 . 2",
        "hostport6 sctp . 1 : fd00:7::2 . 2",
    ]


def test_one_port_serves_each_protocol_and_each_address_apart() -> None:
    found = plan_host_ports(
        [
            HostPortMapping(53, 53, "tcp"),
            HostPortMapping(53, 53, "udp"),
            HostPortMapping(53, 54, "udp", ip_address("192.0.2.1")),
        ],
        (V4,),
    )

    assert len({(port.map_name, port.key) for port in found}) == 3


def pod(name: str, address: str, *ports: HostPortMapping) -> Attachment:
    return attachment(name, address, ports=ports)


def test_of_two_pods_with_one_port_the_later_has_it() -> None:
    port = HostPortMapping(8080, 80, "tcp")
    one, two = pod("one", "10.244.7.2/24", port), pod("two", "10.244.7.3/24", port)

    assert [found.target for found in plan_host_ports_of([one, two])] == ["10.244.7.3"]
    assert [found.target for found in plan_host_ports_of([two, one])] == ["10.244.7.2"]


@given(st.lists(st.lists(port_mappings, max_size=3), max_size=4))
def test_no_map_has_a_key_twice(asked: list[list[HostPortMapping]]) -> None:
    pods = [
        attachment(str(n), f"10.244.7.{n + 2}/24", f"fd00:7::{n + 2}/64", ports=tuple(ports))
        for n, ports in enumerate(asked)
    ]
    found = plan_host_ports_of(pods)

    keys = [(port.map_name, port.key) for port in found]
    assert len(set(keys)) == len(keys)
    assert list(found) == sorted(found)


def test_changes_of_the_maps_delete_before_they_add() -> None:
    old = HostPort(4, "", "tcp", 8080, "10.244.7.2", 80)
    new = HostPort(4, "", "tcp", 8080, "10.244.7.3", 80)

    assert host_port_commands(add=[new], delete=[old]) == (
        "delete element inet limpet hostport4 { tcp . 8080 }\n"
        "add element inet limpet hostport4 { tcp . 8080 : 10.244.7.3 . 80 }\n"
    )
    assert host_port_commands() == ""


# Bridges.


@pytest.mark.parametrize("name", ["limpet0", "br-1.2", "cni_0"])
def test_a_plain_name_means_itself(name: str) -> None:
    assert is_plain_name(name)


@pytest.mark.parametrize("name", ["", "br*", 'b"r', "b\\r", "b{r", "bü", "b$r", "br0\n"])
def test_a_name_that_nft_reads_otherwise_is_not_plain(name: str) -> None:
    assert not is_plain_name(name)


def test_a_bridge_with_an_odd_name_is_not_opened_for_127_0_0_1_instead() -> None:
    odd = BridgeSpec("br*", (ip_interface("10.9.0.1/24"),))
    plan = plan_node("limpet0", NodeState(), [], [odd], localhost_ports=True)

    assert "br*" not in plan.ruleset
    assert not [path for path in plan.sysctls if path.endswith("route_localnet")]
