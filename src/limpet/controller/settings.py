"""The controller's configuration file: TOML -> Settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict

from limpet.base.addresses import parse_listen
from limpet.base.configuration import (
    CONTROLLER_PATH,
    CONTROLLER_SOCKET,
    CONTROLLER_VARIABLE,
    AbsolutePath,
    Listens,
    LogLevel,
    Port,
    Prefixes,
    Text,
    parse_configuration,
    read_configuration,
    written,
)
from limpet.base.errors import ConfigError
from limpet.cluster.api import name_problem
from limpet.cluster.kinds.network import DefaultCommunity, Network
from limpet.cluster.segments import network_problems, own_cidr_problems
from limpet.controller.node_objects.node import FABEDGE_LABELS, KnownNodes, NodeSource

_FIXED = ("cluster", "pod_cidrs", "segment_lengths")
"""Fields of a network that can never change: every segment was cut by them."""


def _name(value: str) -> str:
    if problem := name_problem(value):
        raise ValueError(problem)
    return value


_Patience = Annotated[float, Meta(gt=0, lt=1e10)]


class NetworkSettings(Struct, frozen=True, kw_only=True):
    """What a cluster is made with."""

    cluster: Annotated[str, written(str, _name, "a name")] = "limpet"
    pod_cidrs: Prefixes = (ip_network("10.244.0.0/16"), ip_network("fd00:244::/48"))
    segment_length_v4: Annotated[int, Meta(ge=1, le=32)] = 24
    segment_length_v6: Annotated[int, Meta(ge=1, le=128)] = 64
    service_cidrs: Prefixes = ()
    vxlan_id: Annotated[int, Meta(ge=1, le=(1 << 24) - 1)] = 1
    vxlan_port: Port = 8472
    default_community: DefaultCommunity | None = None
    """Set at each start; None: a new cluster is flat, later `limpet network set` decides."""
    segment_quota: Annotated[int, Meta(ge=1, le=1024)] = 8

    def __post_init__(self) -> None:
        for problem in network_problems(self.network):
            raise ValueError(problem)

    @property
    def network(self) -> Network:
        """Generation, revision and keys mean nothing."""
        values = asdict(self)
        lengths = {version: values.pop(f"segment_length_v{version}") for version in (4, 6)}
        values["default_community"] = self.default_community or DefaultCommunity.ALL
        return Network(generation=0, revision=0, keys=(), segment_lengths=lengths, **values)


class StoreSettings(Struct, frozen=True, kw_only=True, rename={"server": "kubernetes_server"}):
    """Where the controller's state lives."""

    store: Literal["sqlite", "kubernetes"] = "sqlite"
    kubeconfig: AbsolutePath | None = None
    """The API server's kubeconfig; None: KUBECONFIG, the account of the pod it runs in, ~/.kube."""
    namespace: Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")] = "limpet"
    """Namespace of its Secrets, ConfigMaps and Lease at the API server."""
    server: Text | None = None
    """URL of the API server, in place of the kubeconfig's or of what the pod's environment says."""
    advertise: tuple[Annotated[str, Meta(pattern=r"^[A-Za-z0-9.:_\[\]-]{1,300}\Z")], ...] = ()
    """Where nodes reach the controllers; empty: each that leads tells its own addresses."""
    flannel: bool = False
    """Some of the Nodes are run by flannel: they and ours are peers on one VXLAN."""

    def __post_init__(self) -> None:
        if self.flannel and self.store != "kubernetes":
            raise ValueError(
                'flannel = true: its nodes are heard of by their Nodes (set store = "kubernetes")'
            )


class NodeObjectSettings(Struct, frozen=True, kw_only=True):
    """What is made of Kubernetes' Nodes."""

    segments_from: Literal["controller", "nodes"] = "controller"
    own_cidrs: Prefixes = ()
    """With `segments_from = "nodes"`: the part of the pod CIDRs that Kubernetes leaves to the
    controller."""
    fabedge_labels: bool = False
    """Labels as FabEdge spells them put nodes into communities, too."""
    node_grace_s: Annotated[float, Meta(ge=0, lt=1e10)] = 3600.0
    """How long a node stays whose Node was deleted."""

    def __post_init__(self) -> None:
        if self.own_cidrs and not self.from_nodes:
            raise ValueError(
                'own_cidrs: is for segments_from = "nodes"; else it has all of pod_cidrs'
            )

    @property
    def from_nodes(self) -> bool:
        return self.segments_from == "nodes"

    def source(self, nodes: KnownNodes) -> NodeSource:
        return NodeSource(
            self.from_nodes,
            self.own_cidrs if self.from_nodes else None,
            nodes,
            FABEDGE_LABELS if self.fabedge_labels else (),
        )


