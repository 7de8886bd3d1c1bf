"""What uninstall leaves of the kernel's settings, since others on the machine go on with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from limpet.cli.needed_settings import needed_settings
from limpet.datapath.node.owned import owned_by_node
from limpet.datapath.node.uplinks import FORWARDING
from limpet.datapath.services.kube_proxy import HALF_CLOSED, HALF_CLOSED_S
from limpet.datapath.services.part import ServicesPart
from limpet.datapath.teardown import remove_kernel_state
from limpet.linux.owned import Owned
from tests.beds.namespaces import Netns, NetnsFactory

IP_FORWARD, LISTENS = "net/ipv4/ip_forward", "net/ipv6/conf/uplink/accept_ra"
BEFORE = {IP_FORWARD: "0", FORWARDING: "0", LISTENS: "1"}
OURS = {IP_FORWARD: "1", FORWARDING: "1", LISTENS: "2"}


@pytest.fixture
def node(make_netns: NetnsFactory) -> Netns:
    """As a node of pods is that did not forward before, and whose uplink has a router."""
    node = make_netns()
    node.ip("link add uplink type veth peer name far")
    for path, value in OURS.items():
        node.sysctl(path, value)
    return node


def settings(node: Netns) -> dict[str, str]:
    return {path: node.sysctl(path) for path in BEFORE}


def torn_down(
    node: Netns, before: dict[str, str], owned: Owned, *, to_flannel: bool = False
) -> list[str]:
    """What was left alone, in words."""
    with node.entered():
        needed = needed_settings(before, to_flannel=to_flannel)
        report = remove_kernel_state([Owned(sysctls=owned.sysctls)], before, needed_sysctls=needed)
    assert report.failed == []
    return report.kept


@pytest.mark.parametrize(
    "link", ["docker0 type bridge", "virbr0 type bridge", "cali12 type veth peer name pod"]
)
def test_a_node_forwards_as_long_as_others_have_containers_or_guests(
    node: Netns, link: str
) -> None:
    node.ip(f"link add {link}")

    kept = torn_down(node, BEFORE, owned_by_node())

    assert settings(node) == OURS, "who forwards IPv6 hears its routers by such an uplink alone"
    name = link.split()[0]
    assert (
        f"sysctl {IP_FORWARD} = 1: {name} may go on with it "
        f"(sysctl -w {IP_FORWARD}=0, when nobody does)"
    ) in kept


def test_a_node_that_is_given_back_to_flannel_forwards_for_its_pods(node: Netns) -> None:
    kept = torn_down(node, BEFORE, owned_by_node(), to_flannel=True)

    assert settings(node) == OURS
    assert len(kept) == 3


def test_a_node_that_forwards_for_nobody_else_is_as_it_was(node: Netns) -> None:
    node.ip("link add br-lan type bridge")

    assert torn_down(node, BEFORE, owned_by_node()) == []

    assert settings(node) == BEFORE


def test_a_kube_proxy_that_has_come_keeps_its_time_for_half_closed_connections(
    node: Netns, tmp_path: Path
) -> None:
    """It has set the same value as Limpet, and does so when it starts alone."""
    services, before = ServicesPart.owned(tmp_path), {HALF_CLOSED: "60"}
    ours = str(HALF_CLOSED_S)
    node.sysctl(HALF_CLOSED, ours)
    node.run("nft", "add table ip kube-proxy; add chain ip kube-proxy services")

    (said,) = torn_down(node, before, services)

    assert node.sysctl(HALF_CLOSED) == ours
    assert "kube-proxy (nftables table kube-proxy) may go on with it" in said
    node.run("nft", "delete table ip kube-proxy")
    assert torn_down(node, before, services) == []
    assert node.sysctl(HALF_CLOSED) == "60"
