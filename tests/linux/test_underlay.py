"""Which links lead to other nodes is found, not configured."""

from __future__ import annotations

from ipaddress import ip_interface, ip_network

import pytest

from limpet.base.addresses import UnderlayLink
from limpet.base.ownership import ALIAS, POD_GROUP
from limpet.linux.netlink.link_codec import LinkInfo
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.underlay import (
    is_beyond,
    open_links,
    read_networks,
    read_open_links,
    read_underlay,
)
from tests.beds.namespaces import Netns, NetnsFactory

UPLINKS = ("eth0", "enp3s0", "wlan0", "br0", "br-lan", "br-ex")
OTHERS = ("docker0", "br-0123456789ab", "cni0", "virbr0", "podman1", "lxdbr0")


def found(netns: Netns, *patterns: str) -> tuple[UnderlayLink, ...]:
    with netns.entered(), RouteSocket() as route:
        return read_underlay(route, patterns=patterns, not_in=(ip_network("10.244.0.0/16"),))


def with_bridges(netns: Netns, *names: str) -> None:
    for number, name in enumerate(names, start=1):
        netns.ip(
            f"link add {name} type bridge",
            f"addr add 192.0.{number}.1/24 dev {name}",
            f"link set {name} up",
        )


def test_uplinks_and_bridges_over_them_lead_out_and_those_of_containers_do_not(
    make_netns: NetnsFactory,
) -> None:
    netns = make_netns()
    with_bridges(netns, *UPLINKS, *OTHERS)

    assert {link.ifname for link in found(netns)} == set(UPLINKS)
    assert [link.ifname for link in found(netns, "cni*")] == ["cni0"]


def test_a_vpn_in_user_space_leads_out_only_where_it_is_named(make_netns: NetnsFactory) -> None:
    netns = make_netns()
    netns.ip("tuntap add mode tun name tailscale0", "addr add 100.64.0.1/32 dev tailscale0")
    netns.ip("link set tailscale0 up")

    assert found(netns) == ()
    assert [link.ifname for link in found(netns, "tailscale*")] == ["tailscale0"]


def test_the_machine_is_in_the_subnets_of_all_links_but_ours(make_netns: NetnsFactory) -> None:
    netns = make_netns()
    with_bridges(netns, "br-lan", "docker0", "limpet0", "down0")
    netns.ip("link add kube-ipvs0 type bridge", "addr add 10.96.0.10/32 dev kube-ipvs0")
    netns.ip(
        "link set down0 down",
        f"link set limpet0 alias {ALIAS}",
        "tuntap add mode tun name tun0",
        "addr add 10.8.0.2/24 dev tun0",
        "addr add 100.64.0.1/32 dev tun0",
        "link set tun0 up",
        "link set kube-ipvs0 up",
        "addr add 10.244.7.1/24 dev docker0",
    )
    with netns.entered(), RouteSocket() as route:
        networks = read_networks(route, not_in=(ip_network("10.244.0.0/16"),))

    assert list(map(str, networks)) == ["10.8.0.0/24", "192.0.1.0/24", "192.0.2.0/24"]


def test_anybody_may_send_by_links_that_a_person_has_not_named_or_that_have_no_address(
    make_netns: NetnsFactory,
) -> None:
    netns = make_netns()
    with_bridges(netns, "br-lan", "br-ex", "docker0")
    netns.ip("link add mine type bridge", "addr add 10.244.7.1/24 dev mine", "link set mine up")
    with netns.entered(), RouteSocket() as route:
        bridges = {name: route.links()[name].ifindex for name in ("br-lan", "br-ex")}
        opened = read_open_links(route, not_in=(ip_network("10.244.0.0/16"),))

    assert opened == set(bridges.items())
    assert [link.ifname for link in found(netns, "br-lan")] == ["br-lan"]


def test_a_cable_brings_packets_without_an_address_and_what_is_handed_on_counts_there() -> None:
    kinds = {"eth0": "", "eth1": "", "bond0": "bond", "eth0.5": "vlan", "vpn": "wireguard"}
    kinds |= {"lan3": "dsa", "wwan0": "wwan"}
    links = [
        LinkInfo(number, name, 0, "", 1500, 99 if name == "eth1" else 0, 0, kind, "")
        for number, (name, kind) in enumerate(kinds.items(), start=100)
    ]

    opened = open_links(links, addressed=())

    assert {name for name, _ in opened} == {"eth0", "bond0", "eth0.5", "lan3", "wwan0"}


def test_only_addresses_that_peers_can_use_count(make_netns: NetnsFactory) -> None:
    netns = make_netns()
    netns.sysctl("net/ipv6/conf/default/accept_dad", "1")
    netns.ip("link add eth0 type veth peer name far", "link set eth0 up", "link set far up")
    netns.ip("addr add 10.244.7.1/24 dev eth0", "addr add 192.0.2.1/24 dev eth0")
    netns.ip("addr add 2001:db8::1/64 dev eth0", "addr add 2001:db8::2/64 dev eth0 nodad")

    (link,) = found(netns)

    assert link.addresses == (ip_interface("192.0.2.1/24"), ip_interface("2001:db8::2/64"))


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.5", False),
        ("192.0.2.1", False),
        ("10.244.7.2", False),
        ("10.244.9.2", False),
        ("10.9.0.2", True),
        ("172.17.0.2", False),
        ("192.0.2.9", True),
        ("198.51.100.9", True),
        ("10.244.8.2", True),
        ("203.0.113.9", False),
        ("2001:db8::9", True),
        ("2001:db8:7::2", False),
        ("2001:db8:ffff::9", True),
        ("fe80::9", True),
        ("::1", False),
        ("fd00:7::9", False),
    ],
)
def test_what_goes_by_a_gateway_the_lan_or_an_overlay_leaves_the_node(
    make_netns: NetnsFactory, address: str, expected: bool
) -> None:
    netns = make_netns()
    netns.ip(
        "link set lo up",
        "link add eth0 type veth peer name far",
        "link add br-lan type bridge",
        "link add docker0 type bridge",
        "link add limpet0 type bridge",
        f"link set limpet0 alias {ALIAS}",
        "link add pod master br-lan type veth peer name pod-eth0",
        f"link set pod group {POD_GROUP}",
        "link add br0 type bridge",
        "link add overlay type vxlan id 7 dstport 8473 dev eth0",
        *(f"link set {name} up" for name in ("far", "eth0", "limpet0", "docker0", "br-lan", "br0")),
        "link set overlay up",
        "addr add 10.244.9.1/24 dev br-lan",
        "addr add 10.9.0.1/24 dev br0",
        "addr add 192.0.2.1/24 dev eth0",
        "addr add 2001:db8::1/64 dev eth0 nodad",
        "addr add 10.244.7.1/24 dev limpet0",
        "addr add 2001:db8:7::1/64 dev limpet0 nodad",
        "addr add 172.17.0.1/24 dev docker0",
        "route add 10.244.8.0/24 dev overlay",
        "route add 198.51.100.0/24 via 192.0.2.254",
        "route add unreachable 203.0.113.0/24",
        "-6 route add 2001:db8:ffff::/48 via 2001:db8::254",
    )
    with netns.entered():
        assert is_beyond(address) == expected
