"""Where nodes reach the controller that leads, as nodes of the cluster find it: in the status of
the ClusterNetwork, which only who administers the network may write."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import Any

import structlog

from limpet.base import faults
from limpet.base.addresses import UnderlayLink, endpoint_text
from limpet.base.errors import LimpetError
from limpet.cluster.segments import overlaps_with
from limpet.controller.settings import ControllerSettings
from limpet.controller.state.cluster import Cluster
from limpet.kubernetes.client import Client
from limpet.kubernetes.errors import NotFoundError
from limpet.kubernetes.kinds.objects import Resource, Viewed
from limpet.kubernetes.kinds.resources import GROUP, NETWORK_OBJECT, VERSION

_log = structlog.get_logger("replica")
NODE_ADDRESSES = "LIMPET_NODE_ADDRESSES"
"""Variable of the pod's environment: addresses of its node, as the kubelet knows them."""
_MOST = 8
"""Addresses that are told."""
_LOOK_S, _SOON_S = 10.0, 1.0


class NetworkStatus(Viewed, frozen=True, kw_only=True, rename="camel"):
    status: Any = None


NETWORKS = Resource("ClusterNetwork", "clusternetworks", NetworkStatus, GROUP, VERSION)


def own_addresses(
    settings: ControllerSettings,
    links: Sequence[UnderlayLink],
    environment: Mapping[str, str] = os.environ,
) -> list[str]:
    """With ports, as nodes ask for them. Pure but for the defaults.

    What `advertise` says; else what `listen` names, a wildcard standing for the addresses of the
    node, or of its links where nobody says which those are.
    """
    if settings.place.advertise:
        return list(settings.place.advertise)
    node = [each.strip() for each in environment.get(NODE_ADDRESSES, "").split(",") if each.strip()]
    if not node:
        found = [address.ip for link in links for address in link.addresses]
        node = [
            str(each)
            for each in found
            if not each.is_link_local and not overlaps_with(settings.network, [ip_network(each)])
        ]
    told: list[str] = []
    for host, port in settings.listen:
        at = ip_address(host)
        hosts = [host]
        if at.is_unspecified:
            hosts = [each for each in node if at.version == 6 or ip_address(each).version == 4]
        told += [endpoint_text((each, port)) for each in hosts]
    return list(dict.fromkeys(told))


def next_status(
    addresses: Sequence[str], ca_certificate: str, before: Any, *, are_all: bool
) -> dict[str, Any]:
    """Part of the status. `are_all`: of every controller; else those of former leaders follow,
    which may lead again."""
    told = before.get("addresses") if isinstance(before, dict) else None
    former = [each for each in told if isinstance(each, str)] if isinstance(told, list) else []
    known = list(dict.fromkeys([*addresses, *(() if are_all else former)]))[:_MOST]
    return {"addresses": known, "caCertificate": ca_certificate}


class ReachTeller:
    """Keeps it as it is. Of the controller that leads."""

    def __init__(
        self,
        client: Client,
        cluster: Cluster,
        settings: ControllerSettings,
        links: Sequence[UnderlayLink],
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._addresses = own_addresses(settings, links)
        self._are_all = bool(settings.place.advertise)

    async def run(self) -> None:
        """Until it is cancelled."""
        said = ""
        while True:
            pause_s = _LOOK_S
            try:
                await self._tell()
                said = ""
            except NotFoundError:
                pause_s = _SOON_S  # deleted by hand; it is written again
            except LimpetError as error:
                if str(error) != said:
                    _log.warning("where it is reached is not told", error=str(error))
                said = str(error)
            except Exception as error:  # noqa: BLE001 - the next time may be better
                faults.note("telling where it is reached", error)
            await asyncio.sleep(pause_s)

    async def _tell(self) -> None:
        authority = await self._cluster.change(lambda tables: tables.authority)
        found = await self._client.get(NETWORKS, NETWORK_OBJECT)
        before = found.status.get("controllers") if isinstance(found.status, dict) else None
        following = next_status(
            self._addresses, authority.ca_certificate, before, are_all=self._are_all
        )
        if following == before:
            return
        changes = {"status": {"controllers": following}}
        await self._client.patch(NETWORKS, NETWORK_OBJECT, changes, status=True)
        _log.info("nodes are told where it is reached", addresses=",".join(following["addresses"]))