class WaitSettings(Struct, frozen=True, kw_only=True):
    """How long the API waits for those who ask."""

    patience_s: _Patience = 30.0
    """Seconds for a request's body to arrive, and for a watcher to read what it is sent."""
    idle_s: _Patience = 75.0
    """How long a connection may stay open without a request; agents keep theirs for the next."""


class LookSettings(Struct, frozen=True, kw_only=True):
    """What people see of the cluster: when a node counts as silent, and the page."""

    silent_after_s: Annotated[float, Meta(gt=0, lt=1e10)] = 300.0
    """A node of which nothing was heard for so long is silent."""
    page_listen: Text | None = None
    """Address and port of `limpet ui --controller`; None: 127.0.0.1, port 7480."""
    page_names: tuple[Annotated[str, Meta(pattern=r"^[A-Za-z0-9.:-]{1,253}\Z")], ...] = ()
    """Names that people call the page by, beside its addresses."""
    page_certificate: AbsolutePath | None = None
    """PEM, with its chain; None: beyond loopback the page makes one of its own."""
    page_key: AbsolutePath | None = None
    """Private key of the certificate, PEM."""

    def __post_init__(self) -> None:
        if self.page_listen is not None:
            parse_listen(self.page_listen)
        if (self.page_certificate is None) is not (self.page_key is None):
            raise ValueError("page_certificate and page_key belong together")


class ControllerSettings(Struct, frozen=True, kw_only=True):
    """Settings of the controller; docs/controller.md says the same in words."""

    listen: Listens = (("::", 7470),)
    """Addresses and ports of the HTTPS API."""
    metrics_listen: Listens = ()
    """Where /metrics and /healthz are served in clear; empty: nowhere but on the admin socket."""
    state_dir: AbsolutePath = Path("/var/lib/limpet/controller")
    socket: AbsolutePath = CONTROLLER_SOCKET
    quarantine_s: Annotated[float, Meta(ge=0, lt=1e10)] = 7 * 86_400.0
    """How long segments rest after their node was removed, by the controller's clock."""
    restore_margin: Annotated[int, Meta(ge=0, le=100_000)] = 64
    """Segments of each family that are held back after a restore, at least."""
    waits: WaitSettings = WaitSettings()
    log_level: LogLevel = "info"
    cluster: NetworkSettings = NetworkSettings()
    place: StoreSettings = StoreSettings()
    nodes: NodeObjectSettings = NodeObjectSettings()
    looks: LookSettings = LookSettings()

    def __post_init__(self) -> None:
        if self.nodes.from_nodes and self.place.store != "kubernetes":
            raise ValueError('segments_from = "nodes" needs store = "kubernetes": Nodes are there')
        for problem in own_cidr_problems(self.network, self.nodes.own_cidrs):
            raise ValueError(problem)

    @property
    def database(self) -> Path:
        return self.state_dir / "controller.db"

    @property
    def network(self) -> Network:
        """The network that a cluster is made with; generation, revision and keys mean nothing."""
        return self.cluster.network


def load_settings(path: Path | None) -> ControllerSettings:
    """Settings of `path`; when None, of the file that LIMPET_CONTROLLER_CONFIG names, or of the
    default path.

    All defaults when nothing names a file and that one is not there.
    Raises: ConfigError that names value, field and file.
    """
    document, source = read_configuration(
        path, variable=CONTROLLER_VARIABLE, default=CONTROLLER_PATH
    )
    return parse_settings(document, source)


def parse_settings(document: Mapping[str, Any], source: str) -> ControllerSettings:
    """Raises: ConfigError that names value, field and `source`."""
    return parse_configuration(ControllerSettings, document, source)


def next_network(present: Network, settings: ControllerSettings) -> Network | None:
    """What the configuration makes of the cluster's network; None: nothing new.

    Raises: ConfigError for what is chosen once and differs.
    """
    wanted = settings.network
    for name in _FIXED:
        is_now, should_be = getattr(present, name), getattr(wanted, name)
        if is_now != should_be:
            raise ConfigError(
                f"read configuration: {name} = {_text(should_be)}, and the cluster was made with "
                f"{_text(is_now)}: its segments are cut by that, so it can't change (put it back, "
                "or make a new cluster in another state_dir)"
            )
    following = replace(
        wanted,
        generation=present.generation,
        revision=present.revision,
        keys=present.keys,
        default_community=settings.cluster.default_community or present.default_community,
        encryption=present.encryption,
        tunnel_backend=present.tunnel_backend,
        community_backends=present.community_backends,
        services=present.services,
    )
    return None if following == present else following


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if isinstance(value, Mapping):
        return ", ".join(f"IPv{version} /{length}" for version, length in value.items())
    return str(value)
