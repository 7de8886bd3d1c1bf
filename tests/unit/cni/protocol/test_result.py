"""Results and errors as they go to the runtime."""

from __future__ import annotations

import json
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

import pytest

from limpet.base.errors import CniCode, CniError
from limpet.cni.protocol.conf import VERSIONS
from limpet.cni.protocol.result import encode_error, encode_result, parse_result, version_reply
from limpet.cni.protocol.values import CniResult, Dns, ResultAddress, ResultInterface
from limpet.datapath.node.pod.attachment import RouteSpec

RESULT = CniResult(
    interfaces=(
        ResultInterface("limpet0", "0a:58:0a:01:00:01"),
        ResultInterface(
            "eth0", "0a:58:0a:01:00:05", 1450, "/run/netns/a", "/run/vhost.sock", "0000:00:1f.6"
        ),
    ),
    addresses=(
        ResultAddress(ip_interface("10.1.0.5/24"), ip_address("10.1.0.1"), 1),
        ResultAddress(ip_interface("fd00::5/64"), None, 1),
    ),
    routes=(
        RouteSpec(ip_network("0.0.0.0/0"), ip_address("10.1.0.1")),
        RouteSpec(ip_network("fd00::/16"), None, 1400, 1340, 7, 0, 253),
    ),
    dns=Dns(("10.96.0.10",), "shop", ("svc",), ("ndots:5",)),
)


def encoded(result: CniResult, version: str) -> Any:
    return json.loads(encode_result(result, version))


@pytest.mark.parametrize("version", ["0.3.0", "0.3.1", "0.4.0"])
def test_a_result_up_to_0_4_0_names_the_family_of_each_address(version: str) -> None:
    assert encoded(RESULT, version) == {
        "cniVersion": version,
        "interfaces": [
            {"name": "limpet0", "mac": "0a:58:0a:01:00:01"},
            {"name": "eth0", "mac": "0a:58:0a:01:00:05", "sandbox": "/run/netns/a"},
        ],
        "ips": [
            {"version": "4", "address": "10.1.0.5/24", "gateway": "10.1.0.1", "interface": 1},
            {"version": "6", "address": "fd00::5/64", "interface": 1},
        ],
        "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}, {"dst": "fd00::/16"}],
        "dns": {
            "nameservers": ["10.96.0.10"],
            "domain": "shop",
            "search": ["svc"],
            "options": ["ndots:5"],
        },
    }


def test_a_result_of_1_0_0_names_no_family() -> None:
    body = encoded(RESULT, "1.0.0")

    assert body["ips"][0] == {"address": "10.1.0.5/24", "gateway": "10.1.0.1", "interface": 1}
    assert body["interfaces"][1].keys() == {"name", "mac", "sandbox"}
    assert body["routes"][1] == {"dst": "fd00::/16"}


def test_a_result_of_1_1_0_tells_all() -> None:
    body = encoded(RESULT, "1.1.0")

    assert body["interfaces"][1] == {
        "name": "eth0",
        "mac": "0a:58:0a:01:00:05",
        "mtu": 1450,
        "sandbox": "/run/netns/a",
        "socketPath": "/run/vhost.sock",
        "pciID": "0000:00:1f.6",
    }
    assert body["routes"][1] == {
        "dst": "fd00::/16",
        "mtu": 1400,
        "advmss": 1340,
        "priority": 7,
        "table": 0,
        "scope": 253,
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_an_ipam_result_has_neither_interfaces_nor_indexes(version: str) -> None:
    body = encoded(CniResult(addresses=(ResultAddress(ip_interface("10.1.0.5/24")),)), version)

    assert body.keys() == {"cniVersion", "ips"}
    assert "interface" not in body["ips"][0]


def test_a_result_of_1_1_0_is_read_back_as_it_was() -> None:
    assert parse_result(encoded(RESULT, "1.1.0"), "prevResult") == RESULT


def test_a_result_of_the_reference_is_read() -> None:
    result = parse_result(
        {
            "cniVersion": "0.3.1",
            "interfaces": [{"name": "cni0", "mac": "aa:bb:cc:dd:ee:ff"}, {"name": "eth0"}],
            "ips": [{"version": "4", "interface": 1, "address": "10.1.0.5/24"}],
            "routes": None,
            "dns": {},
        },
        "prevResult",
    )

    assert result.interfaces[0] == ResultInterface("cni0", "aa:bb:cc:dd:ee:ff")
    assert result.addresses == (ResultAddress(ip_interface("10.1.0.5/24"), None, 1),)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], "prevResult"),
        ({"interfaces": {}}, "prevResult.interfaces"),
        ({"interfaces": [{"name": 5}]}, "prevResult.interfaces[0].name"),
        ({"ips": [{}]}, "prevResult.ips[0]"),
        ({"ips": [{"address": "10.0.0.1"}]}, "prevResult.ips[0].address"),
        ({"ips": [{"address": "10.0.0.1/33"}]}, "prevResult.ips[0].address"),
        ({"ips": [{"address": "10.0.0.1/8", "interface": 0}]}, "prevResult.ips[0].interface"),
        ({"ips": [{"address": "10.0.0.1/8", "gateway": "x"}]}, "prevResult.ips[0].gateway"),
        ({"routes": [{"dst": "x"}]}, "prevResult.routes[0].dst"),
        ({"dns": {"options": "x"}}, "prevResult.dns.options"),
    ],
)
def test_a_result_that_cannot_be_read_is_refused_naming_the_field(body: Any, field: str) -> None:
    with pytest.raises(CniError) as caught:
        parse_result(body, "prevResult")

    assert caught.value.code == CniCode.INVALID_NETWORK_CONFIG
    assert caught.value.msg.startswith(f"{field}:")


def test_an_error_has_version_code_message_and_details() -> None:
    error = CniError(CniCode.TRY_AGAIN_LATER, "not yet", "wait")

    assert json.loads(encode_error(error, "0.4.0")) == {
        "cniVersion": "0.4.0",
        "code": 11,
        "msg": "not yet",
        "details": "wait",
    }
    assert "details" not in json.loads(encode_error(CniError(CniCode.INTERNAL, "x"), "1.0.0"))


def test_an_error_may_hold_what_is_not_unicode() -> None:
    body = json.loads(encode_error(CniError(CniCode.INTERNAL, 'a\udcff"\n', "\ud800"), "1.0.0"))

    assert body["msg"] == 'a\\udcff"\n'
    assert body["details"] == "\\ud800"


def test_version_is_answered_with_all_that_we_speak() -> None:
    assert json.loads(version_reply("1.0.0")) == {
        "cniVersion": "1.0.0",
        "supportedVersions": ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"],
    }
