"""Machines that have the name of one that was removed: a community's object that names it means
another of them then."""

from __future__ import annotations

import structlog

from limpet.controller.communities.membership import communities_of
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.rotation import has_signing_key
from limpet.controller.registry.tables import Tables
from limpet.controller.state.grants import change_grant

_log = structlog.get_logger("community")


def settle_namesakes(tables: Tables, name: str) -> int:
    """Makes their grants say in which communities they are. Returns how many changed.

    What is refused of one is no reason against the removal; it is told.
    """
    changed = 0
    if not has_signing_key(tables):
        return changed
    if not any(name in record.members for record in tables.communities.values()):
        return changed
    for uid in tables.uids_of(name):
        grant, named = tables.grants[uid], tables.nodes[uid].communities
        try:
            communities = communities_of(tables, uid, name, named, grant.labels)
        except RefusedError as error:
            _log.warning("a node is not in the communities that name it", error=str(error))
            continue
        if communities != grant.communities:
            change_grant(tables, grant, communities=communities)
            changed += 1
    return changed
