"""The controller's HTTPS API: JSON bodies <-> values. Shared by controller and agent.

| request | who | body -> answer |
|---|---|---|
| `GET /healthz` | anybody | -> `{"ok": true}` |
| `GET /v1/ca` | anybody; check it against the token | -> the CA's certificate, PEM |
| `POST /v1/join` | who has a token, of either kind | `JoinRequest` -> `JoinAnswer` |
| `POST /v1/joined` | a node that has the answer to its join on the disk | -> `{}` |
| `POST /v1/hello` | a node, first thing | `HelloRequest` -> `HelloAnswer` |
| `POST /v1/show` | a node, when it was asked to | `ShowRequest` -> `ShowAnswer` |
| `PUT /v1/documents` | a node: what it signs itself | `PublishRequest` -> `PublishAnswer` |
| `POST /v1/segments` | a node | `SegmentRequest` -> `SegmentAnswer` |
| `GET /v1/pods?page=NUMBER` | a node: its own, from 0 | -> `PodPage` |
| `POST /v1/pods` | a node | `PodReport` -> `PodAnswer` |
| `POST /v1/paths` | a node | `PathReport` -> `PathReportAnswer` (`paths.report`) |
| `GET /v1/watch?since=VERSION&kinds=KINDS` | a node | -> `WatchLine`s, one to a line |
| `POST /v1/admin/VERB` | a person, by a token of the API server's | as at the admin socket |

A node is who its TLS certificate says. Every request of a node carries `Limpet-Revision`, the
highest revision that it knows. What is refused answers a `Refused`; the HTTP status follows from
its code.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from enum import StrEnum
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from limpet.base.bounds.administrators import ADMIN_BODY
from limpet.base.bounds.members import NUMBER
from limpet.base.bounds.words import NAME
from limpet.base.decoding import decode_json
from limpet.base.errors import LimpetError
from limpet.cluster.documents import Sealed
from limpet.cluster.keys import is_signed, sign

SERVER_NAME = "controller.limpet"
"""What the controller's certificate names, wherever it is reached: its addresses may change."""
REVISION_HEADER = "Limpet-Revision"
ACCOUNT_AUDIENCE = "limpet.dev/controller"
"""Audience of the pod's token that lets its node in: no API server takes it for anything else."""
AGENT_ACCOUNT = "limpet-agent"
"""Name of the agents' service account, in the controller's namespace."""
ADMIN_AUDIENCE = "limpet.dev/administration"
"""Audience of a person's token: nobody else takes it, the API server neither."""
ADMIN_ACCOUNT = "limpet-administrator"
"""The service account that a person asks the API server for a token of."""
ADMIN_HEADER = "Limpet-Administrator"
"""Header of the token: the API server takes `Authorization` out of what it hands on."""
MAX_BODY_BYTES = ADMIN_BODY.most
"""Largest body of one request."""
MAX_NAME_CHARACTERS = NAME.most
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_JOIN = "join"
TOKEN_MARK = "lmp1"

T = TypeVar("T")
Number = Annotated[int, Meta(ge=0, le=NUMBER.most)]
Sequence = Annotated[int, Meta(ge=-1, le=NUMBER.most)]
"""Sequence of a report; -1: before the first."""


class ApiError(LimpetError):
    """Bytes that are not what the API speaks."""


class Code(StrEnum):
    """Why something was refused; what an agent decides by."""

    BAD_REQUEST = "bad_request"
    TOO_LARGE = "too_large"
    NOT_FOUND = "not_found"
    BAD_TOKEN = "bad_token"
    """Unknown, used or expired: the person needs a new one."""
    BAD_PROOF = "bad_proof"
    """The node does not hold the key that it names."""
    NO_CERTIFICATE = "no_certificate"
    UNKNOWN_NODE = "unknown_node"
    REMOVED = "removed"
    """`document` of the refusal is the tombstone."""
    NOT_YOURS = "not_yours"
    STALE = "stale"
    """`version` of the refusal is what the controller has: jump above it, or send all of it."""
    CLONED = "cloned"
    """Another machine has this identity: stop publishing."""
    QUOTA = "quota"
    EXHAUSTED = "exhausted"
    SHOW = "show"
    """The controller is behind: show it what was signed above `above`, then ask again."""
    SAY_HELLO = "say_hello"
    """The controller was restored since the node's last hello: say it again, then ask again."""
    RECOVERING = "recovering"
    """Restored from an old back-up, grants nothing for now."""
    TOO_OLD = "too_old"
    """Watch without `since`."""
    TRY_AGAIN = "try_again"
    """`after_s` of the refusal, where it has one: not before that."""
    NOT_LEADER = "not_leader"
    """Another controller of the cluster leads: ask the next one."""


