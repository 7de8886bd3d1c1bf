"""What somebody may do, and tokens for an account: questions that are asked by creating them.

Sources: k8s.io/api/authorization/v1, authentication/v1.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from limpet.base.decoding import decode_json
from limpet.base.http.connection import LinkError
from limpet.kubernetes.client import Client
from limpet.kubernetes.kinds.objects import Object, Resource, Viewed


class ResourceAttributes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    verb: str
    group: str
    resource: str


class AccessReviewSpec(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"
):
    resource_attributes: ResourceAttributes | None = None
    user: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class AccessReviewStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    allowed: bool = False
    reason: str = ""


class AccessReview(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    spec: AccessReviewSpec = AccessReviewSpec()
    status: AccessReviewStatus = AccessReviewStatus()


class _TokenRequestStatus(msgspec.Struct, frozen=True):
    token: str


class _TokenRequest(msgspec.Struct, frozen=True):
    status: _TokenRequestStatus


ACCESS_REVIEWS = Resource(
    "SubjectAccessReview", "subjectaccessreviews", AccessReview, "authorization.k8s.io"
)
SERVICE_ACCOUNTS = Resource("ServiceAccount", "serviceaccounts", Viewed, namespaced=True)


async def create_token(
    client: Client, account: str, *, namespace: str, audiences: Sequence[str], for_s: int
) -> str:
    """A token of a service account, for these audiences alone. `for_s`: 600 at least.

    Raises: NotFoundError, StatusError, LinkError.
    """
    what = f"create a token of service account {namespace}/{account}"
    asked = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": list(audiences), "expirationSeconds": for_s},
    }
    answer = await client.ask(
        "POST",
        SERVICE_ACCOUNTS.path(account, namespace=namespace, sub="token"),
        body=msgspec.json.encode(asked),
        headers=[("Content-Type", "application/json")],
    )
    client.check(answer, SERVICE_ACCOUNTS, what)
    try:
        return decode_json(answer.body, _TokenRequest).status.token
    except msgspec.MsgspecError as error:
        raise LinkError(f"{what}: the answer holds no token: {error}") from error
