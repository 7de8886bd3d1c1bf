"""What the controller answers a person's commands: the verbs make it, commands read it, and JSON
output has it so."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from limpet.cluster.kinds.network import (
    DefaultCommunity,
    Encryption,
    ServicesMode,
    TunnelBackend,
)
from limpet.picture.nodes import RelayLoad

Moment = float
"""Seconds since 1970, by the controller's clock."""


class Answer(Struct, frozen=True, kw_only=True):
    """Something that the controller answers."""


class TokenCreated(Answer, frozen=True, kw_only=True):
    """`limpet token create`."""

    id: str
    """By which it is listed and removed; it is no secret."""
    token: str
    expires_at_s: Moment


class TokenLine(Answer, frozen=True, kw_only=True):
    """A token in `limpet token list`."""

    id: str
    state: str
    """unused, held (a machine is about to join with it), used, expired or removed."""
    roles: list[str]
    communities: list[str]
    labels: dict[str, str]
    created_at_s: Moment
    created_by: str
    """Empty: not known."""
    expires_at_s: Moment
    removed_at_s: Moment | None
    removed_by: str
    node: str
    """Name of the node that it let in, or lets in alone; empty: none, or any."""
    uid: str
    """Uid of the node that it let in; empty: none."""


class TokensListed(Answer, frozen=True, kw_only=True):
    """`limpet token list`."""

    tokens: list[TokenLine]


class LetIn(Answer, frozen=True, kw_only=True):
    """A node that is in by a token."""

    id: str
    """Id of the token."""
    node: str
    uid: str


class TokensRemoved(Answer, frozen=True, kw_only=True):
    """`limpet token remove`."""

    removed: list[str]
    """Ids of those that let in nobody any more."""
    let_in: list[LetIn]
    """Nodes that some of those that were named had let in before."""
    unknown: list[str]
    """What was named and is no id of a token."""


class Granted(Answer, frozen=True, kw_only=True):
    """What a node has been granted."""

    name: str
    uid: str
    communities: list[str]
    labels: dict[str, str]
    roles: list[str]
    segments: list[str]
    prefixes_behind: list[str]
    generation: int
    revision: int


class Heard(Granted, frozen=True, kw_only=True):
    """When a node was heard; null: never."""

    joined_at_s: Moment | None
    presence_at_s: Moment | None
    presence_sequence: int | None
    reported_at_s: Moment | None


class NodeLine(Heard, frozen=True, kw_only=True):
    """A node in `limpet node list`."""

    state: str
    """granted, removed, node deleted, awaits replacement or cloned."""
    problems: list[str]
    replaced_by: str
    relay: RelayLoad | None
    """What it carries as a relay, as it has told; null: it is none, or has told nothing."""
    node_uid: str
    """Uid of its Node in Kubernetes; empty: it has none."""
    node_deleted_at_s: Moment | None
    node_pod_cidrs: list[str]
    node_pod_cidrs_used: list[str]


class NodesListed(Answer, frozen=True, kw_only=True):
    """`limpet node list`."""

    nodes: list[NodeLine]


class PresenceShown(Answer, frozen=True, kw_only=True):
    """What a node says of itself."""

    uid: str
    sequence: int
    boot_id: str
    addresses: list[str]
    endpoints: list[str]
    """Where its tunnel is seen from outside, as `[address]:port`."""
    port: int
    vtep_macs: dict[str, str]
    """By `ipv4` and `ipv6`."""
    tunnel_port: int
    relay_tls_port: int
    link_mtu_bytes: int
    era: int


class NodeShown(NodeLine, frozen=True, kw_only=True):
    """`limpet node show`."""

    public_key: str
    """In base64."""
    supersedes: list[str]
    presence: PresenceShown | None
    pods: int | None
    """Number of pods that it reported last as there."""


class NodeRemoved(Answer, frozen=True, kw_only=True):
    """`limpet node remove`."""

    removed: str
    """Its uid."""


class NodeReplaced(Answer, frozen=True, kw_only=True):
    """`limpet node replace`."""

    name: str
    uid: str
    segments: list[str]


class NodeLabelled(Answer, frozen=True, kw_only=True):
    """`limpet node label`."""

    labels: dict[str, str]


class NodeSet(Answer, frozen=True, kw_only=True):
    """`limpet node set`."""

    name: str
    uid: str
    generation: int
    roles: list[str]
    prefixes_behind: list[str]


