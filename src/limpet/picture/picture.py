"""The whole picture."""

from __future__ import annotations

from limpet.picture.nodes import Node, Relay, Site
from limpet.picture.pair import Pair
from limpet.picture.said import AtS, Finding, Shown
from limpet.picture.workloads import Workloads


class Viewer(Shown, frozen=True, kw_only=True):
    """Who looks: a node, or the controller."""

    kind: str
    """`node` or `controller`."""
    name: str
    uid: str = ""
    """Uid of the node."""
    version: str = ""
    connected: bool | None = None
    """Whether a node hears the cloud. None: it has none to hear."""
    cloud: str = ""
    """In words: since when it hears it or does not, and why."""


class Network(Shown, frozen=True, kw_only=True):
    """What the cluster is."""

    name: str = ""
    pod_cidrs: tuple[str, ...] = ()
    service_cidrs: tuple[str, ...] = ()
    default_community: str = ""
    encryption: str = ""
    backend: str = ""
    key: str = ""
    """Key that signs for the cluster, in short."""


class Community(Shown, frozen=True, kw_only=True):
    """Nodes that may talk."""

    name: str
    members: tuple[str, ...] = ()
    """Uids."""
    selector: str = ""
    backend: str = ""


class LeftOut(Shown, frozen=True, kw_only=True):
    """How many there are more than the picture shows, so that it stays small."""

    pairs: int = 0
    services: int = 0
    policies: int = 0


class Also(Shown, frozen=True, kw_only=True):
    """What else a picture says."""

    findings: tuple[Finding, ...] = ()
    left_out: LeftOut = LeftOut()


class Picture(Shown, frozen=True, kw_only=True):
    """What there is, as who looks knows it at one moment.

    `sites`, `nodes`, `pairs` and the rest are in the order of their names or uids, so that equal
    states are equal pictures.
    """

    as_of_s: AtS
    version: str = ""
    """Another one when anything but `as_of_s` is another."""
    revision: int = 0
    """Highest revision of the cluster's documents that who looks knows."""
    viewer: Viewer
    network: Network = Network()
    sites: tuple[Site, ...] = ()
    nodes: tuple[Node, ...] = ()
    pairs: tuple[Pair, ...] = ()
    """Without those that are not allowed: communities say which these are."""
    relays: tuple[Relay, ...] = ()
    communities: tuple[Community, ...] = ()
    workloads: Workloads = Workloads()
    also: Also = Also()


class Unchanged(Shown, frozen=True, kw_only=True):
    """The picture is the one that whoever asks has."""

    unchanged: bool
    """True: in place of a picture."""
    as_of_s: AtS
    version: str
