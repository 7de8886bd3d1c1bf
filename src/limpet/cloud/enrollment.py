"""A node of a Kubernetes cluster gets in by itself: the API server says where the controllers are
and by what they are known, and the token of the agent's pod says which node this is."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import msgspec
import structlog

from limpet.base import faults
from limpet.base.addresses import Prefix
from limpet.base.bounds.servers import API_TOKEN
from limpet.base.decoding import decode_json
from limpet.base.errors import LimpetError
from limpet.base.process.threads import in_thread
from limpet.base.settings import Folders, SourceSettings
from limpet.cloud.join import Joined, join
from limpet.cloud.join_requests import JoinOrder
from limpet.cloud.second_road.api_server import find_api_server, told_controllers
from limpet.cluster.api import ACCOUNT_AUDIENCE
from limpet.kubernetes.client import Client
from limpet.kubernetes.errors import NoResourceError, NotFoundError
from limpet.kubernetes.kinds.objects import Resource, Viewed
from limpet.kubernetes.kinds.resources import GROUP, NETWORK_OBJECT, VERSION

_log = structlog.get_logger("join")
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 15.0


class _Network(Viewed, frozen=True, kw_only=True, rename="camel"):
    status: Any = None


_NETWORKS = Resource("ClusterNetwork", "clusternetworks", _Network, GROUP, VERSION)


class _Claims(msgspec.Struct, frozen=True):
    """Claims of a service account token. Source: k8s.io/kubernetes/pkg/serviceaccount/claims.go."""

    kubernetes: dict[str, Any] = msgspec.field(default_factory=dict, name="kubernetes.io")


class Enrollment:
    """A task of the event loop, as long as the node has not joined."""

    def __init__(
        self,
        folders: Folders,
        source: SourceSettings,
        *,
        lan: Callable[[], Collection[Prefix]],
        has_ipv6: Callable[[], bool] = lambda: True,
        random: Callable[[], float],
    ) -> None:
        """`lan`: prefixes of the node's own links; `has_ipv6`: the kernel does; both raise
        LimpetError.

        `random`: from 0 to below 1; spreads nodes that begin all at once.
        """
        self._folders = folders
        self._source = source
        self._lan = lan
        self._has_ipv6 = has_ipv6
        self._random = random
        self.problem = "it asks the API server where the controllers are"
        """Why the node has not joined yet, in words."""

    async def run(self) -> None:
        """Returns when the node has joined; what fails is told in `problem` and tried again."""
        pause_s = _SHORTEST_PAUSE_S
        while True:
            try:
                joined = await self._attempt()
            except LimpetError as error:
                self._note(str(error))
            except Exception as error:  # noqa: BLE001 - the agent goes on, whatever was said
                faults.note("joining", error)
                self._note(f"{type(error).__name__}: {error}")
            else:
                _log.info("joined", node=joined.name, uid=joined.uid, cluster=joined.cluster)
                return
            await asyncio.sleep(pause_s * (0.5 + self._random()))
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 1.5)

    def _note(self, problem: str) -> None:
        if problem != self.problem:
            _log.warning("not joined yet", why=problem)
        self.problem = problem

    async def _attempt(self) -> Joined:
        """Raises: LimpetError."""
        assert self._source.join_token_file is not None
        addresses, ca = await find_controllers(self._source)
        token = read_token(self._source.join_token_file)
        order = JoinOrder(token, addresses, node_of_token(token), account_ca=ca)
        lan, has_ipv6 = self._lan(), self._has_ipv6()
        return await in_thread(lambda: join(self._folders, order, lan, has_ipv6=has_ipv6), "join")


async def find_controllers(source: SourceSettings) -> tuple[tuple[str, ...], str]:
    """Addresses, and the CA's certificate. Raises: LimpetError."""
    client = Client(find_api_server(source))
    try:
        network = await client.get(_NETWORKS, NETWORK_OBJECT)
    except (NotFoundError, NoResourceError) as error:
        raise LimpetError(
            f"find the controllers: {error}: no controller has made this cluster's network "
            "yet (does one run? kubectl -n limpet-system get pods)"
        ) from error
    finally:
        client.close()
    addresses, ca = told_controllers(network.status)
    if not addresses or not ca:
        raise LimpetError(
            "find the controllers: the ClusterNetwork does not say where they are (the one "
            "that leads writes its status; is it of this version? kubectl -n limpet-system "
            "logs deploy/limpet-controller)"
        )
    return addresses, ca


def read_token(path: Path) -> str:
    """Raises: LimpetError."""
    try:
        with open(path, "rb") as file:
            content = file.read(API_TOKEN.most + 1)
        if len(content) > API_TOKEN.most:
            raise ValueError(f"it is larger than {API_TOKEN.most >> 10} KiB")
        return content.decode("ascii").strip()
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        raise LimpetError(
            f"read token {path}: {cause} (the manifests mount it into the agent's pod, for "
            f"audience {ACCOUNT_AUDIENCE}; a node without such a pod: limpet join --token)"
        ) from error


def node_of_token(token: str) -> str:
    """The node that the token's pod runs on, as the token says; who is asked checks it.

    Raises: LimpetError.
    """
    parts = token.split(".")
    try:
        body = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        node = decode_json(body, _Claims).kubernetes["node"]["name"]
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise LimpetError(
            "read the pod's token: it names no node (kubelets of Kubernetes 1.30 and later mount "
            "such; older ones: limpet join --token on the node)"
        ) from error
    return str(node)
