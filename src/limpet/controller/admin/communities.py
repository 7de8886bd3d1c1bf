"""What a person asks about communities, and of the network that all nodes share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import structlog

from limpet.cluster.kinds.network import DefaultCommunity, Encryption, TunnelBackend
from limpet.controller.admin.views import community_document, network_document
from limpet.controller.communities import communities
from limpet.controller.state.cluster import Cluster
from limpet.controller.state.tables import Tables

_log = structlog.get_logger("admin")


class CreateArguments(msgspec.Struct, forbid_unknown_fields=True):
    community: str
    nodes: tuple[str, ...] = ()
    """Names or uids."""
    selector: str | None = None
    tunnel_backend: TunnelBackend | None = None
    """Of the tunnels between its nodes; None: as it is, at first the network's."""


class CommunityArguments(msgspec.Struct, forbid_unknown_fields=True):
    community: str


class TakeOutArguments(msgspec.Struct, forbid_unknown_fields=True):
    community: str
    nodes: tuple[str, ...] = ()
    selector: bool = False
    """It chooses nobody by labels any more."""
    tunnel_backend: bool = False
    """The tunnels between its nodes are the network's again."""


class SetNetworkArguments(msgspec.Struct, forbid_unknown_fields=True):
    """None leaves as it is."""

    default_community: DefaultCommunity | None = None
    encryption: Encryption | None = None
    tunnel_backend: TunnelBackend | None = None


class NoArguments(msgspec.Struct, forbid_unknown_fields=True):
    pass


Verb = Callable[[Any], Awaitable[dict[str, Any]]]


class CommunityAdmin:
    """The verbs."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.verbs: dict[str, tuple[type[msgspec.Struct], Verb]] = {
            "community.create": (CreateArguments, self._create),
            "community.list": (NoArguments, self._list),
            "community.show": (CommunityArguments, self._show),
            "community.add": (CreateArguments, self._add),
            "community.take-out": (TakeOutArguments, self._take_out),
            "community.dissolve": (CommunityArguments, self._dissolve),
            "network.set": (SetNetworkArguments, self._set_network),
        }

    async def _create(self, asked: CreateArguments) -> dict[str, Any]:
        return await self._change(
            "created community",
            asked.community,
            lambda tables: communities.create(
                tables,
                asked.community,
                asked.nodes,
                asked.selector,
                backend=asked.tunnel_backend,
            ),
        )

    async def _add(self, asked: CreateArguments) -> dict[str, Any]:
        return await self._change(
            "added to community",
            asked.community,
            lambda tables: communities.add(
                tables,
                asked.community,
                asked.nodes,
                asked.selector,
                backend=asked.tunnel_backend,
            ),
        )

    async def _take_out(self, asked: TakeOutArguments) -> dict[str, Any]:
        return await self._change(
            "took out of community",
            asked.community,
            lambda tables: communities.take_out(
                tables,
                asked.community,
                asked.nodes,
                selector=asked.selector,
                backend=asked.tunnel_backend,
            ),
        )

    async def _change(self, event: str, name: str, make: Callable[[Tables], int]) -> dict[str, Any]:
        """The community as it is then, and how many nodes have another grant."""

        def changed(tables: Tables) -> dict[str, Any]:
            count = make(tables)
            return {**community_document(tables, name), "changed": count}

        document = await self._cluster.change(changed)
        _log.info(event, community=name, grants=document["changed"])
        return document

    async def _list(self, _asked: NoArguments) -> dict[str, Any]:
        def make(tables: Tables) -> list[dict[str, Any]]:
            return [community_document(tables, name) for name in sorted(tables.communities)]

        return {"communities": await self._cluster.change(make)}

    async def _show(self, asked: CommunityArguments) -> dict[str, Any]:
        return await self._cluster.change(
            lambda tables: community_document(tables, asked.community)
        )

    async def _dissolve(self, asked: CommunityArguments) -> dict[str, Any]:
        count = await self._cluster.change(
            lambda tables: communities.dissolve(tables, asked.community)
        )
        _log.info("removed community", community=asked.community, grants=count)
        return {"changed": count}

    async def _set_network(self, asked: SetNetworkArguments) -> dict[str, Any]:
        network = await self._cluster.set_network(
            asked.default_community, asked.encryption, asked.tunnel_backend
        )
        return network_document(network)
