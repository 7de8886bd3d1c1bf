"""Objects of the API as they are written, those that several rooms need, and where each is found.

A struct that is read only (`Viewed`) may leave fields out; one that is written back (`Object`) has
all that anybody may have set in it, or replacing it would take those away.
Source: k8s.io/apimachinery/pkg/apis/meta/v1/types.go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from limpet.base.bounds.tenants import OBJECT_LABELS

Name = Annotated[str, msgspec.Meta(pattern=r"^[!-~]{0,253}\Z")]
"""Name of any object: some kinds allow colons and more, and no kind what cannot be seen."""
LabelKey = Annotated[str, msgspec.Meta(pattern=r"^[!-~]{0,317}\Z")]
LabelValue = Annotated[str, msgspec.Meta(pattern=r"^[!-~]{0,63}\Z")]
Labels = Annotated[dict[LabelKey, LabelValue], msgspec.Meta(max_length=OBJECT_LABELS.most)]


class Metadata(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What `managedFields` says is left out: the API server keeps it by itself."""

    name: Name = ""
    generate_name: Name = ""
    namespace: Name = ""
    uid: Name = ""
    resource_version: Name = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: Labels | None = None
    annotations: dict[LabelKey, str] | None = None
    owner_references: list[dict[str, Any]] | None = None
    finalizers: list[str] | None = None


class Viewed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """An object that is read, and changed by a patch only."""

    metadata: Metadata = Metadata()


class Object(Viewed, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """An object that is written as a whole; the client adds `apiVersion` and `kind`."""


AnyViewed = TypeVar("AnyViewed", bound=Viewed)


@dataclass(frozen=True)
class Resource(Generic[AnyViewed]):
    """Objects of one kind, and where the API has them."""

    kind: str
    plural: str
    type: type[AnyViewed]
    group: str = ""
    version: str = "v1"
    namespaced: bool = False

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, name: str = "", *, namespace: str = "", sub: str = "") -> str:
        """Path of one object; without a name, of all. `namespace`: empty: all of them.

        Raises: ValueError for a name with which another path would be asked.
        """
        for part in (name, namespace):
            if part in (".", "..") or "/" in part:
                raise ValueError(f"{part!r} is no name of an object")
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts += [self.plural, *([quote(name, safe="")] if name else []), *([sub] if sub else [])]
        return "/" + "/".join(parts)


class StatusCause(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    group: str = ""
    kind: str = ""
    retry_after_seconds: int = 0
    causes: list[StatusCause] | None = None


class Status(msgspec.Struct, frozen=True):
    """How the API server says no."""

    status: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None

    def has_cause(self, reason: str) -> bool:
        causes = self.details.causes if self.details is not None else None
        return any(cause.reason == reason for cause in causes or ())


# Resources of Kubernetes itself


class Secret(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    data: dict[str, bytes] | None = None
    type: str = "Opaque"
    immutable: bool | None = None


class ConfigMap(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    data: dict[str, str] | None = None
    binary_data: dict[str, bytes] | None = None
    immutable: bool | None = None


class LeaseSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    """RFC 3339 with microseconds."""
    renew_time: str | None = None
    lease_transitions: int | None = None
    strategy: str | None = None
    preferred_holder: str | None = None


class Lease(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    spec: LeaseSpec = LeaseSpec()


class Reviewed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whom a token is of."""

    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class TokenReviewSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    token: str = ""
    audiences: list[str] | None = None


class TokenReviewStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    authenticated: bool = False
    user: Reviewed = Reviewed()
    audiences: list[str] | None = None
    """Audiences of the token, of those asked for; none: the API server knows nothing of them."""
    error: str = ""


class TokenReview(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Nothing of it is kept: creating one is the question. Source: authentication/v1/types.go."""

    spec: TokenReviewSpec = TokenReviewSpec()
    status: TokenReviewStatus = TokenReviewStatus()


SECRETS = Resource("Secret", "secrets", Secret, namespaced=True)
CONFIG_MAPS = Resource("ConfigMap", "configmaps", ConfigMap, namespaced=True)
LEASES = Resource("Lease", "leases", Lease, "coordination.k8s.io", namespaced=True)
TOKEN_REVIEWS = Resource("TokenReview", "tokenreviews", TokenReview, "authentication.k8s.io")
