"""A node of a Kubernetes cluster as it is installed: who it is there, where the controllers are."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from limpet.base.errors import CommandLineError, LimpetError
from limpet.base.settings import SourceSettings
from limpet.cli.doctor.findings import Finding, error, warn

_NODE_USER = "system:node:"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    """What the command line says of a Kubernetes cluster."""

    kubeconfig: Path
    """The agent's, for as long as it is installed."""
    context: str = ""
    server: str = ""
    """A cache on this node, or another address of the API server; empty: the kubeconfig's."""

    def document(self) -> dict[str, str]:
        """As it stands in the agent's configuration."""
        found = {
            "source": "kubernetes",
            "kubernetes_kubeconfig": str(self.kubeconfig),
            "kubernetes_context": self.context,
            "kubernetes_server": self.server,
        }
        return {key: value for key, value in found.items() if value}


def kubernetes_options(
    kubeconfig: Path | None, context: str, server: str, *, wanted: bool
) -> KubernetesOptions | None:
    """None: no Kubernetes. Raises: CommandLineError for what contradicts itself."""
    if not wanted:
        if kubeconfig or context or server:
            raise CommandLineError(
                "install: --kubeconfig, --context and --kubernetes-server go with --kubernetes "
                "(say it too, or leave them out)"
            )
        return None
    if kubeconfig is None:
        raise CommandLineError(
            "install: --kubernetes needs --kubeconfig: as whom this node asks the API server, also "
            "after each boot (the kubelet's does: /etc/kubernetes/kubelet.conf)"
        )
    return KubernetesOptions(kubeconfig.absolute(), context, server)


def node_to_be(source: SourceSettings, asked: str) -> str:
    """The Node that this machine is: `asked`, else as whom the kubeconfig asks, else the host name.

    Raises: LimpetError for a kubeconfig that cannot be used.
    """
    return asked or _node_of_certificate(source) or socket.gethostname().lower()


def find_controllers(source: SourceSettings) -> tuple[str, ...]:
    """Where they are, as the API server says. Raises: LimpetError."""
    from limpet.cloud.enrollment import find_controllers as ask

    addresses, _ = _run(lambda: ask(source))
    return addresses


def examine_node(source: SourceSettings, name: str) -> Iterator[Finding]:
    """Whether the API server is reached, knows the Node, and has the DaemonSet keep off it."""
    from limpet.cloud.second_road.api_server import find_api_server
    from limpet.kubernetes.client import Client
    from limpet.kubernetes.errors import NotFoundError
    from limpet.kubernetes.kinds.objects import Resource, Viewed

    async def labels() -> dict[str, str]:
        client = Client(find_api_server(source))
        try:
            node = await client.get(Resource("Node", "nodes", Viewed), name)
            return node.metadata.labels or {}
        finally:
            client.close()
            await asyncio.sleep(0)

    try:
        found = _run(labels)
    except NotFoundError:
        yield error(
            "kubernetes-no-node",
            f"the cluster has no Node {name}",
            "a node hears and tells under its Node's name",
            "name it: --name NAME (kubectl get nodes), or let its kubelet register first",
        )
    except LimpetError as refused:
        yield warn(
            "kubernetes-not-asked",
            f"the API server is not asked: {refused}",
            "the node goes on with what is on its disk, and hears nothing new",
            "it is tried again by itself; `limpet status` says what became of it",
        )
    else:
        from limpet.kubernetes.pods import AGENT_LABEL, BY_SYSTEMD

        if found.get(AGENT_LABEL) != BY_SYSTEMD:
            yield warn(
                "kubernetes-no-label",
                f"Node {name} has no label {AGENT_LABEL}={BY_SYSTEMD}",
                "where Limpet's DaemonSet is applied, its pod comes here too and gets never ready",
                f"kubectl label node {name} {AGENT_LABEL}={BY_SYSTEMD}",
            )


def _node_of_certificate(source: SourceSettings) -> str:
    """As kubelets are named; empty: the kubeconfig is somebody else's."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    from limpet.cloud.second_road.api_server import find_api_server

    certificate = find_api_server(source).certificate
    if certificate is None:
        return ""
    try:
        pem = certificate.read_bytes() if isinstance(certificate, Path) else certificate
        der = ssl.PEM_cert_to_DER_cert(_first_certificate(pem))
        names = x509.load_der_x509_certificate(der).subject.get_attributes_for_oid(
            NameOID.COMMON_NAME
        )
    except (OSError, ValueError):
        return ""  # asking the API server tells what is wrong with it
    name = str(names[0].value) if names else ""
    return name.removeprefix(_NODE_USER) if name.startswith(_NODE_USER) else ""


def _first_certificate(pem: bytes) -> str:
    """A kubelet's file holds its key too."""
    text = pem.decode("ascii")
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    return begin + text.split(begin, 1)[1].split(end, 1)[0] + end if begin in text else ""


def _run(ask: Callable[[], Awaitable[T]]) -> T:
    async def work() -> T:
        return await ask()

    return asyncio.run(work())
