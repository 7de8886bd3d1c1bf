"""Services and EndpointSlices, as an API server writes them, are read into a node's values."""

from __future__ import annotations

from typing import Any

import msgspec

from limpet.kubernetes.services import ServiceView, SliceView, service_of, slice_of
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


def service(spec: dict[str, Any], **more: Any) -> Service | None:
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


def test_headless_services_and_names_have_no_address() -> None:
    headless = service({"clusterIP": "None", "clusterIPs": ["None"], "ports": [{"port": 80}]})
    assert headless is not None
    assert headless.is_headless
    assert headless.addresses == ()

    name = service({"type": "ExternalName", "externalName": "db.example.com"})
    assert name is not None
    assert (name.external_name, name.is_headless, name.addresses) == ("db.example.com", False, ())
    assert name.exposure is NOT_EXPOSED


def test_what_somebody_else_serves_is_left_to_them() -> None:
    labels = {"service.kubernetes.io/service-proxy-name": "another"}
    assert service({"clusterIP": "10.96.0.7"}, metadata={"labels": labels}) is None


def test_an_annotation_says_more_than_the_spec_on_who_is_near() -> None:
    annotations = {"limpet.dev/traffic-distribution": "PreferSameNode"}
    spec = {"trafficDistribution": "PreferClose"}
    found = service(spec, metadata={"annotations": annotations})
    assert found is not None
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
    odd = service({"clusterIPs": ["10.96.0.300", "10.96.0.3"], "externalIPs": ["nonsense"]})
    assert odd is not None
    assert odd.addresses == ("10.96.0.3",)
    assert odd.exposure.external_ips == ()


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
    assert found is not None
    assert found.addresses == ("10.96.0.3",)
    assert found.exposure == Exposure(external_ips=("192.0.2.7",))
    assert found.ports == (ServicePort("", "TCP", 80),)
    assert found.affinity_s == 86400
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
