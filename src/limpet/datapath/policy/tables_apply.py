"""Two tables of policies in the kernel become others, by their difference."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from limpet.datapath.policy.blocks import bounds_of_text, version_of
from limpet.datapath.policy.ruleset import PolicyTables
from limpet.datapath.policy.table import (
    Filling,
    Table,
    change_steps,
    fillings,
    must_be_replaced,
    put_commands,
)
from limpet.linux.netlink.table_codec import TableId
from limpet.linux.nftables import Nftables
from limpet.linux.set_elements import SetElements

WHAT = "network policies"
"""In errors."""


def named(tables: PolicyTables, name: str) -> PolicyTables:
    """The same rules in tables of that name."""
    return PolicyTables(replace(tables.inet, name=name), replace(tables.bridge, name=name))


def trial_commands(tables: PolicyTables, name: str) -> str:
    """What shows whether the kernel takes these: tables of that name that no packet meets, not even
    while it looks at them."""
    return "".join(map(put_commands, map(_unmet, (tables.inet, tables.bridge), (name, name))))


def _unmet(table: Table, name: str) -> Table:
    met = table.met_by_all
    chains = {each: rules[each in met :] for each, rules in table.chains.items()}
    return replace(table, name=name, chains=chains)


def table_ids(tables: PolicyTables) -> list[TableId]:
    """Names of the tables that are not empty."""
    return [TableId(each.family, each.name) for each in (tables.inet, tables.bridge) if each]


def cannot_become(before: PolicyTables, after: PolicyTables) -> bool:
    """One of the two has to be put anew."""
    return must_be_replaced(before.inet, after.inet) or must_be_replaced(
        before.bridge, after.bridge
    )


class TablesWriter:
    """`sets`: of the table's name that both have."""

    def __init__(self, nft: Nftables, sets: SetElements) -> None:
        self._nft = nft
        self._sets = sets

    def walk(self, before: PolicyTables, after: PolicyTables) -> None:
        """In three transactions (`table.change_steps`). Raises: KernelError."""
        inet = change_steps(before.inet, after.inet)
        bridge = change_steps(before.bridge, after.bridge)
        made, turned = fillings(before.inet, after.inet)
        for ours, bridged, elements in zip(inet, bridge, (made, turned, []), strict=True):
            if commands := ours + bridged:
                self._nft.run(commands, what=WHAT)
            self._fill(elements)

    def _fill(self, elements: Iterable[Filling]) -> None:
        for name, lines, delete, add in elements:
            version = version_of(lines)
            gone, come = ((bounds_of_text(x, version) for x in each) for each in (delete, add))
            self._sets.change_set(name, gone, come, intervals="flags interval" in lines)
