"""What of Limpet is on a machine where it is not installed."""

from __future__ import annotations

from collections.abc import Iterator

from limpet.base.ownership import ROUTE_TABLE, RULE_PRIORITY
from limpet.cli.doctor.findings import Finding, warn
from limpet.cli.output import counted
from limpet.cli.owners import is_ours
from limpet.linux.netlink.socket import RouteSocket


def examine_own_leftovers() -> Iterator[Finding]:
    """For a machine with no installation and no agent."""
    with RouteSocket() as route:
        links = [each.ifname for each in route.links().values() if is_ours(each)]
        rules = [each for each in route.rules() if each.priority == RULE_PRIORITY]
        routes = route.routes(table=ROUTE_TABLE)
    found = [f"links {', '.join(links[:4])}"] if links else []
    found += [f"rules of priority {RULE_PRIORITY}"] if rules else []
    found += [f"{counted(len(routes), 'route')} in table {ROUTE_TABLE}"] if routes else []
    if found:
        yield warn(
            "own-leftovers",
            f"Limpet is not installed here, and something of it is left: {'; '.join(found)}",
            "another pod network may trip over it",
            "limpet uninstall, which takes away all that is marked as Limpet's, and nothing else",
        )
