"""Chooses the nodes that are tried, and tells what is known of them before."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from limpet.base.errors import LimpetError
from limpet.cli.connectivity.plan import TriedNode
from limpet.cli.connectivity.tasks import ConnectivityTarget
from limpet.kubernetes.client import Client
from limpet.kubernetes.errors import NotFoundError, StatusError
from limpet.kubernetes.kinds.objects import Resource, Viewed
from limpet.kubernetes.lists import Selection


@dataclass(frozen=True, slots=True)
class Options:
    nodes: tuple[str, ...] = ()
    """By name; none: all that are Ready."""
    selector: str = ""
    image: str = ""
    """Empty: that of the DaemonSet."""
    outside: tuple[ConnectivityTarget, ...] = ()
    others: int = 16
    namespace: str = "limpet-system"
    """Namespace of Limpet."""
    start_s: float = 120.0
    services: bool = False
    policies: bool = False


@dataclass(slots=True)
class Chosen:
    """Nodes in the order of their names."""

    nodes: list[TriedNode]
    left_out: dict[str, str] = field(default_factory=dict)
    """Nodes that are not tried, and why."""


class _Condition(msgspec.Struct, frozen=True):
    type: str = ""
    status: str = ""


class _Address(msgspec.Struct, frozen=True):
    type: str = ""
    address: str = ""


class _NodeStatus(msgspec.Struct, frozen=True):
    addresses: list[_Address] | None = None
    conditions: list[_Condition] | None = None


class _Node(Viewed, frozen=True, kw_only=True, omit_defaults=True):
    status: _NodeStatus = _NodeStatus()

    @property
    def is_ready(self) -> bool:
        found = self.status.conditions or ()
        return any(each.type == "Ready" and each.status == "True" for each in found)


class _GrantSpec(msgspec.Struct, frozen=True):
    node: str = ""
    segments: list[str] | None = None


class _Grant(Viewed, frozen=True, kw_only=True, omit_defaults=True):
    spec: _GrantSpec = _GrantSpec()


class _Container(msgspec.Struct, frozen=True):
    image: str = ""


class _PodSpec(msgspec.Struct, frozen=True):
    containers: list[_Container] | None = None


class _Template(msgspec.Struct, frozen=True):
    spec: _PodSpec = _PodSpec()


class _SetSpec(msgspec.Struct, frozen=True):
    template: _Template = _Template()


class _DaemonSet(Viewed, frozen=True, kw_only=True, omit_defaults=True):
    spec: _SetSpec = _SetSpec()


_NODES = Resource("Node", "nodes", _Node)
_GRANTS = Resource("NodeGrant", "nodegrants", _Grant, "limpet.dev", "v1alpha1")
_DAEMON_SETS = Resource("DaemonSet", "daemonsets", _DaemonSet, "apps", namespaced=True)


async def choose(client: Client, options: Options) -> Chosen:
    """Raises: LimpetError."""
    found = {
        node.metadata.name: node
        async for page in client.pages(_NODES, selection=Selection(labels=options.selector))
        for node in page.items
    }
    if unknown := sorted(set(options.nodes) - found.keys()):
        among = f" with labels {options.selector}" if options.selector else ""
        raise LimpetError(f"choose nodes: there is no node {', '.join(unknown)}{among}")
    named = {name: found[name] for name in options.nodes} or {
        name: node for name, node in found.items() if node.is_ready
    }
    left_out = {} if options.nodes else {n: "it is not Ready" for n in found if n not in named}
    if not named:
        raise LimpetError(
            f"choose nodes: none of {len(found)} is Ready (kubectl get nodes; --nodes names some "
            "that are tried all the same)"
        )
    return Chosen(
        [
            TriedNode(
                name,
                tuple(e.address for e in node.status.addresses or () if e.type == "InternalIP"),
            )
            for name, node in sorted(named.items())
        ],
        left_out,
    )


async def find_segments(client: Client) -> dict[str, list[str]]:
    """Segments of each node; a removed node has none. Empty where there are no such objects.

    To be asked when pods have their addresses: a node may be Ready before it is granted anything.
    """
    found: dict[str, list[str]] = {}
    try:
        async for page in client.pages(_GRANTS):
            for grant in page.items:
                found.setdefault(grant.spec.node, []).extend(grant.spec.segments or ())
    except StatusError:
        return {}
    return found


async def find_image(client: Client, namespace: str) -> str:
    """Raises: LimpetError."""
    try:
        limpet = await client.get(_DAEMON_SETS, "limpet-agent", namespace=namespace)
    except NotFoundError as error:
        raise LimpetError(
            f"choose the image: there is no DaemonSet limpet-agent in namespace {namespace} whose "
            "image the nodes have (--namespace says where it is, --image names one)"
        ) from error
    containers = limpet.spec.template.spec.containers or [_Container()]
    return containers[0].image
