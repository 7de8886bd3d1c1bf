"""What a node asks the controllers that it joins: to be let in, and then by its own certificate."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from limpet.base.bounds import members
from limpet.base.bounds.servers import REPLACED_BYTES, REPLACED_PODS
from limpet.base.errors import LimpetError
from limpet.base.http.connection import Connection, LinkError
from limpet.base.http.tls import client_context
from limpet.cloud.https import connect_to_controller
from limpet.cloud.link import ControllerRefusedError, read_answer
from limpet.cluster.api import (
    Code,
    Done,
    InterfaceAddresses,
    JoinAnswer,
    JoinBy,
    JoinRequest,
    PodPage,
    ca_digest,
    encode,
    join_proof,
    parse_token,
)
from limpet.cluster.keys import public_key_of

_ATTEMPTS = 3
"""To read all pages of one report; who joins now changes it itself at the earliest."""


@dataclass(frozen=True, slots=True)
class JoinOrder:
    """What a person asks for."""

    token: str
    controllers: tuple[str, ...]
    """As `parse_controller` takes them; the first that answers is asked, all are kept."""
    name: str
    as_new: bool = False
    """With a new key, whatever the node was before; that is kept aside."""
    force: bool = False
    """Although pod addresses overlap the node's LAN."""
    account_ca: str = ""
    """CA of the controllers, PEM: then `token` is that of the pod's account, which names no CA."""

    @property
    def by(self) -> JoinBy:
        return JoinBy.ACCOUNT if self.account_ca else JoinBy.TOKEN


async def ask_each(
    order: JoinOrder, key: bytes, *, keep_key: Callable[[], None]
) -> tuple[str, JoinAnswer]:
    """Who has answered, and what.

    Raises: LinkError that tells what is wrong with each; LimpetError for a refusal of the one that
    leads.
    """
    failures = []
    for at in order.controllers:
        try:
            return at, await _ask(at, order, key, keep_key)
        except LinkError as error:
            failures.append(str(error))
        except ControllerRefusedError as error:
            if error.refused.code is not Code.NOT_LEADER:
                raise _in_words(error, at) from error
            failures.append(str(_in_words(error, at)))
    raise LinkError("; ".join(failures))


async def _ask(at: str, order: JoinOrder, key: bytes, keep_key: Callable[[], None]) -> JoinAnswer:
    """Raises: LinkError, RefusedError."""
    context = await _trust(at, order)
    keep_key()
    request = JoinRequest(
        token=order.token.strip(),
        name=order.name,
        public_key=public_key_of(key),
        proof=join_proof(order.token.strip(), order.name, key),
        by=order.by,
    )
    connection = await connect_to_controller(at, context)
    try:
        answer = await connection.request("POST", "/v1/join", body=encode(request))
    finally:
        connection.close()
    return read_answer(answer, JoinAnswer, at)


async def _trust(at: str, order: JoinOrder) -> ssl.SSLContext:
    """The token tells whose certificates count, where they are not known. Raises: LinkError."""
    if order.account_ca:
        return _context_of(order.account_ca, at)
    connection = await connect_to_controller(at, client_context(None))
    try:
        answer = await connection.request("GET", "/v1/ca")
    finally:
        connection.close()
    try:
        ca = answer.body.decode("ascii")
        digest = ca_digest(ssl.PEM_cert_to_DER_cert(ca))
    except ValueError as error:
        raise LinkError(
            f"join at {at}: what answers is no controller of Limpet: it has no certificate of a CA"
        ) from error
    if digest != parse_token(order.token).ca_digest:
        raise LinkError(
            f"join at {at}: the controller there is not of the cluster that the token is of, or "
            "somebody answers in its place (is the address right? Make a token there: "
            "limpet token create)"
        )
    return _context_of(ca, at)


def _context_of(ca: str, at: str) -> ssl.SSLContext:
    """Raises: LinkError."""
    try:
        return client_context(ca)
    except (ssl.SSLError, ValueError) as error:
        raise LinkError(f"join at {at}: use its CA's certificate: {error}") from error


def _in_words(error: ControllerRefusedError, at: str) -> LimpetError:
    hint = ""
    if error.refused.code is Code.REMOVED:
        hint = ": `limpet join --new-identity` with it"
    return LimpetError(f"join at {at}: refused: {error.refused.error}{hint}")


class ReplacedPods:
    """What a controller tells of the pods of the machine that this one replaces, page by page."""

    def __init__(self, at: str) -> None:
        """`at`: the controller, for words."""
        self._at = at
        self._pods = self._size_bytes = 0
        self.pages: list[PodPage] = []

    def take(self, page: PodPage, size_bytes: int) -> None:
        """Raises: LinkError for more than a controller of ours has of one node."""
        self.pages.append(page)
        self._size_bytes += size_bytes
        self._pods += len(page.pods)
        if self._pods > REPLACED_PODS.most or self._size_bytes > REPLACED_BYTES.most:
            raise LinkError(
                f"join at {self._at}: it tells more pods of the node that this one replaces than "
                f"any node has ({self._pods:,} in {self._size_bytes:,} bytes): is it a controller "
                "of Limpet, of this version?"
            )

    @property
    def is_of_one_report(self) -> bool:
        return len({(page.sequence, page.pages) for page in self.pages}) == 1


@dataclass(frozen=True, slots=True)
class OwnRequests:
    """By the certificate that a controller has made. Raises: LimpetError, each."""

    at: str
    """The controller."""
    ca: str
    """PEM."""
    certificate: Path
    key: Path

    async def fetch_pods(self, pages: int) -> tuple[InterfaceAddresses, ...]:
        """Pods of the machine that this one replaces."""
        if not pages:
            return ()
        connection = await self._connect()
        try:
            for _ in range(_ATTEMPTS):
                numbers = range(min(pages, members.REPORTED_PODS.most))
                found = ReplacedPods(self.at)
                for number in numbers:
                    found.take(*await self._page(connection, number))
                if found.is_of_one_report:
                    return tuple(pod for page in found.pages for pod in page.pods)
                pages = found.pages[0].pages
        except ControllerRefusedError as error:
            raise _in_words(error, self.at) from error
        finally:
            connection.close()
        raise LinkError(
            f"join at {self.at}: what it knows of this node's pods changes all the time"
        )

    async def confirm(self) -> None:
        """All is on the disk: the token may be spent."""
        connection = await self._connect()
        try:
            read_answer(await connection.request("POST", "/v1/joined"), Done, self.at)
        finally:
            connection.close()

    async def _page(self, connection: Connection, number: int) -> tuple[PodPage, int]:
        """And how many bytes it had."""
        answer = await connection.request("GET", f"/v1/pods?page={number}")
        return read_answer(answer, PodPage, self.at), len(answer.body)

    async def _connect(self) -> Connection:
        context = _context_of(self.ca, self.at)
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise LinkError(
                f"join at {self.at}: use the certificate that it made: {error}"
            ) from error
        return await connect_to_controller(self.at, context)
