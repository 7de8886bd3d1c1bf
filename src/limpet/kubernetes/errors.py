"""What the API server refuses, and words for a person.

LimpetError
├── LinkError               it is not reached, or what answers is no API server (base/http)
├── AccessError             as whom to ask it is not known (access.py)
└── StatusError             it says no: its `Status`, with reason and code
    ├── NotFoundError         there is no such object
    ├── NoResourceError       there is no such kind of objects: the definitions are missing
    ├── ExistsError           an object of that name is there
    ├── ConflictError         the object is not any more what the writer has seen
    ├── GoneError             the version to go on from is too old (410)
    ├── FutureVersionError    the version to go on from is not there yet (504): it was restarted
    └── BusyError             ask again later (429, 503)
"""

from __future__ import annotations

from typing import Any

from limpet.base.bounds.servers import REFUSAL_WORDS, RETRY_AFTER_S
from limpet.base.errors import LimpetError
from limpet.kubernetes.kinds.objects import Resource, Status, StatusDetails

_NOT_YET = (
    "the account lacks this right, unless the API server has just started: then it grants it in a "
    "moment"
)
_BUSY = (429, 500, 503, 504)


class StatusError(LimpetError):
    """The API server says no."""

    def __init__(self, words: str, status: Status, *, retry_after_s: float | None = None) -> None:
        super().__init__(words)
        self.status = status
        details = status.details or StatusDetails()
        after_s = max(0, min(details.retry_after_seconds, RETRY_AFTER_S.most))
        self.retry_after_s = retry_after_s or float(after_s) or None
        """When to ask again, as it asks for."""


class NotFoundError(StatusError):
    """There is no such object."""


class NoResourceError(StatusError):
    """There is no such kind of objects."""


class ExistsError(StatusError):
    """An object of that name is there."""


class ObjectConflictError(StatusError):
    """The object is not any more what the writer has seen."""


class GoneError(StatusError):
    """The version to go on from is too old."""


class FutureVersionError(StatusError):
    """The version to go on from is not there yet."""


class BusyError(StatusError):
    """To be asked again later."""


def refusal(
    what: str,
    resource: Resource[Any],
    status: Status,
    *,
    retry_after_s: float | None = None,
    lasts: bool = True,
) -> StatusError:
    """`what`: operation and object, as "list nodegrants.limpet.dev".

    `lasts`: of a right that is lacking, whether that has been so for a while.
    """
    kind, hint = _kind_and_hint(resource, status)
    if status.code == 403 and not lasts:
        hint = _NOT_YET
    said = " ".join(status.message.split())[: REFUSAL_WORDS.most] or f"HTTP status {status.code}"
    words = f"{what}: {said}" + (f" ({hint})" if hint else "")
    return kind(words, status, retry_after_s=retry_after_s)


def _kind_and_hint(resource: Resource[Any], status: Status) -> tuple[type[StatusError], str]:
    code, reason = status.code, status.reason
    if code == 401:
        return StatusError, (
            "it does not know who asks: the token or certificate is expired, or of another cluster"
        )
    if code == 403:
        return StatusError, (
            "the account lacks this right: `kubectl apply -f deploy/limpet.yaml` grants what "
            "Limpet needs"
        )
    if code == 404:
        return _not_found(resource, status)
    if code == 409 and reason == "AlreadyExists":
        return ExistsError, ""
    if code == 409:
        return ObjectConflictError, ""
    if code == 410 or reason in ("Expired", "Gone"):
        return GoneError, ""
    if (
        status.has_cause("ResourceVersionTooLarge")
        or "Too large resource version" in status.message
    ):
        return FutureVersionError, ""
    if code == 422:
        return StatusError, "the object is not as its definition wants it"
    if code in _BUSY:
        return BusyError, ""
    return StatusError, ""


def _not_found(resource: Resource[Any], status: Status) -> tuple[type[StatusError], str]:
    """An object's absence names the object; any other 404 is that of the resource."""
    if status.details is not None and status.details.name:
        return NotFoundError, ""
    if resource.group.endswith("limpet.dev"):
        return NoResourceError, (
            f"it has no {resource}: apply Limpet's definitions with "
            "`kubectl apply -f deploy/crds`, of this version"
        )
    return NoResourceError, f"it has no {resource}: is this a Kubernetes API server?"
