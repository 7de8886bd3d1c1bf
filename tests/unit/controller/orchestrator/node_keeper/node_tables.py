"""Tables beside Nodes of Kubernetes, which a test sets as it likes."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network

from limpet.controller.node_objects.node import NodeObject, NodeSource
from limpet.controller.registry.tables import Tables
from limpet.controller.state.authority import create_cluster
from tests.unit.controller.state.cluster_tables import network


@dataclass
class Told:
    """What the API server has told."""

    objects: dict[str, NodeObject] = field(default_factory=dict)
    listed: bool = True

    def put(self, name: str, *cidrs: str, created_at: str = "", addresses: str = "") -> None:
        self.objects[name] = NodeObject(
            name,
            uid=f"uid-{name}",
            created_at=created_at,
            pod_cidrs=tuple(map(ip_network, cidrs)),
            addresses=tuple(map(ip_address, addresses.split())),
        )


def tables_beside(
    told: Told,
    *pod_cidrs: str,
    own: tuple[str, ...] = (),
    quarantine_s: float = 100.0,
    **changes: object,
) -> Tables:
    source = NodeSource(True, tuple(map(ip_network, own)), told)
    tables = Tables(quarantine_s, source)
    create_cluster(tables, network(*pod_cidrs, **changes))
    tables.commit()
    return tables
