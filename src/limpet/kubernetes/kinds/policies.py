"""NetworkPolicies, Namespaces and Pods of an API server, read into the values that policies are
about. Of a Pod nothing is kept in memory but its labels, addresses and named ports."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any

import msgspec

from limpet.base.addresses import address_or_none
from limpet.base.bounds.tenants import POD_ADDRESSES, POD_CONTAINERS, POD_PORTS
from limpet.base.bounds.words import LABEL
from limpet.base.text.shared import share
from limpet.kubernetes.kinds.objects import Resource, Viewed
from limpet.policies.policy import Key, NamedPort, PolicyPod, Protocol

_PROTOCOLS: dict[str, Protocol] = {"TCP": "tcp", "UDP": "udp", "SCTP": "sctp"}
_ENDED = ("Succeeded", "Failed")
"""Phases of a pod that has given its addresses back."""


class PolicyView(Viewed, frozen=True, kw_only=True, rename="camel"):
    spec: dict[str, Any] = msgspec.field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """As a person writes it."""
        return {
            "apiVersion": NETWORK_POLICIES.api_version,
            "kind": NETWORK_POLICIES.kind,
            "metadata": {"name": self.metadata.name, "namespace": self.metadata.namespace},
            "spec": self.spec,
        }


class NamespaceView(Viewed, frozen=True, kw_only=True, rename="camel"):
    """Its labels are what there is to know."""


class PolicyPortView(msgspec.Struct, frozen=True, rename="camel"):
    name: Annotated[str, msgspec.Meta(max_length=LABEL.most)] = ""
    container_port: int = 0
    protocol: str = "TCP"


class ContainerView(msgspec.Struct, frozen=True, rename="camel"):
    ports: list[PolicyPortView] | None = None
    restart_policy: str | None = None


Containers = Annotated[list[ContainerView], msgspec.Meta(max_length=POD_CONTAINERS.most)]


class PodSpecView(msgspec.Struct, frozen=True, rename="camel"):
    host_network: bool = False
    containers: Containers | None = None
    init_containers: Containers | None = None


class AddressView(msgspec.Struct, frozen=True):
    ip: str = ""


class PodStatusView(msgspec.Struct, frozen=True, rename="camel"):
    phase: str = ""
    pod_i_ps: Annotated[list[AddressView], msgspec.Meta(max_length=POD_ADDRESSES.most)] | None = (
        msgspec.field(default=None, name="podIPs")
    )


class PodView(Viewed, frozen=True, kw_only=True, rename="camel"):
    spec: PodSpecView = PodSpecView()
    status: PodStatusView = PodStatusView()


NETWORK_POLICIES = Resource(
    "NetworkPolicy", "networkpolicies", PolicyView, "networking.k8s.io", namespaced=True
)
NAMESPACES = Resource("Namespace", "namespaces", NamespaceView)
PODS = Resource("Pod", "pods", PodView, namespaced=True)


def pod_of(view: PodView) -> PolicyPod | None:
    """None: it has ended, and its addresses may be another's."""
    if view.status.phase in _ENDED:
        return None
    metadata = view.metadata
    addresses = [address_or_none(each.ip) for each in view.status.pod_i_ps or ()]
    return PolicyPod(
        Key(share(metadata.namespace), metadata.name),
        tuple(each for each in addresses if each is not None),
        {share(key): share(value) for key, value in (metadata.labels or {}).items()},
        _ports(view.spec),
        view.spec.host_network,
    )


def _ports(spec: PodSpecView) -> dict[NamedPort, int]:
    """Named ports of containers, and of those that begin before them and go on beside them.

    Of two of one name the first counts, as for endpoints of a Service that says the name.
    Source: FindPort in pkg/api/v1/pod/util.go.
    """
    beside = [each for each in spec.init_containers or () if each.restart_policy == "Always"]
    found: dict[NamedPort, int] = {}
    for container in (*(spec.containers or ()), *beside):
        # Kubernetes has no ranges of ports: a media server's are hundreds, most without a name.
        named = (each for each in container.ports or () if each.name)
        for port in islice(named, POD_PORTS.most):
            if port.protocol in _PROTOCOLS:
                key = NamedPort(_PROTOCOLS[port.protocol], share(port.name))
                found.setdefault(key, port.container_port)
    return found
