"""An nftables table as a value: its text, what nft says of it, and the way from one to another.

Names say the content (a hash of it), or whose they are: then the rules change, or the elements.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple


@dataclass(frozen=True, slots=True)
class NamedSet:
    """A set, or a map: its elements are then `key : data`."""

    kind: Literal["set", "map"]
    lines: tuple[str, ...]
    """Type and flags, as nft writes them."""
    elements: frozenset[str] = frozenset()

    @property
    def is_large(self) -> bool:
        """Its elements do not go through libnftables, which would keep and list all of them."""
        plain = self.kind == "set" and self.lines[0] in _PLAIN
        return plain and len(self.elements) > _LARGE


_LARGE = 4_096
_PLAIN = ("type ipv4_addr", "type ipv6_addr")


class Filling(NamedTuple):
    """Elements that go and come in a set, which is large before or after."""

    name: str
    lines: tuple[str, ...]
    delete: frozenset[str]
    add: frozenset[str]


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
    def met_by_all(self) -> dict[str, tuple[str, ...]]:
        """The base chains."""
        return {name: rules for name, rules in self.chains.items() if _has_hook(self, name)}

    @property
    def text(self) -> str:
        """As a file for nft; what nft lists is the same but for order and line breaks, and the
        elements of large sets."""
        lines = [f"table {self.family} {self.name} {{"]
        for counter in self.counters:
            lines += [f"\tcounter {counter} {{", "\t}", ""]
        for name, each in self.sets.items():
            lines += [f"\t{each.kind} {name} {{", *(f"\t\t{line}" for line in each.lines)]
            if each.elements and not each.is_large:
                lines.append(f"\t\telements = {{ {', '.join(sorted(each.elements))} }}")
            lines += ["\t}", ""]
        for name, rules in self.chains.items():
            lines += [f"\tchain {name} {{", *(f"\t\t{rule}" for rule in rules), "\t}", ""]
        lines[-1] = "}"
        return "\n".join(lines) + "\n"


def put_commands(table: Table) -> str:
    """The table becomes this, whatever is there, unless it belongs to a socket or has done."""
    at = f"{table.family} {table.name}"
    return f"add table {at}\ndelete table {at}\n{table.text if table else ''}"


def change_steps(before: Table, after: Table) -> tuple[str, str, str]:
    """What turns one into the other, but for elements of large sets: three transactions, each of
    which may be empty. The table is there; it is none that has to be put anew.

    The first makes what is new and nobody goes to yet, the second changes what is gone to, the
    third takes away what nobody goes to any more. In one, packets of the moment in which it is done
    would find new sets of intervals without their elements, since the kernel fills these last
    (nft_set_commit_update), and new chains without their rules.
    """
    at = f"{after.family} {after.name}"
    if not after:
        return "", f"delete table {at}\n" if before else "", ""
    return (
        "".join(f"{line}\n" for line in _making(at, before, after)),
        "".join(f"{line}\n" for line in _turning(at, before, after)),
        "".join(f"{line}\n" for line in _taking_away(at, before, after)),
    )


def must_be_replaced(before: Table, after: Table) -> bool:
    """Something differs that has the same name, and cannot become the other."""
    sets = before.sets.keys() & after.sets.keys()
    hooks = [name for name in before.chains if _has_hook(before, name)]
    return bool(before and after) and (
        any(before.chains[name][:1] != after.chains.get(name, ())[:1] for name in hooks)
        or any(before.sets[name].lines != after.sets[name].lines for name in sets)
        or before.counters != after.counters
    )


def fillings(before: Table, after: Table) -> tuple[list[Filling], list[Filling]]:
    """Elements of large sets: what follows the first step, and what follows the second."""
    if not after:
        return [], []
    large = {name: each for name, each in after.sets.items() if each.is_large}
    new = [Filling(name, each.lines, frozenset(), each.elements) for name, each in large.items()]
    kept = {
        name: (before.sets[name], each)
        for name, each in after.sets.items()
        if name in before.sets and _is_large(before.sets[name], each)
    }
    return [each for each in new if each.name not in before.sets], [
        Filling(name, each.lines, held.elements - each.elements, each.elements - held.elements)
        for name, (held, each) in kept.items()
        if held is not each and held.elements != each.elements
    ]


def _is_large(held: NamedSet, each: NamedSet) -> bool:
    return held.is_large or each.is_large


def _making(at: str, before: Table, after: Table) -> Iterable[str]:
    if not before:
        yield from (f"add counter {at} {name}" for name in after.counters)
    sets = [name for name in after.sets if name not in before.sets]
    chains = [
        name for name in after.chains if name not in before.chains and not _has_hook(after, name)
    ]
    for name in sets:
        each = after.sets[name]
        yield f"add {each.kind} {at} {name} {{ {' '.join(f'{x};' for x in each.lines)} }}"
    yield from (f"add chain {at} {name}" for name in chains)
    for name in chains:
        yield from (f"add rule {at} {name} {rule}" for rule in after.chains[name])
    for name in sets:
        if not after.sets[name].is_large:
            yield from _elements("add", at, name, after.sets[name].elements)


def _turning(at: str, before: Table, after: Table) -> Iterable[str]:
    for name, each in after.sets.items():
        held = before.sets.get(name, each)
        if held is not each and not _is_large(held, each):
            gone = (element.partition(" : ")[0] for element in held.elements - each.elements)
            yield from _elements("delete", at, name, gone)
            yield from _elements("add", at, name, each.elements - held.elements)
    for name, rules in after.chains.items():
        if name in before.chains and before.chains[name] != rules:
            yield f"flush chain {at} {name}"
            rest = rules[1:] if _has_hook(after, name) else rules
            yield from (f"add rule {at} {name} {rule}" for rule in rest)
        elif name not in before.chains and _has_hook(after, name):
            yield f"add chain {at} {name} {{ {rules[0]} }}"
            yield from (f"add rule {at} {name} {rule}" for rule in rules[1:])


def _taking_away(at: str, before: Table, after: Table) -> Iterable[str]:
    chains = [name for name in before.chains if name not in after.chains]
    yield from (f"flush chain {at} {name}" for name in chains)
    for name, each in before.sets.items():
        if name not in after.sets:
            yield f"delete {each.kind} {at} {name}"
    yield from (f"delete chain {at} {name}" for name in chains)


def _has_hook(table: Table, chain: str) -> bool:
    """One that another program has flushed is empty."""
    return any(line.startswith("type ") for line in table.chains[chain][:1])


def _elements(verb: str, at: str, name: str, elements: Iterable[str]) -> list[str]:
    found = sorted(elements)
    return [f"{verb} element {at} {name} {{ {', '.join(found)} }}"] if found else []


_BLOCK = re.compile(r"^\t(set|map|chain|counter) (\S+) \{\n(.*?)^\t\}", re.DOTALL | re.MULTILINE)


def read_listing(
    family: str, name: str, frame: str, elements: Mapping[str, frozenset[str]]
) -> Table:
    """The table that nft has listed: what it has beside elements, and these by set or map."""
    counters: list[str] = []
    sets: dict[str, NamedSet] = {}
    chains: dict[str, tuple[str, ...]] = {}
    for kind, block, body in _BLOCK.findall(frame):
        lines = tuple(line.strip() for line in body.splitlines())
        if kind == "counter":
            counters.append(block)
        elif kind == "chain":
            chains[block] = lines
        else:
            held = elements.get(block, frozenset())
            if lines[:1] and lines[0].startswith("type ifname"):
                held = frozenset(map(_with_quotes, held))
            sets[block] = NamedSet("map" if kind == "map" else "set", lines, held)
    return Table(family, name, tuple(counters), sets, chains)


def _with_quotes(element: str) -> str:
    """A link's name as nft prints it, and what follows it."""
    ifname, space, rest = element.partition(" ")
    return f'"{ifname}"{space}{rest}'
