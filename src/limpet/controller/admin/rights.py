"""Who asks something of the controller by the API server's road, and whether they may."""

from __future__ import annotations

import hashlib
import time

import structlog

from limpet.base.acceptor.places import Source
from limpet.base.bounds.strangers import (
    ACCOUNT_TOKEN,
    REVIEW_SOURCES,
    REVIEWS,
    REVIEWS_OF_ONE,
    REVIEWS_OF_ONE_PER_S,
    REVIEWS_PER_S,
)
from limpet.base.errors import LimpetError
from limpet.base.rate_limit import SourceRates
from limpet.cluster.api import ADMIN_AUDIENCE, ADMIN_HEADER, Code
from limpet.controller.registry.refusal import RefusedError
from limpet.kubernetes.client import Client
from limpet.kubernetes.kinds.objects import TOKEN_REVIEWS, Reviewed, TokenReview, TokenReviewSpec
from limpet.kubernetes.reviews import (
    ACCESS_REVIEWS,
    AccessReview,
    AccessReviewSpec,
    ResourceAttributes,
)

_NEEDED = ResourceAttributes(verb="administer", group="limpet.dev", resource="clusternetworks")
_log = structlog.get_logger("admin")


class Rights:
    """Asks the API server about each request; nothing is remembered, so a right that was taken away
    is gone at once. For one event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        everybody = (REVIEWS_PER_S.most, REVIEWS.most)
        self.rates = SourceRates(
            each=(REVIEWS_OF_ONE_PER_S.most, REVIEWS_OF_ONE.most),
            strangers=everybody,
            members=None,
            most=REVIEW_SOURCES.most,
            each_known=everybody,
        )
        """By where tokens come from, administrators' from the API server; of those each that was
        good stands for itself."""

    async def check(self, token: str, source: Source) -> str:
        """The name of who holds the token, and may administer.

        Raises: RefusedError; LimpetError where the API server does not answer.
        """
        if not token:
            raise RefusedError(
                Code.BAD_TOKEN, f"administer: no token came with it (header {ADMIN_HEADER})"
            )
        if len(token) > ACCOUNT_TOKEN.most or token.count(".") != 2 or not token.isascii():
            raise RefusedError(Code.BAD_TOKEN, "administer: what came is no token of an account")
        one = hashlib.sha256(token.encode()).digest()
        if not self.rates.take(source, time.monotonic(), part=one):
            raise RefusedError(
                Code.TRY_AGAIN, "administer: too many ask at the moment (again in some seconds)"
            )
        user = await self._holder(token)
        asked = AccessReviewSpec(
            resource_attributes=_NEEDED,
            user=user.username,
            uid=user.uid,
            groups=user.groups,
            extra=user.extra,
        )
        review = await self._client.create(ACCESS_REVIEWS, AccessReview(spec=asked))
        if not review.status.allowed:
            raise RefusedError(
                Code.NOT_YOURS,
                f"administer: {user.username} may not (needed: the verb {_NEEDED.verb} on "
                f"{_NEEDED.resource}.{_NEEDED.group}, as the ClusterRole limpet-administrator has)",
            )
        self.rates.know(source, part=one)
        return user.username

    async def _holder(self, token: str) -> Reviewed:
        """Raises: RefusedError, LimpetError."""
        question = TokenReview(spec=TokenReviewSpec(token=token, audiences=[ADMIN_AUDIENCE]))
        try:
            status = (await self._client.create(TOKEN_REVIEWS, question)).status
        except LimpetError as error:
            _log.warning("a token is not reviewed", error=str(error))
            raise
        if not status.authenticated or ADMIN_AUDIENCE not in (status.audiences or ()):
            raise RefusedError(
                Code.BAD_TOKEN,
                f"administer: the API server does not take the token: it is expired, of another "
                f"cluster, or not for {ADMIN_AUDIENCE} ({status.error or 'it says no more'})",
            )
        return status.user
