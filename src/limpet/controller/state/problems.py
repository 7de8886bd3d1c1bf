"""What is wrong with a node that goes on all the same: a person is told, nobody is refused.

`limpet node list` and `show` tell it, and the log as soon as the node has said it.
"""

from __future__ import annotations

from collections.abc import Iterable

from limpet.base.addresses import Address, is_public
from limpet.cluster.kinds.grant import Grant, Role
from limpet.cluster.kinds.presence import Presence
from limpet.controller.orchestrator.node_keeper.lifecycle import problems_of_node
from limpet.controller.orchestrator.node_keeper.pod_cidrs import problems_of_cidrs
from limpet.controller.registry.tables import Tables


def problems_of(tables: Tables, grant: Grant, now_s: float) -> list[str]:
    """In words; empty: nothing is wrong, as far as the controller knows."""
    found = [*problems_of_cidrs(tables, grant, now_s), *problems_of_node(tables, grant)]
    if problem := _pods_addresses_of_node(tables, grant):
        found.append(problem)
    presence = tables.presence(grant.uid)
    if presence is None:
        return found
    for problem in (unreached_relay(grant, presence), pods_addresses(tables, presence)):
        if problem:
            found.append(problem)
    return found + shared_endpoints(tables, grant, presence)


def pods_addresses(tables: Tables, presence: Presence) -> str:
    """In words; empty: it names none that others would take for a pod's."""
    named = _named_of_pods(tables, presence.addresses)
    if not named:
        return ""
    return (
        f"it names {named}: nobody sends to the node there (give it addresses that lie apart from "
        "those of pods; if it has none of these, its agent lies: limpet node remove "
        f"{presence.uid})"
    )


def _pods_addresses_of_node(tables: Tables, grant: Grant) -> str:
    """The same of its Node in Kubernetes, whose addresses its kubelet writes."""
    node = tables.source.nodes.objects.get(grant.name)
    named = _named_of_pods(tables, node.addresses) if node is not None else ""
    if not named:
        return ""
    return (
        f"its Node in Kubernetes names {named}: others take them for pods' (give it addresses that "
        "lie apart from those of pods; if it has none of these, its kubelet lies: limpet node "
        f"remove {grant.uid})"
    )


def _named_of_pods(tables: Tables, addresses: Iterable[Address]) -> str:
    cidrs = tables.network.pod_cidrs
    named = [each for each in addresses if any(each in cidr for cidr in cidrs)]
    if not named:
        return ""
    more = f" and {len(named) - 1} more" if len(named) > 1 else ""
    one = "addresses of its own, which are" if more else "an address of its own, which is"
    inside = ", ".join(map(str, cidrs))
    return f"{named[0]}{more} as {one} inside of the cluster's pod_cidrs ({inside})"


def shared_endpoints(tables: Tables, grant: Grant, presence: Presence) -> list[str]:
    """In words; empty: no other node names one of its endpoints."""
    found = []
    for at, port in presence.endpoints:
        names = sorted(
            other.name
            for uid in tables.uids_at(at, port)
            if uid != grant.uid and (other := tables.grants.get(uid)) is not None
        )
        if names:
            found.append(
                f"the endpoint [{at}]:{port} is also that of {', '.join(names)}: at most one of "
                "them is reached there (forward a port of its own to each, and name that in "
                "`tunnel_endpoints` of its agent's configuration)"
            )
    return found


def relay_problem(tables: Tables, grant: Grant) -> str:
    """Why the node should not become a relay, and what to do; empty: it may."""
    presence = tables.presence(grant.uid)
    if presence is None:
        return (
            "it has not told its addresses yet, and a relay needs a public one (start its agent "
            "first; if you know that it has one: --anyway)"
        )
    if _is_reached(presence):
        return ""
    has = ", ".join(map(str, presence.addresses)) or "none"
    return (
        f"a relay without a public address is of no use, and it has {has} (give it a public "
        "address, or name the port that is forwarded to it in `tunnel_endpoints` of its agent's "
        "configuration; if other nodes reach it all the same: --anyway)"
    )


def unreached_relay(grant: Grant, presence: Presence) -> str:
    """In words; empty: it is no relay, or can be reached as one."""
    if Role.RELAY not in grant.roles or _is_reached(presence):
        return ""
    return (
        "a relay without a public address: nodes behind NATs do not reach it (give it one, or name "
        "the port that is forwarded to it in `tunnel_endpoints` of its agent's configuration)"
    )


def _is_reached(presence: Presence) -> bool:
    return bool(presence.endpoints) or any(map(is_public, presence.addresses))
