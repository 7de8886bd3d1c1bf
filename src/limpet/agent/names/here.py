"""What this node knows of others, as Services and names ask: who does not answer, who is near."""

from __future__ import annotations

from limpet.cluster.membership import Membership
from limpet.cluster.topology.transports import Transport
from limpet.paths.prober import Prober
from limpet.services.rotation import Here

_ROUND_TRIPS = 8
"""More than there are classes of round trips: within a rung they decide."""


def here_of(membership: Membership, probing: Prober) -> Here:
    """As it is now, of nodes alone."""
    reach, name_of, grant = probing.reach, membership.name_of, membership.grant
    return Here(
        node=grant.name if grant is not None else membership.identity.name,
        silent=frozenset(map(name_of, reach.silent)),
        distances={
            name_of(uid): distance(path.rung, reach.round_trips.get(uid, 0))
            for uid, path in probing.paths.items()
        },
    )


def distance(rung: Transport, round_trip: int) -> int:
    """How far a node is that is reached so: the rung first, then the class of its round trips."""
    return rung.preference * _ROUND_TRIPS + round_trip
