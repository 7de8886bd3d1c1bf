"""What a person asks about communities, and of the network that all nodes share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import Any

import structlog
from msgspec import Struct
from msgspec.structs import asdict

from limpet.cluster.kinds.network import (
    DefaultCommunity,
    Encryption,
    ServicesMode,
    TunnelBackend,
)
from limpet.controller.admin.answers import (
    CommunitiesListed,
    CommunityChanged,
    CommunityDissolved,
    CommunityShown,
    NetworkChanged,
)
from limpet.controller.admin.views import community_shown, network_shown
from limpet.controller.communities import communities
from limpet.controller.registry.tables import Tables
from limpet.controller.state.cluster import Cluster

_log = structlog.get_logger("admin")

Verb = Callable[..., Awaitable[Struct]]
"""Its parameters are what the body of a request may hold, with the same defaults."""


class CommunityAdmin:
    """The verbs."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.verbs: dict[str, Verb] = {
            "community.create": self._changing("created community", communities.create),
            "community.list": self._list,
            "community.show": self._show,
            "community.add": self._changing("added to community", communities.add),
            "community.take-out": self._changing("took out of community", communities.take_out),
            "community.dissolve": self._dissolve,
            "network.set": self._set_network,
        }

    def _changing(self, event: str, make: Callable[..., int]) -> Verb:
        """A verb with the parameters of `make`, after its tables; `make` returns how many grants
        it changed. It answers the community as it is then."""

        @wraps(make)
        async def verb(community: str, **arguments: Any) -> CommunityChanged:
            def changed(tables: Tables) -> CommunityChanged:
                count = make(tables, community, **arguments)
                shown = community_shown(tables, community)
                return CommunityChanged(**asdict(shown), changed=count)

            answer = await self._cluster.change(changed)
            _log.info(event, community=community, grants=answer.changed)
            return answer

        return verb

    async def _list(self) -> CommunitiesListed:
        def make(tables: Tables) -> list[CommunityShown]:
            return [community_shown(tables, name) for name in sorted(tables.communities)]

        return CommunitiesListed(communities=await self._cluster.change(make))

    async def _show(self, community: str) -> CommunityShown:
        return await self._cluster.change(partial(community_shown, name=community))

    async def _dissolve(self, community: str) -> CommunityDissolved:
        count = await self._cluster.change(partial(communities.dissolve, name=community))
        _log.info("removed community", community=community, grants=count)
        return CommunityDissolved(changed=count)

    async def _set_network(
        self,
        default_community: DefaultCommunity | None = None,
        encryption: Encryption | None = None,
        tunnel_backend: TunnelBackend | None = None,
        services: ServicesMode | None = None,
    ) -> NetworkChanged:
        """None leaves as it is."""
        return network_shown(
            await self._cluster.set_network(default_community, encryption, tunnel_backend, services)
        )
