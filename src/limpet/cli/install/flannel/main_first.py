"""The rule by which the main table, with flannel's routes, counts before Limpet's table: while a
node is taken over, until the agent knows the other nodes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from limpet.linux.netlink import codec as wire
from limpet.linux.netlink import route_codec
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.owned import Owned

_PRIORITY = 5146
"""Before those of Limpet's own rules."""


def put_main_first(route: RouteSocket, versions: Collection[int]) -> None:
    """IP versions whose routes are flannel's: a kernel without IPv6 takes no rule of it.

    Raises: KernelError.
    """
    there = {rule.version for rule in _rules(route)}
    for version in sorted(set(versions) - there):
        main = route_codec.RT_TABLE_MAIN
        route.apply(route_codec.rule(version, priority=_PRIORITY, table=main))


def drop_main_first(route: RouteSocket) -> None:
    """Raises: KernelError."""
    route.apply(*_deletions(route))


def _rules(route: RouteSocket) -> list[route_codec.RuleInfo]:
    wanted = (_PRIORITY, route_codec.RT_TABLE_MAIN, 0)
    return [rule for rule in route.rules() if (rule.priority, rule.table, rule.mark) == wanted]


def _deletions(route: RouteSocket) -> Sequence[wire.Request]:
    return [
        route_codec.rule(rule.version, priority=rule.priority, table=rule.table, delete=True)
        for rule in _rules(route)
    ]


OWNED = Owned(deletions=_deletions)
"""It goes with the last of Limpet: what is left of a take-over that stopped half way would send the
pods' packets of a later installation by the node's default route, in clear."""