HTTP_STATUS = {
    code: status
    for status, codes in {
        400: (Code.BAD_REQUEST,),
        401: (Code.NO_CERTIFICATE,),
        403: (Code.BAD_TOKEN, Code.BAD_PROOF, Code.UNKNOWN_NODE, Code.REMOVED, Code.NOT_YOURS),
        404: (Code.NOT_FOUND,),
        409: (Code.STALE, Code.CLONED, Code.QUOTA, Code.EXHAUSTED, Code.SHOW, Code.SAY_HELLO),
        410: (Code.TOO_OLD,),
        413: (Code.TOO_LARGE,),
        503: (Code.RECOVERING, Code.TRY_AGAIN, Code.NOT_LEADER),
    }.items()
    for code in codes
}


class Refused(msgspec.Struct, frozen=True, omit_defaults=True):
    code: Code
    error: str
    """For a person."""
    above: Number | None = None
    version: Number | None = None
    document: Sealed | None = None
    after_s: float | None = None
    roots: tuple[Sealed, ...] = ()
    """What `document` is checked with, where the node may not know it as it is now."""


class InterfaceAddresses(msgspec.Struct, frozen=True, omit_defaults=True):
    """Addresses that one interface of a pod holds, or that are kept for it."""

    network: str
    namespace: str
    pod: str
    ifname: str
    addresses: tuple[str, ...]
    kept: bool = False
    """The pod is not there: nobody holds one of them."""


class JoinBy(StrEnum):
    """What lets a node in."""

    TOKEN = "token"
    """A join token, which a person made."""
    ACCOUNT = "account"
    """The token of the service account of the agent's pod, which says on which node that is."""


class JoinRequest(msgspec.Struct, frozen=True):
    token: str
    name: str
    public_key: bytes
    proof: bytes
    """`join_proof`."""
    by: JoinBy = JoinBy.TOKEN


class JoinAnswer(msgspec.Struct, frozen=True):
    certificate: str
    """PEM, for the node's own key."""
    ca: str
    """PEM."""
    pinned_key: bytes
    """The cluster's first signing key; all others follow from it."""
    documents: tuple[Sealed, ...]
    """What the node begins with: the network, and its own grant."""
    pod_pages: int = 0
    """`PodPage`s of what the machine that this one replaces reported last."""
    vtep_macs: dict[int, str] = {}
    """MACs of the VXLAN devices that the node had under flannel, by IP version of the underlay:
    other nodes know them."""


class HelloRequest(msgspec.Struct, frozen=True):
    revision: Number
    """The highest that anything in the node's snapshot was made at."""
    documents: tuple[Sealed, ...]
    """The node's own grant and the network, as it has them."""


class HelloAnswer(msgspec.Struct, frozen=True):
    revision: Number
    documents: tuple[Sealed, ...]
    """The network and the node's own grant, as the controller has them."""
    versions: dict[str, Number] = {}
    """Versions of what the node has published, by kind."""
    pods_sequence: Sequence = -1
    show_above: Number | None = None
    """Not None: show all that was signed above this revision, of any node."""


class ShowRequest(msgspec.Struct, frozen=True):
    documents: tuple[Sealed, ...]


class ShowAnswer(msgspec.Struct, frozen=True):
    taken: Number
    """How many of them the controller did not have."""


class PublishRequest(msgspec.Struct, frozen=True):
    document: Sealed


class PublishAnswer(msgspec.Struct, frozen=True):
    version: Number


class SegmentRequest(msgspec.Struct, frozen=True):
    generation: Number
    """Generation of the grant that the node has. A higher one of the controller is the answer."""
    versions: tuple[Number, ...]
    """IP versions, one more segment of each."""


class SegmentAnswer(msgspec.Struct, frozen=True):
    document: Sealed
    """The node's grant."""


class PodReport(msgspec.Struct, frozen=True):
    """Addresses of the pods on a node: all of them, or what changed since `base`."""

    sequence: Sequence
    pods: tuple[InterfaceAddresses, ...]
    base: Sequence | None = None
    """None: this is all. Else the sequence of the report before; pods replace those of the same
    network, namespace, name and interface, and one without addresses is gone."""


