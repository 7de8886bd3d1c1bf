"""The network configuration: keys, defaults, ranges, and what is refused with which code."""

from __future__ import annotations

import json
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from limpet.base.errors import CniCode
from limpet.cni.protocol.values import Dns, IpamConf, NetworkConf
from limpet.datapath.node.pod.attachment import RouteSpec
from limpet.ipam.leases import Range
from tests.unit.cni.protocol.cni_inputs import CONF, conf, parse, refusal


def test_defaults_are_those_of_the_reference_bridge() -> None:
    parsed = parse({"cniVersion": "1.0.0", "name": "n", "type": "limpet"}).conf

    assert parsed == NetworkConf("n", "1.0.0", ipam_only=False)
    assert not parsed.main.is_gateway
    assert not parsed.main.ip_masq
    assert parsed.ipam == IpamConf()


def test_every_key_that_we_serve_is_taken() -> None:
    parsed = parse(
        conf(
            mtu=1400,
            hairpinMode=True,
            ipMasq=True,
            ipMasqBackend="iptables",
            isDefaultGateway=True,
            isGateway=False,
            forceAddress=True,
            preserveDefaultVlan=False,
            enabledad=True,
            portIsolation=True,
            vlan=0,
            vlanTrunk=[],
            macspoofchk=False,
            capabilities={"portMappings": True},
            dns={"nameservers": ["10.0.0.1"], "search": ["a"]},
        )
    ).conf

    assert parsed.main.bridge == "h2br0"
    assert parsed.main.mtu_bytes == 1400
    assert parsed.main.hairpin_mode
    assert parsed.main.ip_masq
    assert parsed.main.is_default_gateway
    assert parsed.main.is_gateway  # a default gateway is a gateway
    assert parsed.main.port_isolation
    assert parsed.dns == Dns(nameservers=("10.0.0.1",), search=("a",))
    assert parsed.unknown_keys == ()


def test_keys_match_without_regard_to_case_as_in_the_reference() -> None:
    assert parse(conf(ISDEFAULTGATEWAY=True)).conf.main.is_default_gateway
    assert not parse(
        conf(isDefaultGateway=False, ISDEFAULTGATEWAY=True)
    ).conf.main.is_default_gateway


def test_null_counts_as_absent() -> None:
    parsed = parse(conf(mtu=None, bridge=None, dns=None, ipam=None, runtimeConfig=None)).conf

    assert parsed.main.mtu_bytes is None
    assert parsed.main.bridge is None
    assert parsed.ipam == IpamConf()


