"""Limpet's custom resources: signed documents <-> objects of the API server. Pure.

An object has three parts beside its metadata: `document`, which is what was signed and alone
counts; `spec`, which says the same for people and is made from it; and, where a controller keeps
more, `record`. Whoever reads takes `document` and checks its signature as of any other document.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from limpet.base.decoding import convert
from limpet.base.errors import LimpetError
from limpet.cluster.documents import Document, Sealed
from limpet.cluster.keys import SealError
from limpet.cluster.kinds import GRANT, KINDS, NETWORK, PRESENCE
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import Network
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.seal import read_sealed

GROUP, VERSION = "limpet.dev", "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
UID_LABEL = f"{GROUP}/uid"
"""Label of grants and presences with the machine's uid: an object is named after its node."""
NETWORK_OBJECT = "default"
"""Name of the one ClusterNetwork."""
MAX_OBJECT_NAME_CHARACTERS = 253
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

Object = Mapping[str, Any]
"""An object of the API server, as its JSON has become."""
T = TypeVar("T")


class ResourceError(LimpetError):
    """An object that is not what its resource should be; names the object, the field, the cause."""


@dataclass(frozen=True, slots=True)
class CustomResource:
    """A custom resource."""

    object_kind: str
    plural: str
    spec: Callable[[Any, str], dict[str, Any]] | None = None
    """What a document's value says, for people; the other argument is the node's name."""

    @property
    def path(self) -> str:
        """Path of all its objects, at the API server."""
        return f"/apis/{API_VERSION}/{self.plural}"


def is_object_name(name: str) -> bool:
    """Whether an object can have it. Source: RFC 1123, as the API server reads it."""
    return (
        len(name) <= MAX_OBJECT_NAME_CHARACTERS
        and name.isascii()
        and _OBJECT_NAME.fullmatch(name) is not None
    )


def node_object_names(node: str, uid: str) -> tuple[str, ...]:
    """Names that a grant and its presence may have, the best first: the next where it is taken."""
    return tuple(name for name in (node, f"{node}.{uid}", uid) if is_object_name(name))


# Documents -> objects


def document_object(document: Document, name: str, node: str = "") -> dict[str, Any]:
    """The object of this name that carries the document. `node`: the name of the node it is of."""
    resource = RESOURCES[document.kind]
    assert resource.spec is not None
    metadata: dict[str, Any] = {"name": name}
    if document.kind != NETWORK.name:
        metadata["labels"] = {UID_LABEL: document.name}
    return {
        "apiVersion": API_VERSION,
        "kind": resource.object_kind,
        "metadata": metadata,
        "spec": resource.spec(document.value, node),
        "document": {
            "body": msgspec.to_builtins(document.sealed.body),
            "signature": msgspec.to_builtins(document.sealed.signature),
        },
    }


def spec_of(document: Document, node: str = "") -> dict[str, Any]:
    """What the document says, for people."""
    spec = RESOURCES[document.kind].spec
    assert spec is not None
    return spec(document.value, node)


def _network_spec(network: Network, _node: str) -> dict[str, Any]:
    return {
        "cluster": network.cluster,
        "podCIDRs": _texts(network.pod_cidrs),
        # A family without pods has no length of its own; the default is as good as any.
        "segmentLengthV4": network.segment_lengths.get(4, 24),
        "segmentLengthV6": network.segment_lengths.get(6, 64),
        "serviceCIDRs": _texts(network.service_cidrs),
        "vxlanID": network.vxlan_id,
        "vxlanPort": network.vxlan_port,
        "defaultCommunity": network.default_community.value,
        "segmentQuota": network.segment_quota,
        "encryption": network.encryption.value,
        "tunnelBackend": network.tunnel_backend.value,
        "communityBackends": {
            name: backend.value for name, backend in network.community_backends.items()
        },
        "services": network.services.value,
        "generation": network.generation,
        "revision": network.revision,
    }


def _grant_spec(grant: Grant, _node: str) -> dict[str, Any]:
    return {
        "node": grant.name,
        "uid": grant.uid,
        "publicKey": msgspec.to_builtins(grant.public_key),
        "generation": grant.generation,
        "revision": grant.revision,
        "segments": _texts(grant.segments),
        "communities": list(grant.communities),
        "roles": sorted(role.value for role in grant.roles),
        "prefixesBehind": _texts(grant.prefixes_behind),
        "labels": dict(grant.labels),
        "supersedes": list(grant.supersedes),
        "vtepMACs": _macs(grant.vtep_macs),
        "removed": grant.tombstone,
    }


