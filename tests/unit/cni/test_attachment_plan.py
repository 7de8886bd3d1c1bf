"""A network's bridge, a pod's interface and its routes, out of a request."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.base.errors import CniCode, CniError
from limpet.base.node_state import NodeState
from limpet.base.settings import PodSettings
from limpet.cni.attachment_plan import (
    PlannedNetwork,
    merge_results,
    plan_attachment,
    plan_network,
    plan_result,
    plan_routes,
)
from limpet.cni.protocol.values import (
    CniRequest,
    CniResult,
    Dns,
    IpamConf,
    MainConf,
    NetworkConf,
    PodWishes,
    ResultAddress,
    ResultInterface,
    Verb,
)
from limpet.datapath.node.plan import derived_mac
from limpet.datapath.node.pod.attachment import (
    Attachment,
    Bandwidth,
    HostPortMapping,
    Netns,
    RouteSpec,
)
from limpet.ipam.leases import Range, segment_range_sets
from tests.strategies import macs

STATE = NodeState(segments=(ip_network("10.244.7.0/24"), ip_network("fd00:7::/64")))
GATEWAYS = (ip_address("10.244.7.1"), ip_address("fd00:7::1"))
ADDRESSES = (ip_interface("10.244.7.2/24"), ip_interface("fd00:7::2/64"))
ANY4, ANY6 = ip_network("0.0.0.0/0"), ip_network("::/0")
SEVEN = Range(
    ip_network("10.7.0.0/24"),
    ip_address("10.7.0.2"),
    ip_address("10.7.0.9"),
    ip_address("10.7.0.1"),
)
EIGHT = Range(
    ip_network("10.8.0.0/24"),
    ip_address("10.8.0.2"),
    ip_address("10.8.0.9"),
    ip_address("10.8.0.254"),
)


SEGMENTS = IpamConf()
NO_WISHES = PodWishes()


def conf(*, ipam: IpamConf = SEGMENTS, ipam_only: bool = False, **main: Any) -> NetworkConf:
    return NetworkConf("net", "1.0.0", ipam_only=ipam_only, main=MainConf(**main), ipam=ipam)


def network(
    made: NetworkConf,
    state: NodeState = STATE,
    *,
    mtu_bytes: int | None = None,
    uplink_mtu_bytes: int = 1500,
) -> PlannedNetwork:
    settings = PodSettings(mtu_bytes=mtu_bytes)
    return plan_network(made, settings, state, uplink_mtu_bytes=uplink_mtu_bytes)


def planned(made: NetworkConf, wishes: PodWishes = NO_WISHES, **changes: Any) -> Attachment:
    request = CniRequest(
        Verb.ADD, made, container_id="c1", ifname="eth0", netns="/run/netns/p", pod_name="one"
    )
    return plan_attachment(
        replace(request, wishes=wishes, **changes),
        network(made),
        addresses=ADDRESSES,
        gateways=GATEWAYS,
        netns_id=(4, 99),
    )


# The network.


def test_without_ranges_the_agents_segments_and_bridge_are_used() -> None:
    found = network(conf())

    assert found.from_segments
    assert found.range_sets == segment_range_sets(STATE.segments)
    assert found.bridge is not None
    assert found.bridge.ifname == "limpet0"
    assert [str(gateway) for gateway in found.bridge.gateways] == ["10.244.7.1/24", "fd00:7::1/64"]
    assert found.bridge.masquerade == ()


def test_segments_are_masqueraded_where_ip_masq_asks() -> None:
    bridge = network(conf(ip_masq=True)).bridge

    assert bridge is not None
    assert bridge.masquerade == STATE.segments


def test_a_node_without_segments_says_what_to_do_and_asks_to_try_again() -> None:
    with pytest.raises(CniError, match="no address segment") as failure:
        network(conf(), NodeState())

    assert failure.value.code is CniCode.TRY_AGAIN_LATER
    assert "segments =" in failure.value.details


def test_a_node_of_a_cluster_is_not_told_to_set_what_keeps_its_agent_from_starting() -> None:
    with pytest.raises(CniError, match="no address segment") as failure:
        network(conf(), NodeState(in_cluster=True))

    assert "segments =" not in failure.value.details
    assert "limpet status" in failure.value.details


def test_segments_on_another_bridge_than_the_agents_are_refused() -> None:
    assert network(conf(bridge="limpet0")).bridge == network(conf()).bridge
    with pytest.raises(CniError, match="bridge br9 is not the agent's, limpet0") as failure:
        network(conf(bridge="br9"))
    assert failure.value.code is CniCode.INVALID_NETWORK_CONFIG


@pytest.mark.parametrize(
    ("keys", "gateways", "masquerade"),
    [
        ({}, [], []),
        ({"is_gateway": True}, ["10.7.0.1/24", "10.8.0.254/24"], []),
        ({"is_default_gateway": True}, ["10.7.0.1/24", "10.8.0.254/24"], []),
        ({"ip_masq": True}, ["10.7.0.1/24", "10.8.0.254/24"], ["10.7.0.0/24", "10.8.0.0/24"]),
    ],
)
def test_a_bridge_of_ranges_has_gateways_only_where_the_keys_ask(
    keys: dict[str, bool], gateways: list[str], masquerade: list[str]
) -> None:
    found = network(
        conf(bridge="br9", ipam=IpamConf(((SEVEN, EIGHT), (SEVEN,))), **keys), NodeState()
    )

    assert found.bridge is not None
    assert found.bridge.ifname == "br9"
    assert [str(gateway) for gateway in found.bridge.gateways] == gateways
    assert [str(prefix) for prefix in found.bridge.masquerade] == masquerade
    assert not found.from_segments


def test_under_another_main_plugin_there_is_no_bridge() -> None:
    assert network(conf(ipam_only=True, bridge="cni0")).bridge is None


@pytest.mark.parametrize(
    ("of_conf", "of_agent", "ranges", "uplink", "mtu"),
    [
        (9000, 1400, True, 1500, 9000),
        (None, 1400, True, 1500, 1400),
        (None, None, True, 9000, 1500),  # as the reference
        (None, None, False, 1500, 1450),
        (None, None, False, 9000, 8950),
        (None, None, False, 1300, 1280),  # IPv6 needs that much
    ],
)
def test_a_pods_mtu_is_the_networks_or_the_agents_or_fits_the_uplink(
    of_conf: int | None, of_agent: int | None, ranges: bool, uplink: int, mtu: int
) -> None:
    made = conf(mtu_bytes=of_conf, ipam=IpamConf(((SEVEN,),)) if ranges else IpamConf())

    found = network(made, mtu_bytes=of_agent, uplink_mtu_bytes=uplink)

    assert found.mtu_bytes == mtu


@pytest.mark.parametrize(
    ("mtu", "of_agent", "ranges", "segments"),
    [
        (1279, None, False, STATE.segments),
        (None, 1279, False, STATE.segments),
        (1279, None, True, STATE.segments),  # on the segments' bridge
    ],
)
def test_an_mtu_that_would_end_ipv6_on_the_bridge_is_refused(
    mtu: int | None, of_agent: int | None, ranges: bool, segments: Any
) -> None:
    made = conf(mtu_bytes=mtu, ipam=IpamConf(((SEVEN,),)) if ranges else IpamConf())
    with pytest.raises(CniError, match="MTU 1279 is too small for IPv6") as failure:
        network(made, NodeState(segments=segments), mtu_bytes=of_agent)
    assert failure.value.code is CniCode.INVALID_NETWORK_CONFIG


def test_a_small_mtu_without_ipv6_is_taken() -> None:
    assert network(conf(mtu_bytes=1000), NodeState(segments=STATE.segments[:1])).mtu_bytes == 1000
    of_its_own = conf(mtu_bytes=1000, bridge="br9", ipam=IpamConf(((SEVEN,),)))
    assert network(of_its_own).mtu_bytes == 1000


# Routes.


def via(destination: Any, gateway: str | None, **more: Any) -> RouteSpec:
    return RouteSpec(destination, ip_address(gateway) if gateway else None, **more)


def routes_of(*routes: RouteSpec, gateways: Any = GATEWAYS, **keys: bool) -> tuple[RouteSpec, ...]:
    return plan_routes(conf(ipam=IpamConf(routes=routes), **keys), gateways)


def test_a_default_route_for_each_family_that_the_pod_has() -> None:
    assert set(routes_of(is_default_gateway=True)) == {
        via(ANY4, "10.244.7.1"),
        via(ANY6, "fd00:7::1"),
    }
    assert routes_of(is_default_gateway=True, gateways=GATEWAYS[:1]) == (via(ANY4, "10.244.7.1"),)
    assert routes_of() == ()


def test_a_route_without_gateway_takes_the_first_of_its_family() -> None:
    more = (*GATEWAYS, ip_address("10.9.9.1"))

    assert routes_of(RouteSpec(ANY4), RouteSpec(ANY6), gateways=more) == (
        via(ANY4, "10.244.7.1"),
        via(ANY6, "fd00:7::1"),
    )


def test_a_routes_own_gateway_and_settings_stay() -> None:
    wanted = via(
        ip_network("10.0.0.0/8"), "10.244.7.9", mtu=1400, advmss=1360, priority=7, table=100
    )

    assert routes_of(wanted) == (wanted,)


def test_a_route_on_link_gets_no_gateway() -> None:
    on_link = via(ip_network("169.254.1.1/32"), None, scope=253)

    assert routes_of(on_link) == (on_link,)


def test_a_route_of_a_family_that_the_pod_lacks_is_left_out() -> None:
    assert routes_of(RouteSpec(ANY6), gateways=GATEWAYS[:1]) == ()


def test_a_default_route_of_ipam_is_not_doubled() -> None:
    of_ipam = via(ANY4, "10.244.7.254")

    assert routes_of(of_ipam, is_default_gateway=True, gateways=GATEWAYS[:1]) == (of_ipam,)


def test_a_default_route_in_another_table_is_not_the_pods_default_route() -> None:
    elsewhere = via(ANY4, "10.244.7.254", table=100)

    assert routes_of(elsewhere, is_default_gateway=True, gateways=GATEWAYS[:1]) == (
        elsewhere,
        via(ANY4, "10.244.7.1"),
    )


def test_routes_to_one_destination_by_priority_and_table_are_all_kept() -> None:
    many = tuple(
        via(ip_network("10.0.0.0/8"), "10.244.7.1", priority=priority, table=table)
        for priority in (None, 5)
        for table in (None, 100)
    )

    assert routes_of(*many) == many


# The attachment.


def test_a_pods_mac_follows_from_its_first_address_unless_one_is_asked_for() -> None:
    assert planned(conf()).link.mac == derived_mac(ADDRESSES[0].ip) == "0a:58:0a:f4:07:02"
    assert planned(conf(), PodWishes(mac="02:00:00:00:00:09")).link.mac == "02:00:00:00:00:09"


@given(macs)
def test_the_host_end_has_a_name_and_a_mac_of_its_own(mac: str) -> None:
    one, two = planned(conf(), PodWishes(mac=mac)), planned(conf(), ifname="eth1")

    assert one.link.host_ifname != two.link.host_ifname
    assert len({one.link.host_mac, two.link.host_mac, two.link.mac}) == 3
    assert planned(conf(), netns="/elsewhere").link.host_ifname == one.link.host_ifname


@pytest.mark.parametrize(
    ("hairpin_mode", "promisc_mode", "ports", "hairpin"),
    [
        (False, False, False, False),
        (True, False, False, True),
        (False, False, True, True),
        (False, True, True, False),
    ],
)
def test_a_pod_with_host_ports_may_be_sent_its_own_packets(
    hairpin_mode: bool, promisc_mode: bool, ports: bool, hairpin: bool
) -> None:
    wishes = PodWishes(port_mappings=(HostPortMapping(8080, 80, "tcp"),) if ports else ())
    made = conf(hairpin_mode=hairpin_mode, promisc_mode=promisc_mode)

    assert planned(made, wishes).link.hairpin is hairpin


def test_what_was_asked_for_is_in_the_attachment() -> None:
    ports = (HostPortMapping(8080, 80, "tcp"),)
    limits = Bandwidth(1, 2, 3, 4)
    made = conf(port_isolation=True, ipam=IpamConf(data_dir="/data"))

    found = planned(made, PodWishes(port_mappings=ports, bandwidth=limits), pod_namespace="ns")

    assert (found.port_mappings, found.bandwidth, found.link.isolated) == (ports, limits, True)
    assert (found.data_dir, found.pod.namespace, found.pod.name) == ("/data", "ns", "one")
    assert found.netns == Netns("/run/netns/p", 4, 99)
    assert (found.addresses, found.gateways, found.link.mtu_bytes) == (ADDRESSES, GATEWAYS, 1450)


# The result.


def test_the_result_names_bridge_host_end_and_pods_end_in_that_order() -> None:
    pod = planned(conf(is_default_gateway=True))
    result = plan_result(pod, bridge_mac="0a:58:0a:f4:07:01", dns=Dns(("10.0.0.10",)))

    assert [each.name for each in result.interfaces] == ["limpet0", pod.link.host_ifname, "eth0"]
    assert [each.sandbox for each in result.interfaces] == ["", "", "/run/netns/p"]
    assert all(each.mac for each in result.interfaces)
    assert {each.interface for each in result.addresses} == {2}
    assert [each.gateway for each in result.addresses] == list(GATEWAYS)
    assert result.routes == pod.routes
    assert result.dns.nameservers == ("10.0.0.10",)


def test_the_result_of_an_ipam_plugin_has_no_interfaces() -> None:
    result = plan_result(planned(conf(ipam_only=True)), bridge_mac="", dns=Dns())

    assert result.interfaces == ()
    assert {each.interface for each in result.addresses} == {None}


def test_an_earlier_plugins_result_is_passed_through_before_ours() -> None:
    before = CniResult(
        (ResultInterface("tun0"), ResultInterface("eth9", sandbox="/run/netns/p")),
        (ResultAddress(ip_interface("192.0.2.9/24"), None, 1),),
        (via(ANY6, "fe80::1"),),
        Dns(("192.0.2.53",)),
    )
    ours = plan_result(planned(conf()), bridge_mac="", dns=Dns())

    merged = merge_results(before, ours)

    assert merged.interfaces == before.interfaces + ours.interfaces
    assert {merged.interfaces[each.interface or 0].name for each in merged.addresses} == {
        "eth9",
        "eth0",
    }
    assert merged.dns == before.dns
    assert merge_results(None, ours) == ours


@given(st.sampled_from([Dns(), Dns(("10.0.0.10",), search=("a", "b"))]))
def test_our_dns_wins_over_an_earlier_plugins_if_we_have_one(dns: Dns) -> None:
    before = CniResult(dns=Dns(("192.0.2.53",)))

    assert merge_results(before, CniResult(dns=dns)).dns == (dns if dns != Dns() else before.dns)
