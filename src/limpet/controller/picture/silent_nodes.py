"""Looks now and then which nodes are silent, and tells the timeline, as long as the controller
serves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import structlog

from limpet.base import faults
from limpet.base.errors import LimpetError
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import Network
from limpet.controller.picture.nodes import heard_of, present, state_of
from limpet.controller.picture.reported import NodePaths
from limpet.controller.picture.silence import NodeSilence, Silence
from limpet.controller.registry.tables import Tables
from limpet.controller.state.cluster import Cluster
from limpet.timeline.answer import MOST_ENTRIES, TimelineQuery

_log = structlog.get_logger("cluster")
_LOOK_EVERY_S = 10.0
_HOLDS = 0.1
"""What is told has held for so much of the time after which a node is silent."""


async def follow_silence(cluster: Cluster) -> None:
    """For ever."""
    silent_after_s = cluster.settings.looks.silent_after_s
    silence = Silence(holds_s=_HOLDS * silent_after_s, unheard_s=silent_after_s)
    timeline = cluster.timeline.recorder
    with faults.noted("remembering which nodes are silent"):
        silence.remember((await timeline.answer(TimelineQuery(limit=MOST_ENTRIES))).entries)
    while True:
        try:
            now_s = time.time()
            grants, network = await cluster.change(_grants)
            silences = await asyncio.to_thread(
                _silences,
                grants,
                network,
                dict(cluster.paths.known),
                frozenset(cluster.paths.watching),
                now_s - silent_after_s,
            )
            timeline.note(*silence.look(silences, time.monotonic()))
        except LimpetError as error:
            _log.warning("not looked which nodes are silent", error=str(error))
        except Exception as error:  # noqa: BLE001 - the next time may be better
            faults.note("looking which nodes are silent", error)
        await asyncio.sleep(min(_LOOK_EVERY_S, _HOLDS * silent_after_s))


def _grants(tables: Tables) -> tuple[dict[str, Grant], Network]:
    """Grants of nodes to hear from: of flannel's nobody hears anything, whatever they do."""
    grants = {
        uid: grant
        for uid, grant in tables.grants.items()
        if not grant.tombstone and not grant.is_flannel
    }
    return grants, tables.network


def _silences(
    grants: Mapping[str, Grant],
    network: Network,
    reported: Mapping[str, NodePaths],
    watching: frozenset[str],
    since_s: float,
) -> dict[str, NodeSilence]:
    heard = heard_of(present(reported, watching, since_s), grants, network)
    found = {}
    for uid, grant in grants.items():
        paths = reported.get(uid)
        state, why = state_of(uid, uid in watching, paths, heard, since_s)
        found[uid] = NodeSilence(grant.name, state, why, paths.at_s if paths is not None else None)
    return found
