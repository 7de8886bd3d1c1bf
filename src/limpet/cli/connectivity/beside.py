"""At the API server: what is tried beside pods and nodes, where it was asked for."""

from __future__ import annotations

from limpet.base.errors import LimpetError
from limpet.cli.connectivity import objects
from limpet.cli.connectivity.choice import Options
from limpet.cli.connectivity.plan import Beside
from limpet.cli.connectivity.tasks import ANSWER_PORT, OWN_PORT, ConnectivityTarget, TargetKind
from limpet.kubernetes.client import Client
from limpet.kubernetes.kinds.policies import NETWORK_POLICIES
from limpet.kubernetes.kinds.services import SERVICES, ServiceSpecView
from limpet.kubernetes.pods import create_document


async def make_beside(client: Client, options: Options) -> Beside:
    """The test's Services and its policy, before its pods are there. Raises: LimpetError."""
    if options.policies:
        await create_document(
            client, NETWORK_POLICIES, objects.policy(), namespace=objects.NAMESPACE
        )
    targets: list[ConnectivityTarget] = []
    node_port = 0
    if options.services:
        for each in objects.services():
            await create_document(client, SERVICES, each, namespace=objects.NAMESPACE)
        everybody = await _spec(client, objects.ANSWERERS)
        itself = await _spec(client, objects.OWN)
        name = f"{objects.ANSWERERS}.{objects.NAMESPACE}"
        targets = [
            *(
                ConnectivityTarget(TargetKind.SERVICE, "by its address", each, ANSWER_PORT)
                for each in _ips(everybody)
            ),
            ConnectivityTarget(TargetKind.SERVICE, "by its name", name, ANSWER_PORT),
            *(
                ConnectivityTarget(TargetKind.HAIRPIN, "to itself", ip, OWN_PORT)
                for ip in _ips(itself)
            ),
        ]
        node_port = next((port.node_port or 0 for port in everybody.ports or ()), 0)
    return Beside(options.outside, tuple(targets), node_port, denied=options.policies)


async def _spec(client: Client, name: str) -> ServiceSpecView:
    """Raises: LimpetError."""
    found = (await client.get(SERVICES, name, namespace=objects.NAMESPACE)).spec
    if not _ips(found):
        raise LimpetError(f"make Service {name}: the API server gave it no cluster address")
    return found


def _ips(spec: ServiceSpecView) -> list[str]:
    return [*(spec.cluster_ips or ([spec.cluster_ip] if spec.cluster_ip else []))]
