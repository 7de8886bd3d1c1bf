"""What an API server, or a cache in front of it, says: lists, watches, objects of every kind that
Limpet reads, and the files that say where it is."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from limpet.base.records.version import NewerFormatError
from limpet.controller.communities.selectors import SelectorError, parse_selector
from limpet.controller.node_objects.lease import kept_macs, read_lease
from limpet.controller.node_objects.node import NODES, read_node
from limpet.controller.orchestrator.conditions import read_written
from limpet.controller.orchestrator.pods import read_pod
from limpet.kubernetes.access.access import AccessError, parse_server
from limpet.kubernetes.access.kubeconfig import read_kubeconfig
from limpet.kubernetes.kinds import policies, services
from limpet.kubernetes.kinds.objects import CONFIG_MAPS, LEASES, SECRETS, TOKEN_REVIEWS, Resource
from limpet.kubernetes.kinds.resources import (
    RESOURCES,
    ResourceError,
    document_object,
    read_document,
    spec_problem,
)
from limpet.kubernetes.lists import ListDocument, read_parts
from limpet.kubernetes.pods import PLACED_PODS, PODS
from limpet.kubernetes.watch_event import ObjectDeleted, ObjectPut, read_event
from limpet.policies.book import Book, decode_book, encode_book
from limpet.policies.heard import decode_heard
from limpet.policies.parse import PolicyError, parse_labels, parse_namespace, parse_policy
from limpet.policies.policy import Key
from tests.fuzz.scratch import in_file
from tests.fuzz.target import Shape, fuzzed
from tests.fuzz.targets.documents import POLICY_DOCUMENT, every_document

_RESOURCES: tuple[Resource[Any], ...] = (
    services.SERVICES,
    services.ENDPOINT_SLICES,
    policies.NETWORK_POLICIES,
    policies.NAMESPACES,
    policies.PODS,
    PLACED_PODS,
    PODS,
    NODES,
    SECRETS,
    CONFIG_MAPS,
    LEASES,
    TOKEN_REVIEWS,
)
_METADATA = {
    "name": "web",
    "namespace": "shop",
    "uid": "0c9b",
    "resourceVersion": "17",
    "generation": 2,
    "labels": {"app": "web", "kubernetes.io/service-name": "web"},
    "annotations": {"limpet.dev/traffic-distribution": "PreferClose"},
    "creationTimestamp": "2026-01-01T00:00:00Z",
}
_SERVICE = {
    "type": "LoadBalancer",
    "clusterIP": "10.96.0.7",
    "clusterIPs": ["10.96.0.7", "fd00:96:0::7"],
    "ports": [{"name": "http", "protocol": "TCP", "port": 80, "nodePort": 30080}],
    "externalIPs": ["192.0.2.7"],
    "sessionAffinity": "ClientIP",
    "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
    "externalTrafficPolicy": "Local",
    "loadBalancerSourceRanges": ["198.51.100.0/24 "],
}
_POD = {
    "nodeName": "edge-1",
    "hostNetwork": False,
    "containers": [
        {"name": "c", "ports": [{"name": "http", "protocol": "TCP", "containerPort": 80}]}
    ],
    "initContainers": [{"name": "i", "restartPolicy": "Always", "ports": None}],
}
_FLANNEL = {
    "kube-subnet-manager": "true",
    "backend-type": "vxlan",
    "backend-data": '{"VNI":1,"VtepMAC":"ae:0f:33:10:20:30"}',
    "backend-v6-data": "null",
    "public-ip": "192.0.2.1",
}
_NODE_STATUS = {
    "addresses": [
        {"type": "InternalIP", "address": "192.0.2.1"},
        {"type": "Hostname", "address": "edge-1"},
    ]
}
_OBJECTS: tuple[dict[str, Any], ...] = (
    {
        "spec": _SERVICE,
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.9", "ipMode": "VIP"}]}},
    },
    {
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        "endpoints": [
            {
                "addresses": ["10.244.1.5"],
                "conditions": {"ready": True, "serving": None, "terminating": False},
                "nodeName": "edge-1",
                "zone": "east",
                "hostname": "web-0",
                "targetRef": {"kind": "Pod", "namespace": "shop", "name": "web-0"},
                "hints": {"forZones": [{"name": "east"}], "forNodes": [{"name": "edge-1"}]},
            }
        ],
    },
    {"spec": POLICY_DOCUMENT["spec"]},
    {},
    {
        "spec": _POD,
        "status": {"phase": "Running", "podIPs": [{"ip": "10.244.1.5"}, {"ip": "fd00::5"}]},
    },
    {"spec": _POD, "status": {"phase": "Running", "podIPs": [{"ip": "10.244.1.5"}]}},
    {
        "spec": _POD,
        "status": {"containerStatuses": [{"state": {"waiting": {"reason": "Pulling"}}}]},
    },
    {"spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"]}, "status": _NODE_STATUS},
    {"data": {"key": "AAEC"}},
    {"data": {"key": "value"}},
    {
        "spec": {
            "holderIdentity": "a",
            "leaseDurationSeconds": 15,
            "renewTime": "2026-01-01T00:00:00.0Z",
        }
    },
    {
        "spec": {"token": "t"},
        "status": {"authenticated": True, "user": {"username": "u", "groups": []}},
    },
)


def _lines() -> Iterator[bytes]:
    flannel = {f"flannel.alpha.coreos.com/{key}": value for key, value in _FLANNEL.items()}
    for number, each in enumerate(_OBJECTS):
        metadata = {**_METADATA, "annotations": {**_METADATA["annotations"], **flannel}}  # type: ignore[dict-item]
        event = {"type": "MODIFIED", "object": {"metadata": metadata, **each}}
        yield bytes((number + ord("a"),)) + b"\n" + msgspec.json.encode(event)
    marked = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "18"}}}
    gone = {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}
    yield b"a\n" + msgspec.json.encode(marked)
    yield b"a\n" + msgspec.json.encode(gone)


@fuzzed(seeds=_lines, errors=(ValueError,), shape=Shape.JSON_LINES, most_bytes=16_384)
def watched_object(data: bytes) -> None:
    """A line of a watch, and what becomes of its object."""
    head, _, line = data.partition(b"\n")
    resource = _RESOURCES[head[0] % len(_RESOURCES) if head else 0]
    list(read_parts(ListDocument(items=[msgspec.Raw(line)] * 2), resource, 1))
    event = read_event(line, resource)
    if not isinstance(event, ObjectPut | ObjectDeleted):
        return
    item = event.item
    match item:
        case services.ServiceView():
            services.service_of(item)
        case services.SliceView():
            services.slice_of(item)
        case policies.PodView():
            policies.pod_of(item)
    if resource is PLACED_PODS:
        read_pod(item)
    if resource is NODES:
        kept_macs(read_node(item).flannel)


@fuzzed(
    seeds=lambda: [msgspec.json.encode(_FLANNEL)],
    errors=(ValueError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError),
    shape=Shape.JSON,
)
def flannel_annotations(data: bytes) -> None:
    found = msgspec.json.decode(data, type=dict[str, str])
    kept_macs(found)
    read_lease(found)


def _custom_objects() -> Iterator[bytes]:
    for each in every_document():
        if each.kind in RESOURCES:
            yield msgspec.json.encode({each.kind: document_object(each, "edge-1", "edge-1")})


@fuzzed(
    seeds=_custom_objects,
    errors=(ResourceError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError),
    shape=Shape.JSON,
    most_bytes=16_384,
)
def custom_resource(data: bytes) -> None:
    """An object of ours that carries a document; who may write it can write anything."""
    for kind, found in msgspec.json.decode(data, type=dict[str, dict[str, Any]]).items():
        if kind in RESOURCES:
            read_written(found.get("status"))
            spec_problem(read_document(kind, found), found, "edge-1")


@fuzzed(
    seeds=lambda: [
        msgspec.json.encode(
            {
                "conditions": [
                    dict.fromkeys(
                        ("type", "status", "reason", "message", "lastTransitionTime"), "x"
                    )
                ]
            }
        )
    ],
    errors=(msgspec.MsgspecError, UnicodeDecodeError, RecursionError),
    shape=Shape.JSON,
)
def conditions_of_an_object(data: bytes) -> None:
    read_written(msgspec.json.decode(data))


# Policies, as objects and as they are kept

_NAMESPACE = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {"name": "shop", "labels": {"a": "b"}},
}


@fuzzed(
    seeds=lambda: [msgspec.json.encode(POLICY_DOCUMENT), msgspec.json.encode(_NAMESPACE)],
    errors=(PolicyError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError),
    shape=Shape.JSON,
    most_bytes=32_768,
)
def network_policy(data: bytes) -> None:
    document = msgspec.json.decode(data)
    for parse in (parse_policy, parse_namespace, parse_labels):
        try:
            parse(document)
        except PolicyError:
            continue


def _book() -> bytes:
    book, _ = Book().with_documents([POLICY_DOCUMENT])
    return encode_book(book)


@fuzzed(
    seeds=lambda: [_book()],
    errors=(PolicyError, NewerFormatError),
    shape=Shape.JSON,
    most_bytes=16_384,
)
def kept_policies(data: bytes) -> None:
    book = decode_book(data)
    assert decode_book(encode_book(book)) == book


def _heard() -> Iterator[bytes]:
    lines: list[dict[str, Any]] = [
        {"policy": POLICY_DOCUMENT},
        {"namespace": "shop", "labels": {"a": "b"}},
        {
            "pod": list(Key("shop", "web-0")),
            "addresses": ["10.244.1.5"],
            "labels": {"app": "web"},
            "ports": [["tcp", "http", 80]],
            "host": False,
        },
    ]
    yield b"".join(
        msgspec.json.encode(each) + b"\n" for each in [*lines, {"end": len(lines), "version": 1}]
    )


@fuzzed(seeds=_heard, errors=(ValueError,), shape=Shape.JSON_LINES, most_bytes=16_384)
def kept_policies_of_kubernetes(data: bytes) -> None:
    decode_heard(data)


@fuzzed(
    seeds=lambda: [b"site=harbour,tier!=edge", b"limpet.dev/a=b", b"a=b,a!=c," * 20 + b"x=y"],
    errors=(SelectorError,),
    shape=Shape.TEXT,
)
def node_selector(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    assert parse_selector(text) == parse_selector(str(parse_selector(text)))


# Where it is

_KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "edge",
    "contexts": [
        {"name": "edge", "context": {"cluster": "far", "user": "agent", "namespace": "n"}}
    ],
    "clusters": [
        {
            "name": "far",
            "cluster": {
                "server": "https://192.0.2.1:6443",
                "certificate-authority-data": base64.b64encode(b"PEM").decode(),
                "tls-server-name": "kubernetes",
            },
        }
    ],
    "users": [{"name": "agent", "user": {"token": "abc", "tokenFile": "token"}}],
}


def _kubeconfigs() -> Iterator[bytes]:
    yield msgspec.json.encode(_KUBECONFIG)
    yield yaml.safe_dump(_KUBECONFIG).encode()
    yield b"kind: !!timestamp x\n"
    yield b"a: &a [x, x]\nb: &b [*a, *a]\nkind: [*b, *b]\n"


@fuzzed(seeds=_kubeconfigs, errors=(AccessError,), shape=Shape.TEXT, most_bytes=8192)
def kubeconfig(data: bytes) -> None:
    read_kubeconfig([in_file(data)])


@fuzzed(seeds=_kubeconfigs, errors=(AccessError,), shape=Shape.JSON, most_bytes=8192)
def kubeconfig_of_json(data: bytes) -> None:
    read_kubeconfig([in_file(data)])


@fuzzed(
    seeds=lambda: [b"https://192.0.2.1:6443/path", b"http://[::1]:10261", b"http://localhost"],
    errors=(ValueError,),
    shape=Shape.TEXT,
)
def address_of_an_api_server(data: bytes) -> None:
    found = parse_server(data.decode("latin-1"))
    assert 0 < found.port < 65536
