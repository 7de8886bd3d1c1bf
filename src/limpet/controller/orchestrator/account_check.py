"""Asks the API server whose a pod's token is."""

from __future__ import annotations

import time

import structlog

from limpet.base.acceptor.places import Source
from limpet.base.bounds.strangers import (
    ACCOUNT_REVIEWS,
    ACCOUNT_REVIEWS_OF_ONE,
    ACCOUNT_REVIEWS_OF_ONE_PER_S,
    ACCOUNT_REVIEWS_PER_S,
    REVIEW_SOURCES,
)
from limpet.base.rate_limit import SourceRates
from limpet.cluster.api import Code, JoinRequest
from limpet.controller.orchestrator.account import question_about, read_review
from limpet.controller.registry.refusal import AFTER_S, RefusedError
from limpet.kubernetes.client import Client
from limpet.kubernetes.kinds.objects import TOKEN_REVIEWS

_log = structlog.get_logger("join")


class AccountCheck:
    """For one event loop. Nothing is remembered: the next join is another question."""

    def __init__(self, client: Client, namespace: str) -> None:
        """`client`: of its own, so that a flood of joins does not hold up the Lease."""
        self._client = client
        self._namespace = namespace
        everybody = (ACCOUNT_REVIEWS_PER_S.most, ACCOUNT_REVIEWS.most)
        self.rates = SourceRates(
            each=(ACCOUNT_REVIEWS_OF_ONE_PER_S.most, ACCOUNT_REVIEWS_OF_ONE.most),
            strangers=everybody,
            members=None,
            most=REVIEW_SOURCES.most,
            each_known=everybody,
        )

    async def __call__(self, request: JoinRequest, source: Source) -> None:
        """Returns when the node is the one that the token's pod runs on. `source`: where it asks.

        Raises: RefusedError; LimpetError when the API server does not answer.
        """
        question = question_about(request)
        if not self.rates.take(source, time.monotonic()):
            raise RefusedError(
                Code.TRY_AGAIN, "too many nodes join at once: ask again", after_s=AFTER_S
            )
        review = await self._client.create(TOKEN_REVIEWS, question)
        agent = read_review(review, request, self._namespace)
        self.rates.know(source)
        _log.info("account", node=agent.node, pod=agent.pod, pod_uid=agent.pod_uid)
