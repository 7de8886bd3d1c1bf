"""The page's tokens in a Secret of Kubernetes: made by whoever may write it, read by the page."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable, Mapping

import structlog

from limpet.base.errors import LimpetError
from limpet.kubernetes.access.access import Access
from limpet.kubernetes.client import Client
from limpet.kubernetes.errors import NotFoundError
from limpet.kubernetes.kinds.objects import SECRETS, Metadata, Secret
from limpet.web.access.sessions import PageToken
from limpet.web.access.tokens import TokenBook, encode_tokens, parse_tokens

NAME = "limpet-page-tokens"
FOLLOW_S = 5.0
"""So long who was put out may still be in."""
_KEY = "tokens.json"
_log = structlog.get_logger("page")


class TokenSecret(TokenBook):
    """For a command, which asks each time; and for a page, which `follow`s it."""

    def __init__(self, access: Access, namespace: str) -> None:
        self._access = access
        self._namespace = namespace
        self._known: Mapping[str, PageToken] = {}
        self._before: Secret | None = None
        """As `all` has read it."""

    def by_digest(self) -> Mapping[str, PageToken]:
        """As they were when they were read last: at most `FOLLOW_S` ago."""
        return self._known

    async def follow(self) -> None:
        """For ever. What cannot be read stays as it was."""
        client, said = Client(self._access), ""
        try:
            while True:
                try:
                    found, said = await self._read(client), ""
                    self._known = {each.digest: each for each in parsed(found)}
                except LimpetError as error:
                    if str(error) != said:
                        _log.warning("the page's tokens are not read", error=str(error))
                    said = str(error)
                await asyncio.sleep(FOLLOW_S)
        finally:
            client.close()

    def all(self) -> tuple[PageToken, ...]:
        async def read() -> tuple[PageToken, ...]:
            client = Client(self._access)
            try:
                self._before = await self._read(client)
                return parsed(self._before)
            finally:
                client.close()
                await asyncio.sleep(0)  # closed connections get their turn to end

        return asyncio.run(read())

    def _write(self, tokens: Iterable[PageToken]) -> None:
        content = encode_tokens(tokens)

        async def write() -> None:
            client = Client(self._access)
            try:
                before = self._before
                if before is None:
                    metadata = Metadata(name=NAME, labels={"app.kubernetes.io/part-of": "limpet"})
                    secret = Secret(metadata=metadata, data={_KEY: content})
                    await client.create(SECRETS, secret, namespace=self._namespace)
                    return
                changes = {
                    # Refused where somebody else has written meanwhile.
                    "metadata": {"resourceVersion": before.metadata.resource_version},
                    "data": {_KEY: base64.b64encode(content).decode()},
                }
                await client.patch(SECRETS, NAME, changes, namespace=self._namespace)
            finally:
                client.close()
                await asyncio.sleep(0)

        asyncio.run(write())

    async def _read(self, client: Client) -> Secret | None:
        try:
            return await client.get(SECRETS, NAME, namespace=self._namespace)
        except NotFoundError:
            return None


def parsed(secret: Secret | None) -> tuple[PageToken, ...]:
    """Raises: LimpetError."""
    content = ((secret.data if secret is not None else None) or {}).get(_KEY)
    return parse_tokens(content, f"Secret {NAME}") if content else ()