class PodAnswer(msgspec.Struct, frozen=True):
    sequence: Sequence


class PodPage(msgspec.Struct, frozen=True):
    """A part of what the controller has of a node's reports."""

    sequence: Sequence
    """Sequence of the report: pages of two reports do not go together."""
    pages: Number
    pods: tuple[InterfaceAddresses, ...]


class Done(msgspec.Struct, frozen=True):
    """What there is to say of what is done."""


class WatchKind(StrEnum):
    DOCUMENT = "document"
    BOOKMARK = "bookmark"
    """All that is known up to `version` has been told; also a sign of life."""
    REFUSED = "refused"
    """The watch ends here."""


class WatchLine(msgspec.Struct, frozen=True, omit_defaults=True):
    kind: WatchKind
    version: str = ""
    """To watch from after a bookmark, which alone has one; it means nothing else."""
    document: Sealed | None = None
    refused: Refused | None = None
    told: tuple[str, ...] | None = None
    """What the controller has to say of the node, for people there, all of it: on a line of kind
    DOCUMENT without one, which agents that do not know of it pass over. None: nothing new."""


encode = msgspec.json.encode


def decode(data: bytes, kind: type[T]) -> T:
    """Raises: ApiError that says where the body is not as it should be."""
    try:
        return decode_json(data, kind)
    except msgspec.MsgspecError as error:
        raise ApiError(f"read {kind.__name__}: {error}") from error


def encode_line(line: WatchLine) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def name_problem(name: str) -> str | None:
    """What is wrong with a name of a node, a community or a label."""
    if not name:
        return "it is empty"
    if len(name) > MAX_NAME_CHARACTERS:
        return f"it has more than {MAX_NAME_CHARACTERS} characters"
    if not _NAME.fullmatch(name):
        return "only letters, digits, '-', '_' and '.', with a letter or digit at either end"
    return None


def label_key_problem(key: str) -> str | None:
    """What is wrong with the key of a node's label: a domain may stand before its name."""
    return next(filter(None, map(name_problem, key.split("/", 1))), None)


# Tokens and proofs


class Token(msgspec.Struct, frozen=True):
    id: str
    secret: bytes
    ca_digest: bytes
    """SHA-256 of the CA's certificate, DER."""


def format_token(token: Token) -> str:
    return "_".join((TOKEN_MARK, token.id, _text(token.secret), _text(token.ca_digest)))


def parse_token(text: str) -> Token:
    """Raises: ApiError, which does not repeat the token."""
    parts = text.strip().split("_")
    if len(parts) != 4 or parts[0] != TOKEN_MARK or not parts[1].isalnum():
        raise ApiError(
            "read token: it is not one that `limpet token create` printed (copied in part?)"
        )
    try:
        token = Token(parts[1], _untext(parts[2]), _untext(parts[3]))
    except binascii.Error as error:
        raise ApiError("read token: it is damaged; copy it again") from error
    if len(token.ca_digest) != 32 or len(token.secret) < 16:
        raise ApiError("read token: it is cut short; copy it again")
    return token


def token_id(text: str) -> str:
    """The part of a token that is no secret; an id stays as it is."""
    mark, _, rest = text.strip().partition("_")
    return rest.partition("_")[0] if mark == TOKEN_MARK else text


def ca_digest(certificate_der: bytes) -> bytes:
    return hashlib.sha256(certificate_der).digest()


def secret_digest(secret: bytes) -> bytes:
    """What the controller keeps of a token."""
    return hashlib.sha256(b"limpet token\0" + secret).digest()


def join_proof(token: str, name: str, private_key: bytes) -> bytes:
    """The node's signature: it holds its key, and wants in with this token under this name."""
    return sign(_JOIN, _claim(token, name), private_key)


def is_join_proof(request: JoinRequest) -> bool:
    claim = _claim(request.token, request.name)
    return is_signed(_JOIN, claim, request.proof, (request.public_key,))


def _claim(token: str, name: str) -> bytes:
    """For one cluster alone: a join token carries its CA's digest, a pod's names its issuer."""
    return hashlib.sha256(token.encode()).digest() + name.encode()


def _text(data: bytes) -> str:
    return base64.b32encode(data).decode().rstrip("=").lower()


def _untext(text: str) -> bytes:
    """Raises: binascii.Error."""
    if not text.isascii():
        raise binascii.Error("not base32")
    return base64.b32decode(text.upper() + "=" * (-len(text) % 8))
