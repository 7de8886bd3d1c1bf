"""Asking the controller from any machine that reaches the API server, which carries the question to
the controller's pods, with a token for nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from limpet.base.decoding import decode_plain_json
from limpet.base.errors import ControllerUnavailable, LimpetError
from limpet.base.http.connection import HttpAnswer, LinkError
from limpet.cluster.api import ADMIN_ACCOUNT, ADMIN_AUDIENCE, ADMIN_HEADER, Code
from limpet.controller.admin.client import BY_HEADER
from limpet.kubernetes.access.access import Access, AccessError
from limpet.kubernetes.client import Client
from limpet.kubernetes.errors import NotFoundError, StatusError
from limpet.kubernetes.lists import Selection
from limpet.kubernetes.pods import PODS, Pod, post_to_pod
from limpet.kubernetes.reviews import create_token

_CONTROLLERS = "app.kubernetes.io/part-of=limpet,app.kubernetes.io/component=controller"
_ANSWER_S = 120.0
_TOKEN_S = 600
"""The shortest that an API server makes."""
_AGAIN_S, _TRIES = 3.0, 8
"""While none leads: a Lease that nobody renews is another's after 15 s."""
_PORT = 7470


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """Access to the cluster whose controller is asked."""

    access: Access
    namespace: str

    def __str__(self) -> str:
        return f"{self.access.server} ({self.access.source})"


def call_cluster(cluster: ClusterAccess, verb: str, **arguments: Any) -> dict[str, Any]:
    """The answer of the controller that leads.

    Raises: ControllerUnavailable when nobody answers; LimpetError with its words on failure.
    """
    return asyncio.run(_call(cluster, verb, json.dumps(arguments).encode()))


class Caller:
    """Asks again and again: keeps its token, and the pod that led. For one event loop."""

    def __init__(self, cluster: ClusterAccess) -> None:
        self._cluster = cluster
        self._client: Client | None = None
        self._leader: Pod | None = None
        self._token = ""
        self._until_s = 0.0

    async def __call__(self, verb: str, *, by: str = "", **arguments: Any) -> dict[str, Any]:
        """`by`: for whom it is asked, for the log there.

        Raises: ControllerUnavailable when nobody answers; LimpetError with its words on failure.
        """
        if self._client is None:
            self._client = Client(self._cluster.access, answer_s=_ANSWER_S)
        client, body = self._client, json.dumps(arguments).encode()
        with _in_words(self._cluster):
            if self._until_s < time.monotonic():
                self._token = await _token(client, self._cluster)
                self._until_s = time.monotonic() + _TOKEN_S / 2
            asked = _Asked(verb, body, self._token, by)
            if self._leader is not None:
                found = await _ask(client, self._leader, asked, {})
                if found is not None:
                    return found
                self._leader = None
            pods = await _controllers(client, self._cluster)
            self._leader, found = await _of_leader(client, self._cluster, pods, asked, tries=1)
            return found

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


@dataclass(frozen=True, slots=True)
class _Asked:
    verb: str
    body: bytes
    token: str
    by: str = ""


async def _call(cluster: ClusterAccess, verb: str, body: bytes) -> dict[str, Any]:
    client = Client(cluster.access, answer_s=_ANSWER_S)
    try:
        with _in_words(cluster):
            pods = await _controllers(client, cluster)
            asked = _Asked(verb, body, await _token(client, cluster))
            return (await _of_leader(client, cluster, pods, asked, tries=_TRIES))[1]
    finally:
        client.close()
        await asyncio.sleep(0)  # closed connections get their turn to end


@contextlib.contextmanager
def _in_words(cluster: ClusterAccess) -> Iterator[None]:
    try:
        yield
    except StatusError as error:
        raise _lacking(cluster, error) from error
    except (AccessError, LinkError) as error:
        raise ControllerUnavailable(f"ask the controller through {cluster}: {error}") from error


