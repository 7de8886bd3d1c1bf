"""What network policies cost, as kinvolk's egress-filtering-benchmark asks it: how fast a pod sends
through what lets it send to some addresses only, by how many these are and who looks them up.

The address that is sent to is the last one. All ways stand side by side, and are asked in turn;
where the kernel's time is not told apart, in turns of some milliseconds (`bench.traffic.flows`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from statistics import median
from subprocess import CalledProcessError

from bench.bed import Bed
from bench.figures import Figure, Target, Unit
from bench.policies.egress.report import plot, text_table
from bench.policies.egress.ways import Blocks, Took, Ways
from bench.policies.egress.wires import TARGET, Wires
from bench.traffic.flows import Flows, in_turns
from bench.traffic.single_flow import Turn

POLICIES = (10, 1_000)
BLOCKS = (10, 1_000, 100_000, 1_000_000)
OURS = "nftables (ours)"
FLAT = 0.05
_FIRST = int(IPv4Address("16.0.0.0"))
_LENGTHS = ((32, 50), (24, 25), (28, 10), (30, 5), (22, 5), (20, 5))
"""Of prefixes, and how many of a hundred have it."""
_TARGET = IPv4Network(TARGET)

Looks = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is asked of each way."""

    title: str
    unit: Unit
    more_is_better: bool = False


_CPU = {"first": Wires.first_packet_us, "standing": Wires.established_packet_us}
_ASKED = {
    "first": _Asked("a packet of a new connection", "CPU us"),
    "standing": _Asked("a packet of a standing connection", "CPU us"),
    "connects": _Asked("connects of TCP", "1/s", True),
    "sent": _Asked("one stream of TCP", "Gbit/s", True),
}
_TURNS = 10
"""Of some milliseconds, in each round."""
_LOOKS = 4
"""At what a packet costs, in each round: short ones, so that what else runs meets all rows."""


@dataclass(slots=True)
class _Row:
    """A way with so many entries. Without wires: `why` it is not there."""

    name: str
    way: str
    size: int
    wires: Wires | None = None
    took: Took | None = None
    why: str = ""
    looks: Looks = field(default_factory=lambda: {name: [] for name in _ASKED})


def policies(bed: Bed, rounds: int) -> list[Figure]:
    with ExitStack() as undo:
        rows = list(_rows(Ways(undo), undo))
        there = [row for row in rows if row.wires is not None]
        carried = _carried(Flows(undo), there)
        for number in range(rounds):
            for turn in range(_LOOKS):
                first = (number * _LOOKS + turn) % len(there)
                for row in there[first:] + there[:first]:
                    _look(row)
            for name, turns in carried.items():
                for rates in in_turns(turns, _TURNS):
                    for row in there:
                        row.looks[name].append(rates[row.name])
    bed.notes.append(_table(rows))
    picture = bed.disk_folder.parent / "egress-filtering.svg"
    picture.write_text(_plot(there))
    bed.notes.append(f"drawn: {picture}")
    return list(_figures({(row.way, row.size): row for row in there}))


def _rows(ways: Ways, undo: ExitStack) -> Iterator[_Row]:
    bare = Wires("bare", undo, tracked=False, limited=False)
    none = Wires("none", undo, limited=False)
    yield _checked(_Row("a router without netfilter", "bare", 0, bare))
    yield _checked(_Row("no policy, connections tracked", "none", 0, none))
    for count in POLICIES:
        yield _made(ways.many_policies, "policies", f"{count:,} policies", count)
    others = {
        OURS: ways.nftables,
        "iptables": ways.iptables,
        "ipset": ways.ipset,
        "eBPF in tc": ways.tc,
        "eBPF in the cgroup": ways.cgroup,
    }
    for size in BLOCKS:
        for way, make in others.items():
            yield _made(make, way, f"{way}, {size:,} ipBlocks", size)


def _made(
    make: Callable[[str, Blocks], tuple[Wires, Took]], way: str, name: str, size: int
) -> _Row:
    row = _Row(name, way, size)
    try:
        row.wires, row.took = make(f"{''.join(filter(str.isalpha, way))}{size}", _blocks(size))
    except (OSError, RuntimeError, CalledProcessError) as error:
        row.why = str(error)
        return row
    return _checked(row)


def _checked(row: _Row) -> _Row:
    """It lets through what it should, and that alone."""
    assert row.wires is not None
    try:
        row.wires.check()
    except (OSError, RuntimeError) as error:
        row.wires, row.why = None, str(error)
    return row


