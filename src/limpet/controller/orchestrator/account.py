"""The node that an agent's pod is on, as the API server judges its token. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from limpet.base.bounds.strangers import ACCOUNT_TOKEN
from limpet.cluster.api import ACCOUNT_AUDIENCE, AGENT_ACCOUNT, Code, JoinRequest
from limpet.controller.registry.refusal import RefusedError
from limpet.kubernetes.kinds.objects import TokenReview, TokenReviewSpec

_EXTRA = "authentication.kubernetes.io"


@dataclass(frozen=True, slots=True)
class AgentPod:
    """Who shows a token, proven by the API server."""

    node: str
    pod: str
    pod_uid: str


def question_about(request: JoinRequest) -> TokenReview:
    """What the API server is asked. Raises: RefusedError for what can't be a pod's token."""
    token = request.token
    if len(token) > ACCOUNT_TOKEN.most or token.count(".") != 2 or not token.isascii():
        raise RefusedError(
            Code.BAD_TOKEN,
            f"join {request.name}: what it shows is no token of a pod's service account",
        )
    return TokenReview(spec=TokenReviewSpec(token=token, audiences=[ACCOUNT_AUDIENCE]))


def read_review(review: TokenReview, request: JoinRequest, namespace: str) -> AgentPod:
    """The pod, if it is the agent of the node that wants in. `namespace`: of Limpet.

    Raises: RefusedError that says what is wrong with the token.
    """
    status = review.status
    audiences = status.audiences or []
    if not status.authenticated:
        raise _refused(
            request,
            f"the API server does not take the pod's token ({status.error or 'it says no more'}): "
            f"it is expired, of another cluster, not for {ACCOUNT_AUDIENCE}, or of a pod that is "
            "gone",
        )
    if ACCOUNT_AUDIENCE not in audiences:
        raise _refused(request, f"the token is not for {ACCOUNT_AUDIENCE}")
    expected = f"system:serviceaccount:{namespace}:{AGENT_ACCOUNT}"
    if status.user.username != expected:
        raise _refused(
            request, f"the token is of {status.user.username}, and agents are {expected}"
        )
    extra = status.user.extra or {}
    node, pod, pod_uid = (
        "".join(extra.get(f"{_EXTRA}/{name}", [])[:1])
        for name in ("node-name", "pod-name", "pod-uid")
    )
    if not node or not pod or not pod_uid:
        raise _refused(
            request,
            "the token names no pod on a node: a kubelet's projected tokens do, from Kubernetes "
            "1.30 on",
        )
    if node != request.name:
        raise _refused(
            request, f"the token is of pod {pod} on node {node}, which speaks for that node only"
        )
    return AgentPod(node, pod, pod_uid)


def _refused(request: JoinRequest, why: str) -> RefusedError:
    return RefusedError(
        Code.BAD_TOKEN,
        f"join {request.name}: {why} (the manifests mount the right token into the pods of "
        "DaemonSet limpet-agent; nodes without such a pod join with one of limpet token create)",
    )
