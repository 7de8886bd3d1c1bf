"""CNI invocations as real runtimes make them, for the tests of the protocol."""

from __future__ import annotations

import json
from typing import Any

from limpet.base.errors import CniError
from limpet.cni.protocol.request import parse_request
from limpet.cni.protocol.values import CniRequest

CONTAINER = "6f2c0a5be8c94f1e9d3b7a1f"

# As containerd sent it, with our type.
CONF: dict[str, Any] = {
    "bridge": "h2br0",
    "cniVersion": "1.0.0",
    "ipMasq": False,
    "ipam": {
        "dataDir": "/var/lib/cni/networks",
        "ranges": [[{"subnet": "10.244.7.0/24"}], [{"subnet": "fd00:7::/64"}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
        "type": "host-local",
    },
    "isGateway": True,
    "name": "h2net",
    "type": "limpet",
}
CONTAINERD_RUNTIME = {
    "bandwidth": {
        "IngressRate": 10000000,
        "IngressBurst": 4294967295,
        "EgressRate": 0,
        "EgressBurst": 0,
    },
    "dns": {"Servers": ["10.96.0.10"], "Searches": ["svc.cluster.local"], "Options": None},
    "io.kubernetes.cri.pod-annotations": {"app": "web"},
    "portMappings": [{"HostPort": 18080, "ContainerPort": 80, "Protocol": "tcp", "HostIP": ""}],
    "cgroupPath": "/kubepods/pod1",
}
CONTAINERD_ARGS = (
    "K8S_POD_INFRA_CONTAINER_ID=6f2c;K8S_POD_UID=0c9b;IgnoreUnknown=1;"
    "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0"
)


def environ(verb: str = "ADD", **variables: str) -> dict[str, str]:
    given = {
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": CONTAINER,
        "CNI_NETNS": "/run/netns/cni-1",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": "/opt/cni/bin",
        "CNI_ARGS": CONTAINERD_ARGS,
    }
    return given | variables


def conf(**keys: Any) -> dict[str, Any]:
    """CONF with other keys; `...` removes one."""
    return {key: value for key, value in (CONF | keys).items() if value is not ...}


def parse(document: Any, verb: str = "ADD", **variables: str) -> CniRequest:
    return parse_request(environ(verb, **variables), json.dumps(document).encode())


def refusal(document: Any, verb: str = "ADD", **variables: str) -> CniError:
    try:
        request = parse(document, verb, **variables)
    except CniError as error:
        return error
    raise AssertionError(f"taken: {request}")