async def _of_leader(
    client: Client, cluster: ClusterAccess, pods: list[Pod], asked: _Asked, *, tries: int
) -> tuple[Pod, dict[str, Any]]:
    """Who leads, and its answer. Raises: LimpetError, LinkError."""
    why: dict[str, str] = {}
    follows = False
    for attempt in range(tries):
        if attempt:
            await asyncio.sleep(_AGAIN_S)
        for pod in pods:
            found = await _ask(client, pod, asked, why)
            if found is not None:
                return pod, found
        # Who becomes the leader does not listen for a moment.
        before, follows = follows, any(words.startswith(_FOLLOWS) for words in why.values())
        if attempt and not (before or follows):
            break
    told = "; ".join(f"{name}: {words}" for name, words in why.items())
    raise ControllerUnavailable(
        f"ask the controller through {cluster}: none of its pods in namespace "
        f"{cluster.namespace} answers as the one that leads: {told}"
    )


async def _controllers(client: Client, cluster: ClusterAccess) -> list[Pod]:
    """Pods that may answer. Raises: LimpetError."""
    selection = Selection(cluster.namespace, labels=_CONTROLLERS)
    found = [pod async for page in client.pages(PODS, selection=selection) for pod in page.items]
    pods = [pod for pod in found if pod.addresses and not pod.metadata.deletion_timestamp]
    if not pods:
        state = ", ".join(f"{pod.metadata.name} is {pod.status.phase}" for pod in found)
        raise ControllerUnavailable(
            f"find Limpet's controller through {cluster}: "
            + (
                f"no pod of it has an address yet in namespace {cluster.namespace}: {state} "
                f"(kubectl -n {cluster.namespace} describe pods)"
                if found
                else f"there is none in namespace {cluster.namespace} (is this the cluster, or is "
                "it elsewhere: --context, --namespace? kubectl apply -f deploy/limpet.yaml "
                "installs it)"
            )
        )
    return pods


async def _token(client: Client, cluster: ClusterAccess) -> str:
    """Raises: LimpetError."""
    try:
        return await create_token(
            client,
            ADMIN_ACCOUNT,
            namespace=cluster.namespace,
            audiences=[ADMIN_AUDIENCE],
            for_s=_TOKEN_S,
        )
    except NotFoundError as error:
        raise ControllerUnavailable(
            f"ask the controller through {cluster}: there is no service account {ADMIN_ACCOUNT} in "
            f"namespace {cluster.namespace} (kubectl apply -f deploy/limpet.yaml of this version)"
        ) from error


_FOLLOWS = "this controller does not lead"


async def _ask(
    client: Client, pod: Pod, asked: _Asked, why: dict[str, str]
) -> dict[str, Any] | None:
    """None: this one is not who can answer; `why` says so by the pod's name.

    Raises: LimpetError with the controller's words on failure.
    """
    name, headers = pod.metadata.name, [(ADMIN_HEADER, asked.token)]
    if asked.by:
        headers.append((BY_HEADER, asked.by))
    path = f"/v1/admin/{asked.verb}"
    try:
        answer = await post_to_pod(client, pod, _port(pod), path, asked.body, headers)
    except StatusError as error:
        if error.status.code == 403:
            raise
        why[name] = str(error)
        return None
    document = document_of(answer)
    if answer.status == 200:
        return document
    words = str(document.get("error") or f"it answers with HTTP status {answer.status}")
    if document.get("code") == Code.NOT_LEADER or not document:
        why[name] = words
        return None
    raise LimpetError(words)


def document_of(answer: HttpAnswer) -> dict[str, Any]:
    """Empty: it speaks otherwise than a controller."""
    try:
        found = decode_plain_json(answer.body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _port(pod: Pod) -> int:
    """Port of the pod's API, as the manifests name it."""
    for container in pod.spec.containers or ():
        for port in container.ports or ():
            if port.name == "api" and port.container_port:
                return port.container_port
    return _PORT


def _lacking(cluster: ClusterAccess, error: StatusError) -> LimpetError:
    if error.status.code != 403:
        return ControllerUnavailable(f"ask the controller through {cluster}: {error}")
    return LimpetError(
        f"ask the controller through {cluster}: {' '.join(error.status.message.split())} (the Role "
        f"limpet-administration of namespace {cluster.namespace} has what is needed: kubectl -n "
        f"{cluster.namespace} create rolebinding NAME --role limpet-administration --user USER)"
    )