def _presence_spec(presence: Presence, node: str) -> dict[str, Any]:
    return {
        "node": node,
        "uid": presence.uid,
        "sequence": presence.sequence,
        "bootID": presence.boot_id,
        "addresses": _texts(presence.addresses),
        "endpoints": [{"address": str(at), "port": port} for at, port in presence.endpoints],
        "port": presence.port,
        "vtepMACs": _macs(presence.vtep_macs),
        "tunnelPort": presence.tunnel_port,
        "relayTLSPort": presence.relay_tls_port,
        "linkMTUBytes": presence.link_mtu_bytes,
    }


def _macs(macs: Mapping[int, str]) -> dict[str, str]:
    return {f"ipv{version}": mac for version, mac in macs.items()}


def _texts(values: tuple[Any, ...]) -> list[str]:
    return [str(value) for value in values]


CLUSTER_NETWORK = CustomResource("ClusterNetwork", "clusternetworks", _network_spec)
NODE_GRANT = CustomResource("NodeGrant", "nodegrants", _grant_spec)
NODE_PRESENCE = CustomResource("NodePresence", "nodepresences", _presence_spec)
COMMUNITY = CustomResource("Community", "communities")
RESOURCES = {
    NETWORK.name: CLUSTER_NETWORK,
    GRANT.name: NODE_GRANT,
    PRESENCE.name: NODE_PRESENCE,
}
"""By the kind of the documents that they carry."""


# Objects -> documents


class Signed(msgspec.Struct, frozen=True):
    """What an object carries of its document, whose kind is the object's."""

    body: bytes
    signature: bytes


class _Metadata(msgspec.Struct, frozen=True):
    name: str


def read_document(kind: str, found: Object) -> Document:
    """What the object carries; the signature is not looked at. Raises: ResourceError."""
    what = describe(RESOURCES[kind], found)
    check_object(RESOURCES[kind], found)
    if "document" not in found:
        raise ResourceError(
            f"read {what}: it has no document: nobody has signed it, so it counts for nothing "
            "(delete it; who has signed one writes it again)"
        )
    signed = read_field(what, found, "document", Signed)
    try:
        return read_sealed(Sealed(kind, signed.body, signed.signature), KINDS)
    except SealError as error:
        raise ResourceError(
            f"read {what}: document: {error} (delete the object; who has signed it writes it again)"
        ) from error


def spec_problem(document: Document, found: Object, node: str = "") -> str:
    """What `spec` says otherwise than what was signed, which counts; empty: nothing."""
    wanted, spec = spec_of(document, node), found.get("spec")
    if not isinstance(spec, Mapping):
        return "spec: it is missing; what was signed counts"
    for field, value in wanted.items():
        # What is empty may be left out.
        if spec.get(field, type(value)()) != value:
            return (
                f"spec.{field}: it says {spec.get(field)!r:.80}, and what was signed says "
                f"{value!r:.80}, which counts"
            )
    return ""


def check_object(resource: CustomResource, found: Object) -> None:
    """Raises: ResourceError for what is no object of the resource, or of a newer Limpet's."""
    what = describe(resource, found)
    version, kind = found.get("apiVersion"), found.get("kind")
    # Items of a list need not say what they are; the list does.
    if version is not None and version != API_VERSION:
        raise ResourceError(
            f"read {what}: apiVersion: it is {version!r:.80}, and this Limpet knows {API_VERSION} "
            "(run the newer Limpet that wrote it; it was not touched)"
        )
    if kind is not None and kind != resource.object_kind:
        raise ResourceError(f"read {what}: kind: it is {kind!r:.80}, not {resource.object_kind}")
    if not is_object_name(read_field(what, found, "metadata", _Metadata).name):
        raise ResourceError(f"read {what}: metadata.name: no object can have it")


def describe(resource: CustomResource, found: Object) -> str:
    """`NodeGrant edge-1`, for words about it; whatever `found` is."""
    metadata = found.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return f"{resource.object_kind} {name if isinstance(name, str) else '?'}"[:300]


def read_field(what: str, found: Object, field: str, kind: type[T]) -> T:
    """A part of an object, by what it should be. Raises: ResourceError, which names it."""
    try:
        return convert(found.get(field), kind, strict=True)
    except msgspec.ValidationError as error:
        cause, _, at = str(error).partition(" - at `$")
        raise ResourceError(f"read {what}: {field}{at.removesuffix('`')}: {cause}") from error