def test_unknown_keys_are_collected_not_refused() -> None:
    parsed = parse(
        conf(
            snat=True,
            dns={"resolvers": []},
            ipam={
                "type": "limpet",
                "rangeStart": "10.0.0.9",
                "ranges": [[{"subnet": "10.0.0.0/24", "vid": 1}]],
                "routes": [{"dst": "::/0", "dev": "x"}],
                "keep": 1,
            },
        )
    ).conf

    assert parsed.unknown_keys == (
        "dns.resolvers",
        "ipam.keep",
        "ipam.rangeStart",
        "ipam.ranges[0][0].vid",
        "ipam.routes[0].dev",
        "snat",
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vlan", 5),
        ("vlanTrunk", [{"id": 5}]),
        ("macspoofchk", True),
        ("disableContainerInterface", True),
        ("shapedSubnets", ["10.0.0.0/8"]),
    ],
)
def test_a_key_that_would_silently_not_hold_is_refused_with_code_2(key: str, value: Any) -> None:
    error = refusal(conf(**{key: value}))

    assert error.code == CniCode.UNSUPPORTED_FIELD
    assert error.msg.startswith(f"{key}: {json.dumps(value, separators=(',', ':'))} ")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ...}, "name"),
        ({"name": ""}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": ".."}, "name"),
        ({"name": "n" * 256}, "name"),
        ({"name": 5}, "name"),
        ({"cniVersion": 1.0}, "cniVersion"),
        ({"type": ...}, "type"),
        ({"type": "bridge"}, "type"),
        ({"type": 5}, "type"),
        ({"bridge": "a/b"}, "bridge"),
        ({"bridge": "x" * 16}, "bridge"),
        ({"bridge": 5}, "bridge"),
        ({"mtu": -1}, "mtu"),
        ({"mtu": 67}, "mtu"),
        ({"mtu": 65536}, "mtu"),
        ({"mtu": 1500.0}, "mtu"),
        ({"mtu": True}, "mtu"),
        ({"mtu": "1500"}, "mtu"),
        ({"hairpinMode": 1}, "hairpinMode"),
        ({"ipMasq": "true"}, "ipMasq"),
        ({"forceAddress": 0}, "forceAddress"),
        ({"hairpinMode": True, "promiscMode": True}, "promiscMode"),
        ({"dns": []}, "dns"),
        ({"dns": {"nameservers": "10.0.0.1"}}, "dns.nameservers"),
        ({"dns": {"search": [5]}}, "dns.search[0]"),
        ({"dns": {"domain": "a\0b"}}, "dns.domain"),
        ({"ipam": []}, "ipam"),
        ({"ipam": {"type": "dhcp"}}, "ipam.type"),
        ({"ipam": {"type": "host-local"}}, "ipam.ranges"),
        ({"ipam": {"dataDir": "networks"}}, "ipam.dataDir"),
        ({"ipam": {"resolvConf": 5}}, "ipam.resolvConf"),
        ({"ipam": {"routes": {}}}, "ipam.routes"),
        ({"ipam": {"routes": [{}]}}, "ipam.routes[0].dst"),
        ({"ipam": {"routes": [{"dst": "10.0.0.0"}]}}, "ipam.routes[0].dst"),
        ({"ipam": {"routes": [{"dst": "10.0.0.0/255.0.0.0"}]}}, "ipam.routes[0].dst"),
        ({"ipam": {"routes": [{"dst": "::/0", "gw": "10.0.0.1"}]}}, "ipam.routes[0].gw"),
        ({"ipam": {"routes": [{"dst": "::/0", "scope": 256}]}}, "ipam.routes[0].scope"),
        ({"ipam": {"routes": [{"dst": "::/0", "mtu": "x"}]}}, "ipam.routes[0].mtu"),
        ({"ingressRate": 5}, "ingressBurst"),
    ],
)
def test_a_wrong_value_is_refused_with_code_7_naming_the_field(
    change: dict[str, Any], field: str
) -> None:
    error = refusal(conf(**change))

    assert error.code == CniCode.INVALID_NETWORK_CONFIG
    assert error.msg.startswith(f"{field}:")


@pytest.mark.parametrize(
    ("ranges", "field", "why"),
    [
        ({}, "ipam.ranges", "not a list"),
        ([{}], "ipam.ranges[0]", "not a list"),
        ([[]], "ipam.ranges[0]", "empty"),
        ([[5]], "ipam.ranges[0][0]", "not an object"),
        ([[{}]], "ipam.ranges[0][0].subnet", "missing"),
        ([[{"subnet": "10.0.0.0"}]], "ipam.ranges[0][0].subnet", "not a prefix"),
        ([[{"subnet": "fe80::%1/64"}]], "ipam.ranges[0][0].subnet", "not a prefix"),
        ([[{"subnet": "10.0.0.5/24"}]], "ipam.ranges[0][0].subnet", "host bits"),
        ([[{"subnet": "10.0.0.0/31"}]], "ipam.ranges[0][0].subnet", "too small"),
        ([[{"subnet": "fd00::/127"}]], "ipam.ranges[0][0].subnet", "too small"),
        ([[{"subnet": "::ffff:10.0.0.0/120"}]], "ipam.ranges[0][0].subnet", "IPv6 form"),
        (
            [[{"subnet": "10.0.0.0/24", "rangeStart": "10.0.1.1"}]],
            "ipam.ranges[0][0].rangeStart",
            "not in",
        ),
        (
            [[{"subnet": "10.0.0.0/24", "rangeEnd": "fd00::1"}]],
            "ipam.ranges[0][0].rangeEnd",
            "not in",
        ),
        (
            [[{"subnet": "10.0.0.0/24", "gateway": "10.0.1.1"}]],
            "ipam.ranges[0][0].gateway",
            "not in",
        ),
        (
            [[{"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.9", "rangeEnd": "10.0.0.8"}]],
            "ipam.ranges[0][0].rangeEnd",
            "before the start",
        ),
        ([[{"subnet": "10.0.0.0/24"}, {"subnet": "fd00::/64"}]], "ipam.ranges[0]", "mixes"),
        ([[{"subnet": "10.0.0.0/24"}, {"subnet": "10.0.0.0/25"}]], "ipam.ranges", "share"),
        (
            [[{"subnet": "10.9.0.0/24"}], [{"subnet": "fd00::/64"}], [{"subnet": "10.9.0.0/16"}]],
            "ipam.ranges",
            "range sets 0 and 2 share",
        ),
    ],
)
def test_ranges_are_checked_as_host_local_does(ranges: Any, field: str, why: str) -> None:
    error = refusal(conf(ipam={"type": "limpet", "ranges": ranges}))

    assert error.code == CniCode.INVALID_NETWORK_CONFIG
    assert error.msg.startswith(f"{field}:")
    assert why in error.msg


