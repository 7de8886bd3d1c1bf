"""Pods as they are read, and how one is asked that only the API server reaches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from limpet.base.decoding import decode_json
from limpet.base.http.connection import Headers, HttpAnswer
from limpet.kubernetes.client import Client
from limpet.kubernetes.kinds.objects import Resource, Viewed

AGENT_LABEL, BY_SYSTEMD = "limpet.dev/agent", "systemd"
"""Label, and its value, of a Node whose agent is a service of the node: the DaemonSet keeps off it.

Source: deploy/manifests/30-agent.yaml.
"""


class ContainerPort(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    container_port: int = 0


class PodContainer(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    image: str = ""
    ports: list[ContainerPort] | None = None


class PodPlace(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""
    host_network: bool = False


class PodSpec(PodPlace, frozen=True, rename="camel"):
    containers: list[PodContainer] | None = None


class PodAddress(msgspec.Struct, frozen=True):
    ip: str = ""


class PodAddresses(msgspec.Struct, frozen=True, rename="camel"):
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: list[PodAddress] | None = msgspec.field(default=None, name="podIPs")


class Waiting(msgspec.Struct, frozen=True):
    """Why a container has not started."""

    reason: str = ""
    message: str = ""


class Terminated(msgspec.Struct, frozen=True, rename="camel"):
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    """What the container has written to its termination log."""


class ContainerState(msgspec.Struct, frozen=True):
    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(msgspec.Struct, frozen=True):
    name: str = ""
    ready: bool = False
    state: ContainerState = ContainerState()


class PodStatus(PodAddresses, frozen=True, rename="camel"):
    phase: str = ""
    reason: str = ""
    message: str = ""
    container_statuses: list[ContainerStatus] | None = None


class PlacedPod(Viewed, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Where a pod is and its addresses: what is read of thousands."""

    spec: PodPlace = PodPlace()
    status: PodAddresses = PodAddresses()

    @property
    def addresses(self) -> list[str]:
        """As the kubelet says them; none: it has none yet."""
        found = [each.ip for each in self.status.pod_ips or ()] or [self.status.pod_ip]
        return [each for each in found if each]


class Pod(PlacedPod, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


PLACED_PODS = Resource("Pod", "pods", PlacedPod, namespaced=True)
PODS = Resource("Pod", "pods", Pod, namespaced=True)


async def create_document(
    client: Client, resource: Resource[Any], document: Mapping[str, Any], *, namespace: str = ""
) -> None:
    """Creates an object that is written as a whole, with `apiVersion` and `kind`.

    Raises: ExistsError, StatusError, LinkError.
    """
    answer = await client.ask(
        "POST",
        resource.path(namespace=namespace),
        body=msgspec.json.encode(document),
        headers=[("Content-Type", "application/json")],
    )
    client.check(answer, resource, f"create {resource} {document['metadata']['name']}")


class _Kind(msgspec.Struct, frozen=True):
    kind: str = ""


async def post_to_pod(
    client: Client, pod: Pod, port: int, path: str, body: bytes, headers: Headers
) -> HttpAnswer:
    """What the pod answers, whatever its status. The API server carries it there, by TLS whose
    certificate it does not look at, and takes its own `Authorization` out.

    Raises: StatusError where the API server refuses or does not get there, LinkError.
    """
    name, namespace = pod.metadata.name, pod.metadata.namespace
    # The colons of SCHEME:NAME:PORT belong to the path as they are.
    at = PODS.path(name, namespace=namespace, sub="proxy").replace(
        f"/{name}/", f"/https:{name}:{port}/"
    )
    answer = await client.ask(
        "POST",
        f"{at}{path}",
        body=body,
        headers=[("Content-Type", "application/json"), *headers],
    )
    if answer.status >= 400 and kind_of(answer.body) == "Status":
        client.check(answer, PODS, f"ask pod {namespace}/{name}")
    return answer


def kind_of(body: bytes) -> str:
    try:
        return decode_json(body, _Kind).kind
    except msgspec.MsgspecError:
        return ""