class SegmentLine(Answer, frozen=True, kw_only=True):
    """A segment in `limpet segment list`."""

    segment: str
    state: str
    """held, resting or unknown."""
    node: str
    uid: str
    resting_since_s: Moment | None


class SegmentsListed(Answer, frozen=True, kw_only=True):
    """`limpet segment list`."""

    segments: list[SegmentLine]


class AddressSpace(Answer, frozen=True, kw_only=True):
    """Address space of all pods and Services."""

    cluster: str
    generation: int
    revision: int
    pod_cidrs: list[str]
    segment_lengths: dict[str, int]
    """By `ipv4` and `ipv6`."""
    service_cidrs: list[str]
    segment_quota: int


class NetworkChanged(AddressSpace, frozen=True, kw_only=True):
    """`limpet network set`."""

    vxlan_id: int
    vxlan_port: int
    default_community: DefaultCommunity
    encryption: Encryption
    tunnel_backend: TunnelBackend
    community_backends: dict[str, TunnelBackend]
    services: ServicesMode
    rotated_at: list[int]
    key: str
    """The key that signs now, in short."""
    keys: list[str]
    """In base64, the oldest first."""


class NetworkShown(NetworkChanged, frozen=True, kw_only=True):
    """`limpet network show`."""

    cluster_revision: int
    free_segments: dict[str, int]
    """By `ipv4` and `ipv6`."""


class PodLine(Answer, frozen=True, kw_only=True):
    """A pod in `limpet pod list`."""

    node: str
    uid: str
    namespace: str
    pod: str
    network: str
    ifname: str
    addresses: list[str]
    kept: bool = False
    """The pod is not there, and the addresses are kept for it."""


class Reporting(Answer, frozen=True, kw_only=True):
    """When a node reported its pods; null: never."""

    node: str
    uid: str
    reported_at_s: Moment | None


class PodsListed(Answer, frozen=True, kw_only=True):
    """`limpet pod list`."""

    pods: list[PodLine]
    nodes: list[Reporting]


class PodPage(PodsListed, frozen=True, kw_only=True, omit_defaults=True):
    """Pods of some nodes, as many as one answer holds."""

    after: str = ""
    """From where on to ask again; empty: that was all."""


class Member(Answer, frozen=True, kw_only=True):
    """A node in a community."""

    name: str
    uid: str
    roles: list[str]
    by_name: bool
    by_selector: bool


class CommunityShown(Answer, frozen=True, kw_only=True):
    """`limpet community show`."""

    name: str
    selector: str
    tunnel_backend: TunnelBackend | None
    nodes: list[Member]


class CommunitiesListed(Answer, frozen=True, kw_only=True):
    """`limpet community list`."""

    communities: list[CommunityShown]


class CommunityChanged(CommunityShown, frozen=True, kw_only=True):
    """`limpet community create` and `add`, and `remove` without --all."""

    changed: int
    """Nodes that were put in or taken out."""


class CommunityDissolved(Answer, frozen=True, kw_only=True):
    """`limpet community remove --all`."""

    changed: int


class PoliciesSigned(Answer, frozen=True, kw_only=True):
    """`limpet policy apply --cluster`."""

    applied: list[str]
    changed: list[str]


class SignedLine(Answer, frozen=True, kw_only=True):
    """A policy in `limpet policy list --cluster`."""

    name: str
    revision: int
    document: dict[str, Any]


class SignedPolicies(Answer, frozen=True, kw_only=True):
    """`limpet policy list --cluster`."""

    policies: list[SignedLine]


class PolicyWithdrawn(Answer, frozen=True, kw_only=True):
    """`limpet policy delete --cluster`."""

    changed: list[str]


class KeyRotated(Answer, frozen=True, kw_only=True):
    """`limpet controller rotate-key`."""

    signed_again: int
    key: str
    rotations: int


class Waiting(Answer, frozen=True, kw_only=True):
    """A node that a restored controller waits for."""

    name: str
    uid: str


class Recovery(Answer, frozen=True, kw_only=True):
    """`limpet controller recovery`."""

    recovering: bool
    granting: bool
    restored_revision: int | None
    began_at_s: Moment | None
    waiting_for: list[Waiting]
    needs_force: bool
    held_back: int
    freed: int
