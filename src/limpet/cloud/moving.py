"""A person says where this node's controllers are now: each new address is asked before it counts.

What answers there has to be of the node's own cluster: by its certificate, and by a network that
the cluster's keys have signed. So a wrong address, or a stranger at it, changes nothing.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from limpet.base.errors import LimpetError
from limpet.base.http.connection import LinkError
from limpet.base.settings import Folders
from limpet.cloud.https import parse_controller
from limpet.cloud.join import only_join
from limpet.cloud.link import ControllerLink, ControllerRefusedError
from limpet.cluster.api import Code
from limpet.cluster.documents import Known, Sealed
from limpet.cluster.identity import Identity, keep_controllers, load_identity
from limpet.cluster.keys import SealError
from limpet.cluster.kinds import KINDS, NETWORK
from limpet.cluster.kinds.network import Network
from limpet.cluster.merge import merge
from limpet.cluster.seal import open_sealed

_ANSWER_S = 20.0
"""For all that is asked at one address."""


_IS_OURS = frozenset({Code.NOT_LEADER, Code.RECOVERING, Code.TRY_AGAIN, Code.SAY_HELLO, Code.SHOW})
"""What a controller of the cluster may refuse for now; who it is, its certificate has shown."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The controllers that a node asks now."""

    name: str
    """Name of the node."""
    cluster: str
    """Name of the cluster; empty: none of them was asked, or none tells."""
    controllers: tuple[str, ...]
    before: tuple[str, ...]
    unreached: tuple[str, ...]
    """Why some could not be asked, in words."""


def move(folders: Folders, controllers: Sequence[str], *, force: bool) -> Moved:
    """The node asks `controllers` from now on, and no others; it is on the disk then.

    Those that it did not ask before have to answer, unless `force`; one that answers and is of
    another cluster never counts. A running agent has to be told.
    Raises: LimpetError; then nothing was changed.
    """
    wanted = tuple(dict.fromkeys(controllers))
    for each in wanted:
        parse_controller(each)
    with only_join(folders.state_dir):
        identity = load_identity(folders.cluster_dir)
        if identity is None:
            raise LimpetError(
                "join: this node is in no cluster yet, so it needs a token: --token-file FILE, or "
                "--token-file - for standard input (limpet token create, where the controller "
                "runs, makes one)"
            )
        if identity.by_account:
            raise LimpetError(
                f"join: {identity.name} asks its API server where the controllers are "
                "(status.controllers of the ClusterNetwork), and follows them by itself"
            )
        fresh = [each for each in wanted if each not in identity.controllers]
        clusters, unreached = asyncio.run(_ask_all(identity, fresh))
        if unreached and not force:
            raise LinkError(
                f"{'; '.join(unreached)}. Nothing was changed: {identity.name} goes on asking "
                f"{', '.join(identity.controllers)} (--force, if a controller will be there later)"
            )
        keep_controllers(identity, wanted)
    cluster = next(filter(None, clusters), "")
    return Moved(identity.name, cluster, wanted, identity.controllers, tuple(unreached))


async def _ask_all(identity: Identity, controllers: Sequence[str]) -> tuple[list[str], list[str]]:
    """Names of the clusters, and why some could not be asked. Raises: LimpetError for one of
    another cluster."""
    clusters, unreached = [], []
    for at in controllers:
        try:
            async with asyncio.timeout(_ANSWER_S):
                clusters.append(await _cluster_at(identity, at))
        except TimeoutError:
            unreached.append(f"ask the controller at {at}: no answer within {_ANSWER_S:g} s")
        except LinkError as error:
            if not _is_absence(error):
                raise
            unreached.append(str(error))
    return clusters, unreached


def _is_absence(error: LinkError) -> bool:
    """Nobody answers there; else somebody does who is not of this cluster."""
    cause = error.__cause__
    return isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError)


async def _cluster_at(identity: Identity, at: str) -> str:
    """Name of the cluster; empty: its controller does not tell now.

    Raises: LinkError; LimpetError for what it refuses this node.
    """
    link = ControllerLink(replace(identity, controllers=(at,)))
    try:
        async with aclosing(link.watch(None, revision=0)) as watch:
            async for lines in watch:
                for line in lines:
                    if line.document is not None and line.document.kind == NETWORK.name:
                        return _network(line.document, identity, at).cluster
    except ControllerRefusedError as error:
        if error.refused.code in _IS_OURS:
            return ""
        raise LimpetError(f"ask the controller at {at}: refused: {error}") from error
    finally:
        link.close()
    raise LinkError(f"ask the controller at {at}: it tells nothing of a cluster")


def _network(sealed: Sealed, identity: Identity, at: str) -> Network:
    """Raises: LinkError."""
    try:
        nothing = Known(KINDS, identity.pinned_key)
        known = merge(nothing, [open_sealed(sealed, nothing)])[0]
    except SealError as error:
        raise LinkError(
            f"ask the controller at {at}: it is not of this node's cluster: {error}"
        ) from error
    network: Network = known.value(NETWORK.name, NETWORK.name)
    return network