def _look(row: _Row) -> None:
    assert row.wires is not None
    with row.wires.inside():
        for name, ask in _CPU.items():
            row.looks[name].append(ask(row.wires))


def _carried(flows: Flows, rows: Sequence[_Row]) -> dict[str, dict[str, Turn]]:
    """What each row carries, by what is asked."""
    ways = {row.name: row.wires.way for row in rows if row.wires is not None}
    return {
        "connects": {name: flows.connections(way, []) for name, way in ways.items()},
        "sent": {name: flows.stream(way) for name, way in ways.items()},
    }


def _blocks(count: int) -> list[IPv4Network]:
    """Of several lengths, none of which touches another; the target's is the last."""
    draw = random.Random(0)
    lengths = [length for length, _ in _LENGTHS]
    drawn = draw.choices(lengths, [weight for _, weight in _LENGTHS], k=count - 1)
    found, at = [], _FIRST
    for length in drawn:
        size = 1 << (32 - length)
        at = -(-at // size) * size  # where such a prefix may begin
        found.append(IPv4Network((at, length)))
        at += size + 1
    draw.shuffle(found)
    return [*found, _TARGET]


# What is told


def _figures(rows: dict[tuple[str, int], _Row]) -> Iterator[Figure]:
    none = rows["none", 0]
    for name, asked in _ASKED.items():
        target = Target(1 - FLAT, at_least=True) if asked.more_is_better else Target(1 + FLAT)

        def compared(
            what: str, title: str, ours: _Row, other: _Row, bound: Target | None = None,
            name: str = name, asked: _Asked = asked,
        ) -> Figure:  # fmt: skip
            return Figure(
                f"policies-{name}-{what}",
                f"{asked.title}, {title}",
                asked.unit,
                ours.looks[name],
                other.looks[name],
                bound,
            )

        few = rows["policies", POLICIES[0]]
        title = f"{POLICIES[0]} policies (reference: none)"
        yield compared(f"{POLICIES[0]}", title, few, none, target)
        for count in POLICIES[1:]:
            title = f"{count:,} policies (reference: {POLICIES[0]})"
            yield compared(f"{count}", title, rows["policies", count], few, target)
        for size in BLOCKS[1:]:
            title = f"{size:,} ipBlocks (reference: {BLOCKS[0]})"
            yield compared(f"blocks-{size}", title, rows[OURS, size], rows[OURS, BLOCKS[0]], target)
        for size in BLOCKS:
            for (way, count), other in rows.items():
                if count == size and way not in (OURS, "policies"):
                    what = f"{way.replace(' ', '-')}-{size}"
                    title = f"{size:,} ipBlocks (reference: {way})"
                    yield compared(what, title, rows[OURS, size], other)
    for size in BLOCKS:
        took = rows[OURS, size].took
        assert took is not None
        title = f"{size:,} ipBlocks to the kernel"
        yield Figure(f"policies-program-{size}", title, "CPU ms", [took.cpu_ms])
        yield Figure(f"policies-memory-{size}", f"{title}, most memory", "MB", [took.megabytes])
        title = f"{size:,} ipBlocks in the kernel"
        yield Figure(f"policies-kernel-{size}", title, "MB", [took.kernel_megabytes])


def _table(rows: Sequence[_Row]) -> str:
    heads = ("egress filtering", "first packet, CPU us", "standing, CPU us", "connects/s", "Gbit/s",
             "to program, CPU ms", "MB", "in force, kernel MB")  # fmt: skip
    lines = []
    for row in rows:
        looks = [f"{median(each):.3g}" if each else "-" for each in row.looks.values()]
        took = row.took
        costs = (took.cpu_ms, took.megabytes, took.kernel_megabytes) if took is not None else ()
        told = [str(round(each)) for each in costs] or ["-", "-", "-"]
        lines.append((row.name, *looks, *told))
    found = text_table(heads, lines)
    missing = [f"not there: {row.name}: {row.why}" for row in rows if row.wires is None]
    return "\n".join([found, *missing])


def _plot(rows: Sequence[_Row]) -> str:
    panels = {
        "CPU time of a connection's first packet, µs": "first",
        "new connections of TCP, 1/s": "connects",
    }
    ways = dict.fromkeys(row.way for row in rows if row.size and row.way != "policies")
    return plot(
        {
            title: {
                way: {row.size: median(row.looks[name]) for row in rows if row.way == way}
                for way in ways
            }
            for title, name in panels.items()
        }
    )
