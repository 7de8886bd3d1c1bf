"""Which links lead to other nodes is found, not configured."""

from __future__ import annotations

from ipaddress import ip_interface, ip_network

from limpet.base.addresses import UnderlayLink
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.underlay import read_underlay
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


def test_only_addresses_that_peers_can_use_count(make_netns: NetnsFactory) -> None:
    netns = make_netns()
    netns.sysctl("net/ipv6/conf/default/accept_dad", "1")
    netns.ip("link add eth0 type veth peer name far", "link set eth0 up", "link set far up")
    netns.ip("addr add 10.244.7.1/24 dev eth0", "addr add 192.0.2.1/24 dev eth0")
    netns.ip("addr add 2001:db8::1/64 dev eth0", "addr add 2001:db8::2/64 dev eth0 nodad")

    (link,) = found(netns)

    assert link.addresses == (ip_interface("192.0.2.1/24"), ip_interface("2001:db8::2/64"))
