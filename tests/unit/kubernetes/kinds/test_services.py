"""Services and EndpointSlices, as an API server writes them, are read into a node's values."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.base.bounds.words import LEFT_OUT, SLICE_ENDPOINTS
from limpet.datapath.services.elements import frontends
from limpet.kubernetes.kinds.services import ServiceView, SliceView, service_of, slice_of
from limpet.services.values import (
    NOT_EXPOSED,
    READY,
    SERVING,
    TERMINATING,
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Exposure,
    Service,
    ServicePort,
)

ODD_ENDPOINTS = st.fixed_dictionaries(
    {"addresses": st.lists(st.sampled_from(["10.1.0.2", "fd00::2", "0.0.0.0", "", "x"]))}
)
ODD_PORTS = st.fixed_dictionaries(
    {"port": st.integers(-2, 1 << 17)}, optional={"protocol": st.sampled_from(["TCP", "X", ""])}
)


def service(spec: dict[str, Any], **more: Any) -> Service:
    metadata = {"name": "web", "namespace": "shop", **more.pop("metadata", {})}
    return service_of(msgspec.convert({"metadata": metadata, "spec": spec, **more}, ServiceView))


def endpoint_slice(*endpoints: dict[str, Any], **more: Any) -> EndpointSlice:
    metadata = {
        "name": "web-1",
        "namespace": "shop",
        "labels": {"kubernetes.io/service-name": "web"},
    }
    whole = {"metadata": metadata, "addressType": "IPv4", "endpoints": endpoints, **more}
    return slice_of(msgspec.convert(whole, SliceView))


def test_a_service_says_what_a_node_needs_of_it() -> None:
    found = service(
        {
            "type": "LoadBalancer",
            "clusterIP": "10.96.0.7",
            "clusterIPs": ["10.96.0.7", "fd00:96:0::7"],
            "ports": [
                {"name": "http", "protocol": "TCP", "port": 80, "nodePort": 30080},
                {"name": "dns", "protocol": "UDP", "port": 53},
            ],
            "externalIPs": ["192.0.2.7"],
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
            "internalTrafficPolicy": "Local",
            "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 31000,
            "loadBalancerSourceRanges": ["198.51.100.0/24 "],
            "trafficDistribution": "PreferClose",
            "publishNotReadyAddresses": True,
        },
        status={
            "loadBalancer": {
                "ingress": [{"ip": "203.0.113.7"}, {"ip": "203.0.113.8", "ipMode": "Proxy"}]
            }
        },
    )

    assert found == Service(
        "shop",
        "web",
        type="LoadBalancer",
        cluster_ips=("10.96.0.7", "fd00:96::7"),
        ports=(ServicePort("http", "TCP", 80, 30080), ServicePort("dns", "UDP", 53)),
        exposure=Exposure(
            external_ips=("192.0.2.7",),
            load_balancer_ips=("203.0.113.7",),
            source_ranges=("198.51.100.0/24",),
            is_local=True,
            health_check_node_port=31000,
        ),
        affinity_s=60,
        is_internal_local=True,
        distribution="PreferClose",
        publish_not_ready=True,
    )


def test_since_when_a_service_is_there_is_kept_where_others_may_ask_for_its_addresses() -> None:
    made = "2026-01-01T00:00:00Z"

    def read(spec: dict[str, Any]) -> str:
        view = {"metadata": {"name": "web", "creationTimestamp": made}, "spec": spec}
        return service_of(msgspec.convert(view, ServiceView)).exposure.since

    assert read({"clusterIP": "10.96.0.7", "externalIPs": ["192.0.2.7"]}) == made
    assert read({"clusterIP": "10.96.0.7"}) == ""


def test_headless_services_and_names_have_no_address() -> None:
    headless = service({"clusterIP": "None", "clusterIPs": ["None"], "ports": [{"port": 80}]})
    assert headless.is_headless
    assert headless.addresses == ()

    name = service({"type": "ExternalName", "externalName": "db.example.com"})
    assert (name.external_name, name.is_headless, name.addresses) == ("db.example.com", False, ())
    assert name.exposure is NOT_EXPOSED


@pytest.mark.parametrize("label", ["service-proxy-name", "headless"])
def test_what_somebody_else_serves_is_left_to_them(label: str) -> None:
    labels = {f"service.kubernetes.io/{label}": "another"}
    found = service(
        {"clusterIP": "10.96.0.7", "ports": [{"port": 80}]}, metadata={"labels": labels}
    )
    assert found.is_others
    assert found.addresses == ("10.96.0.7",), "its name is answered all the same"
    assert list(frontends(found, found.ports[0])) == []
    assert not service({"clusterIP": "10.96.0.7"}).is_others


def test_an_annotation_says_more_than_the_spec_on_who_is_near() -> None:
    annotations = {"limpet.dev/traffic-distribution": "PreferSameNode"}
    spec = {"trafficDistribution": "PreferClose"}
    found = service(spec, metadata={"annotations": annotations})
    assert found.distribution == "PreferSameNode"


def test_conditions_that_are_not_told_are_as_the_api_says() -> None:
    found = endpoint_slice(
        {"addresses": ["10.244.1.2"]},
        {"addresses": ["10.244.1.3"], "conditions": {"ready": False}},
        {
            "addresses": ["10.244.1.4"],
            "conditions": {"ready": False, "serving": True, "terminating": True},
        },
    )
    assert [each.conditions for each in found.endpoints] == [
        READY | SERVING,
        0,
        SERVING | TERMINATING,
    ]


def test_an_endpoint_is_where_it_says_and_for_whom() -> None:
    found = endpoint_slice(
        {
            "addresses": ["10.244.1.2", "10.244.1.9"],
            "nodeName": "edge-1",
            "zone": "hall",
            "hostname": "web-0",
            "targetRef": {"kind": "Pod", "name": "web-0", "namespace": "shop"},
            "hints": {"forZones": [{"name": "hall"}], "forNodes": [{"name": "edge-1"}]},
        },
        ports=[{"name": "http", "port": 8080}, {"name": "", "port": 0}, {}],
    )
    assert found == EndpointSlice(
        "shop",
        "web-1",
        "web",
        4,
        ports=(EndpointPort("http", "TCP", 8080),),
        endpoints=(
            Endpoint(
                "10.244.1.2",
                node="edge-1",
                zone="hall",
                hostname="web-0",
                pod="web-0",
                for_zones=("hall",),
                for_nodes=("edge-1",),
            ),
        ),
        left_out=("ports[1].port 0: no port from 1 to 65535",),
    )


def test_nonsense_in_an_object_costs_nothing_but_itself() -> None:
    found = endpoint_slice(
        {"addresses": []},
        {},
        {"addresses": ["fd00::1"]},
        {"addresses": ["10.244.1.300"]},
        {"addresses": ["0.0.0.0"]},
        {"addresses": ["224.0.0.1"]},
        {"addresses": ["10.244.1.2"]},
        ports=[{"port": 70000}, {"port": 80, "protocol": "ICMP"}],
    )
    assert [each.address for each in found.endpoints] == ["10.244.1.2"]
    assert found.ports == ()
    assert found.left_out == (
        "ports[0].port 70000: no port from 1 to 65535",
        "ports[1].protocol 'ICMP': none of TCP, UDP and SCTP",
        "endpoints[0]: it has no address",
        "endpoints[1]: it has no address",
        *(
            f"endpoints[{index}] '{address}': no address of IPv4 that a pod can have"
            for index, address in ((2, "fd00::1"), (3, "10.244.1.300"), (4, "0.0.0.0"))
        ),
        "endpoints[5] '224.0.0.1': no address of IPv4 that a pod can have",
    )
    odd = service({"clusterIPs": ["10.96.0.300", "10.96.0.3"], "externalIPs": ["nonsense"]})
    assert odd is not None
    assert odd.addresses == ("10.96.0.3",)
    assert odd.exposure.external_ips == ()
    assert odd.left_out == (
        "clusterIPs '10.96.0.300': no address that a pod or a Service can have",
        "externalIPs 'nonsense': no address that a pod or a Service can have",
    )


def test_addresses_that_are_nobodys_and_numbers_that_are_none_are_left_out() -> None:
    own = ["127.0.0.1", "::1", "169.254.20.10", "fe80::1", "255.255.255.255", "::", "fd00::1%eth0"]
    found = service(
        {
            "type": "LoadBalancer",
            "clusterIPs": ["::ffff:10.96.0.3", *own],
            "externalIPs": [*own, "192.0.2.7"],
            "ports": [{"port": 80, "nodePort": 70000}, {"port": -1}, {"port": 53, "protocol": "X"}],
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 1 << 40}},
            "healthCheckNodePort": -5,
        },
        status={"loadBalancer": {"ingress": [{"ip": each} for each in own]}},
    )
    assert found.addresses == ("10.96.0.3",)
    assert found.exposure == Exposure(external_ips=("192.0.2.7",))
    assert found.ports == (ServicePort("", "TCP", 80),)
    assert found.affinity_s == 86400
    numbers = service(
        {
            "ports": [{"port": 80, "nodePort": 70000}, {"port": -1}, {"port": 53, "protocol": "X"}],
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 0}},
            "healthCheckNodePort": -5,
            "loadBalancerSourceRanges": ["10.0.0.0/64"],
        }
    )
    assert numbers is not None
    assert numbers.left_out == (
        "ports[0].nodePort 70000: no port from 1 to 65535",
        "ports[1].port -1: no port from 1 to 65535",
        "ports[2].protocol 'X': none of TCP, UDP and SCTP",
        "loadBalancerSourceRanges '10.0.0.0/64': no prefix, so it lets nobody in",
        "healthCheckNodePort -5: no port from 1 to 65535",
        "sessionAffinityConfig.clientIP.timeoutSeconds 0: not from 1 to 86400 seconds: it is "
        "10800 here",
    )
    pieces = endpoint_slice(*({"addresses": [each]} for each in own))
    assert pieces.endpoints == ()


def test_who_may_come_is_nobody_where_nothing_of_it_can_be_read() -> None:
    def ranges(*texts: str) -> tuple[str, ...]:
        found = service({"type": "LoadBalancer", "loadBalancerSourceRanges": texts})
        assert found is not None
        return found.exposure.source_ranges

    assert ranges("198.51.100.0/24", "nonsense") == ("198.51.100.0/24",)
    assert ranges("nonsense", "10.0.0.0/64") == ("0.0.0.0/32", "::/128")
    assert ranges() == ()


def test_nothing_is_said_of_what_is_not_there_yet_or_stands_for_anything() -> None:
    pending = service(
        {
            "type": "LoadBalancer",
            "clusterIP": "",
            "ports": [{"port": 80, "nodePort": 0}],
            "sessionAffinity": "ClientIP",
        },
        status={"loadBalancer": {"ingress": [{"hostname": "lb.example.com"}]}},
    )
    assert pending is not None
    assert pending.left_out == ()
    any_port = endpoint_slice({"addresses": ["10.244.1.2"]}, ports=[{"name": "", "port": None}])
    assert any_port.left_out == ()
    names = endpoint_slice({"addresses": ["db.example.com"]}, addressType="FQDN")
    assert names.left_out == ()


def test_to_addresses_of_no_known_type_nothing_is_sent_and_it_says_so() -> None:
    found = endpoint_slice({"addresses": ["10.244.1.2"]}, addressType="IPX")
    assert found.version == 0
    assert found.left_out == (
        "addressType 'IPX': none of IPv4, IPv6 and FQDN, so nothing is sent to its endpoints",
    )


def test_of_more_than_a_slice_may_have_the_first_are_taken_and_words_are_few_and_short() -> None:
    good = [{"addresses": [f"10.244.{n >> 8}.{n & 255}"]} for n in range(1500)]
    found = endpoint_slice(*good)
    assert len(found.endpoints) == SLICE_ENDPOINTS.most
    assert found.left_out == (
        "endpoints 1500: no EndpointSlice has more than 1000 endpoints: the rest of them",
    )
    bad = endpoint_slice(*({"addresses": ["\x1b" * 250]} for _ in range(900)), good[0])
    assert [each.address for each in bad.endpoints] == ["10.244.0.0"]
    assert len(bad.left_out) == LEFT_OUT.most + 1
    assert bad.left_out[-1] == f"and {900 - LEFT_OUT.most} more"
    assert max(map(len, bad.left_out)) < 500
    assert "\x1b" not in "".join(bad.left_out)


def test_an_object_with_a_word_that_no_server_lets_in_cannot_be_read() -> None:
    with pytest.raises(msgspec.ValidationError, match="zone"):
        endpoint_slice({"addresses": ["10.244.1.2"], "zone": "z" * (1 << 20)})


@given(st.lists(ODD_ENDPOINTS), st.lists(ODD_PORTS), st.sampled_from(["IPv4", "IPv6", "", "FQDN"]))
def test_of_a_slice_something_is_told_exactly_if_something_is_missing(
    endpoints: list[dict[str, Any]], ports: list[dict[str, Any]], version: str
) -> None:
    found = endpoint_slice(*endpoints, ports=ports, addressType=version)
    missing = len(endpoints) - len(found.endpoints) + len(ports) - len(found.ports)
    assert bool(found.left_out) == (missing > 0 or version == "")