def test_ranges_have_the_defaults_of_host_local() -> None:
    sets = parse(CONF).conf.ipam.range_sets

    assert sets == (
        (
            Range(
                ip_network("10.244.7.0/24"),
                ip_address("10.244.7.1"),
                ip_address("10.244.7.254"),
                ip_address("10.244.7.1"),
            ),
        ),
        (
            Range(
                ip_network("fd00:7::/64"),
                ip_address("fd00:7::1"),
                ip_address("fd00:7::ffff:ffff:ffff:ffff"),
                ip_address("fd00:7::1"),
            ),
        ),
    )


def test_a_range_in_the_old_style_comes_before_the_others() -> None:
    ipam = {
        "type": "host-local",
        "subnet": "10.1.0.0/16",
        "rangeStart": "10.1.2.0",
        "rangeEnd": "10.1.3.0",
        "gateway": "10.1.0.9",
        "ranges": [[{"subnet": "10.2.0.0/24"}]],
    }

    first, second = parse(conf(ipam=ipam)).conf.ipam.range_sets

    assert first == (
        Range(
            ip_network("10.1.0.0/16"),
            ip_address("10.1.2.0"),
            ip_address("10.1.3.0"),
            ip_address("10.1.0.9"),
        ),
    )
    assert second[0].subnet == ip_network("10.2.0.0/24")


def test_parts_of_one_subnet_may_be_ranges_of_their_own() -> None:
    low = {"subnet": "10.0.0.0/24", "rangeEnd": "10.0.0.99"}
    high = {"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.100"}

    sets = parse(conf(ipam={"type": "host-local", "ranges": [[high, low]]})).conf.ipam.range_sets

    assert len(sets[0]) == 2


def test_routes_take_the_fields_of_cni_1_1_and_zero_is_unset() -> None:
    routes = [
        {"dst": "10.9.9.9/8", "gw": "10.244.7.2", "mtu": 1400, "advmss": 1300, "priority": 5},
        {"dst": "::/0", "mtu": 0, "priority": 0, "table": 0, "scope": 253},
    ]

    parsed = parse(conf(ipam={"type": "limpet", "routes": routes})).conf.ipam.routes

    assert parsed == (
        RouteSpec(
            ip_network("10.0.0.0/8"), ip_address("10.244.7.2"), mtu=1400, advmss=1300, priority=5
        ),
        RouteSpec(ip_network("::/0"), table=0, scope=253),
    )


def test_resolv_conf_and_data_dir_are_taken() -> None:
    ipam = {"type": "limpet", "resolvConf": "/etc/resolv.conf", "dataDir": "/data"}

    parsed = parse(conf(ipam=ipam)).conf.ipam

    assert parsed == IpamConf(resolv_conf="/etc/resolv.conf", data_dir="/data")


def test_under_another_main_plugin_only_ipam_is_ours() -> None:
    request = parse(
        {
            "cniVersion": "1.0.0",
            "name": "lan",
            "type": "macvlan",
            "master": "eth0",
            "vlan": 5,
            "mtu": "the main plugin's business",
            "ipam": {"type": "limpet", "subnet": "10.1.0.0/24", "odd": 1},
            "runtimeConfig": {"ips": ["10.1.0.7"], "mac": "its", "portMappings": "own"},
        }
    )

    assert request.conf.ipam_only
    assert request.conf.unknown_keys == ("ipam.odd",)
    assert request.conf.ipam.range_sets[0][0].subnet == ip_network("10.1.0.0/24")
    assert request.wishes.addresses == (ip_address("10.1.0.7"),)
    assert request.wishes.mac is None
    assert request.wishes.port_mappings == ()


def test_as_many_ranges_as_stdin_has_room_for_are_taken() -> None:
    ranges = [[{"subnet": f"10.{i // 256}.{i % 256}.0/24"}] for i in range(20_000)]

    parsed = parse(conf(ipam={"type": "host-local", "ranges": ranges})).conf

    assert len(parsed.ipam.range_sets) == 20_000
