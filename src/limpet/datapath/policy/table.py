"""An nftables table as a value: its text, what nft says of it, and the way from one to another.

Names say the content (a hash of it) but for those of sets, which say whose they are: so a chain
never changes, and a set changes by its elements.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class NamedSet:
    """A set, or a map: its elements are then `key : data`."""

    kind: Literal["set", "map"]
    lines: tuple[str, ...]
    """Type and flags, as nft writes them."""
    elements: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Table:
    """Empty: it is not there."""

    family: str
    name: str
    counters: tuple[str, ...] = ()
    sets: Mapping[str, NamedSet] = field(default_factory=dict)
    chains: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Rules, after the line with the hook of a base chain. What is gone to comes first."""

    def __bool__(self) -> bool:
        return bool(self.chains)

    @property
    def text(self) -> str:
        """As a file for nft; what nft lists is the same but for order and line breaks."""
        lines = [f"table {self.family} {self.name} {{"]
        for counter in self.counters:
            lines += [f"\tcounter {counter} {{", "\t}", ""]
        for name, each in self.sets.items():
            lines += [f"\t{each.kind} {name} {{", *(f"\t\t{line}" for line in each.lines)]
            if each.elements:
                lines.append(f"\t\telements = {{ {', '.join(sorted(each.elements))} }}")
            lines += ["\t}", ""]
        for name, rules in self.chains.items():
            lines += [f"\tchain {name} {{", *(f"\t\t{rule}" for rule in rules), "\t}", ""]
        lines[-1] = "}"
        return "\n".join(lines) + "\n"


def put_commands(table: Table) -> str:
    """The table becomes this, whatever is there."""
    at = f"{table.family} {table.name}"
    return f"add table {at}\ndelete table {at}\n{table.text if table else ''}"


def change_commands(before: Table, after: Table) -> str:
    """What turns one into the other, to be run as one transaction; empty: nothing to do.

    Elements, chains and sets come and go; rules of a chain that stays do not change.
    """
    if not (before and after) or _is_rebuilt(before, after):
        return "" if before == after else put_commands(after)
    at = f"{after.family} {after.name}"
    lines: list[str] = []
    new_sets = [name for name in after.sets if name not in before.sets]
    old_sets = [name for name in before.sets if name not in after.sets]
    new_chains = [name for name in after.chains if name not in before.chains]
    old_chains = [name for name in before.chains if name not in after.chains]
    for name in new_sets:
        each = after.sets[name]
        lines.append(f"add {each.kind} {at} {name} {{ {' '.join(f'{x};' for x in each.lines)} }}")
    lines += [f"add chain {at} {name}" for name in new_chains]
    for name in new_chains:
        lines += [f"add rule {at} {name} {rule}" for rule in after.chains[name]]
    for name, each in after.sets.items():
        held = before.sets[name].elements if name in before.sets else frozenset()
        gone = (element.partition(" : ")[0] for element in held - each.elements)
        lines += _elements("delete", at, name, gone)
        lines += _elements("add", at, name, each.elements - held)
    lines += [f"flush chain {at} {name}" for name in old_chains]
    lines += [f"delete {before.sets[name].kind} {at} {name}" for name in old_sets]
    lines += [f"delete chain {at} {name}" for name in old_chains]
    return "".join(f"{line}\n" for line in lines)


def _is_rebuilt(before: Table, after: Table) -> bool:
    """Something differs that has the same name."""
    sets = before.sets.keys() & after.sets.keys()
    chains = before.chains.keys() & after.chains.keys()
    return (
        any(before.chains[name] != after.chains[name] for name in chains)
        or any(before.sets[name].lines != after.sets[name].lines for name in sets)
        or before.counters != after.counters
    )


def _elements(verb: str, at: str, name: str, elements: Iterable[str]) -> list[str]:
    found = sorted(elements)
    return [f"{verb} element {at} {name} {{ {', '.join(found)} }}"] if found else []


_BLOCK = re.compile(r"^\t(set|map|chain|counter) (\S+) \{\n(.*?)^\t\}", re.DOTALL | re.MULTILINE)
_HELD = re.compile(r"^\t\telements = \{(.*?)\}\n", re.DOTALL | re.MULTILINE)


def read_listing(family: str, name: str, listing: str) -> Table:
    """The table that nft has listed, without what was counted."""
    counters: list[str] = []
    sets: dict[str, NamedSet] = {}
    chains: dict[str, tuple[str, ...]] = {}
    for kind, block, body in _BLOCK.findall(listing):
        if kind == "counter":
            counters.append(block)
        elif kind == "chain":
            chains[block] = tuple(line.strip() for line in body.splitlines())
        else:
            held = _HELD.search(body)
            items = held[1].split(",") if held else []
            sets[block] = NamedSet(
                "map" if kind == "map" else "set",
                tuple(line.strip() for line in _HELD.sub("", body).splitlines()),
                frozenset(" ".join(item.split()) for item in items),
            )
    return Table(family, name, tuple(counters), sets, chains)
