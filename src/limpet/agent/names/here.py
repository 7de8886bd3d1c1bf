"""What this node knows of others, as Services and names ask: who does not answer, who is near."""

from __future__ import annotations

from limpet.cluster.membership import Membership
from limpet.cluster.topology.transports import TRANSPORTS
from limpet.paths.prober import Prober
from limpet.services.rotation import Here

_RANKS = {name: rank for rank, name in enumerate(TRANSPORTS, start=1)}
_ROUND_TRIPS = 8
"""More than there are classes of round trips: within a rung they decide."""


def here_of(membership: Membership, probing: Prober) -> Here:
    """As it is now, of nodes alone."""
    reach, name_of, grant = probing.reach, membership.name_of, membership.grant
    return Here(
        node=grant.name if grant is not None else membership.identity.name,
        silent=frozenset(map(name_of, reach.silent)),
        distances={
            name_of(uid): _RANKS[path.rung.name] * _ROUND_TRIPS + reach.round_trips.get(uid, 0)
            for uid, path in probing.paths.items()
        },
    )
