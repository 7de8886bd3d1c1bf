"""Asks the API server whose a pod's token is."""

from __future__ import annotations

import time

import structlog

from limpet.base.bounds.strangers import ACCOUNT_REVIEWS, ACCOUNT_REVIEWS_PER_S
from limpet.base.rate_limit import TokenBuckets
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
        self._rate = TokenBuckets(ACCOUNT_REVIEWS_PER_S.most, ACCOUNT_REVIEWS.most, most=1)

    async def __call__(self, request: JoinRequest) -> None:
        """Returns when the node is the one that the token's pod runs on.

        Raises: RefusedError; LimpetError when the API server does not answer.
        """
        question = question_about(request)
        if not self._rate.take("", time.monotonic()):
            raise RefusedError(
                Code.TRY_AGAIN, "too many nodes join at once: ask again", after_s=AFTER_S
            )
        review = await self._client.create(TOKEN_REVIEWS, question)
        agent = read_review(review, request, self._namespace)
        _log.info("account", node=agent.node, pod=agent.pod, pod_uid=agent.pod_uid)
