"""Choice of a pod's address out of a range set. Pure; addresses are plain integers inside."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from limpet.base.addresses import Address, Prefix
from limpet.base.errors import ExhaustedError, UnavailableError
from limpet.ipam.leases import FREE, Entry, Holder, Range, RangeSet, Usage, address_of, number_of

MORE_ROOM = (
    "give the network a range of its own, or the node another segment: in `segments` of the "
    "agent's configuration, or by the controller's `segment_quota` where a cluster grants them"
)
"""What to do where no address is left."""
_TRIES = 65536
"""Free addresses that are asked about, one by one, when others of the node use them."""


class Intervals:
    """A set of integers as disjoint intervals: small however wide they are, ordered."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __contains__(self, number: int) -> bool:
        i = bisect_right(self._starts, number) - 1
        return i >= 0 and number <= self._ends[i]

    def __len__(self) -> int:
        return len(self._starts)

    def count(self) -> int:
        """How many integers are in it."""
        return sum(self._ends) - sum(self._starts) + len(self._starts)

    def add(self, low: int, high: int) -> None:
        """Add low to high inclusive."""
        first = bisect_left(self._ends, low - 1)
        last = bisect_right(self._starts, high + 1)
        if first < last:
            low, high = min(low, self._starts[first]), max(high, self._ends[last - 1])
        self._starts[first:last] = [low]
        self._ends[first:last] = [high]

    def remove(self, number: int) -> None:
        i = bisect_right(self._starts, number) - 1
        if i < 0 or number > self._ends[i]:
            return
        start, end = self._starts[i], self._ends[i]
        pieces = [(a, b) for a, b in ((start, number - 1), (number + 1, end)) if a <= b]
        self._starts[i : i + 1] = [a for a, _ in pieces]
        self._ends[i : i + 1] = [b for _, b in pieces]

    def around(self, number: int) -> Iterator[int]:
        """Every member once, upwards from `number`, then from the lowest."""
        first = max(bisect_right(self._starts, number) - 1, 0)
        for i in range(first, len(self._starts)):
            yield from range(max(self._starts[i], number), self._ends[i] + 1)
        for i in range(min(first + 1, len(self._starts))):
            yield from range(self._starts[i], min(self._ends[i], number - 1) + 1)


def reserved_addresses(subnet: Prefix) -> dict[int, str]:
    """Addresses of `subnet` that no pod can have, and what each is.

    All of a /31, /32, /127 and /128 can be used (RFC 3021, RFC 6164); from /126 on the first of an
    IPv6 subnet is its routers' (RFC 4291, 2.6.1).
    """
    if subnet.prefixlen > subnet.max_prefixlen - 2:
        return {}
    first = number_of(subnet.network_address)
    if subnet.version == 6:
        return {first: f"the subnet-router anycast address of {subnet}"}
    return {
        first: f"the network address of {subnet}",
        number_of(subnet.broadcast_address): f"the broadcast address of {subnet}",
    }


class Pool:
    """The addresses of one range set, by state; the cost of a change does not grow with its size.

    `gateways` are never given, whichever range set they belong to.
    """

    def __init__(
        self,
        range_set: RangeSet,
        gateways: Collection[Address],
        entries: Mapping[int, Entry],
        mark: int | None = None,
        resting: Mapping[int, float] | None = None,
    ) -> None:
        self.mark = mark
        """The address given last; the search goes on behind it."""
        self._reserved = {number_of(gateway): "a gateway" for gateway in gateways}
        for member in range_set:
            self._reserved |= reserved_addresses(member.subnet)
        self._ranges = [(_bounds(member), member) for member in range_set]
        self._all = self._usable()
        self._free = self._usable()
        self._total = self._all.count()
        self._live: set[int] = set()
        self._resting: OrderedDict[int, float] = OrderedDict()
        self._bound: OrderedDict[int, None] = OrderedDict()
        for number, entry in sorted(entries.items(), key=_order):
            self.place(number, entry, 0.0)
        for number, since_s in (resting or {}).items():
            self.place(number, FREE, since_s)

    def _usable(self) -> Intervals:
        usable = Intervals()
        for (low, high), _ in self._ranges:
            if low <= high:
                usable.add(low, high)
        for number in self._reserved:
            usable.remove(number)
        return usable

    def __contains__(self, number: int) -> bool:
        return number in self._all

    def place(self, number: int, entry: Entry, now_s: float) -> None:
        """Take note of the new state of an address; one that is not of the pool changes nothing.

        Whatever was in use before and is free now rests from `now_s` on.
        """
        if number not in self._all:
            return
        self._live.discard(number)
        self._resting.pop(number, None)
        self._bound.pop(number, None)
        self._free.remove(number)
        if entry.holder is not None:
            self._live.add(number)
        elif entry.binding is not None:
            self._bound[number] = None
        else:
            self._resting[number] = now_s

    def wake(self, released_before_s: float) -> None:
        """End the rest of everything released at or before that time."""
        while self._resting:
            number, since_s = next(iter(self._resting.items()))
            if since_s > released_before_s:
                return
            del self._resting[number]
            self._free.add(number, number)

    def candidates(self) -> Iterator[int]:
        """Addresses that nobody holds, the one to be given first first.

        Free ones in turn, then resting and then absent pods' ones, longest unused first.
        """
        (first, _), _ = self._ranges[0]
        start = first if self.mark is None else self.mark + 1
        yield from islice(self._free.around(start), _TRIES)
        yield from self._resting
        yield from self._bound

    def longest_absent(self, beyond: int) -> int | None:
        """The absent pod's address that is unused for longest, if there are more than `beyond`."""
        return next(iter(self._bound)) if len(self._bound) > beyond else None

    def usage(self) -> Usage:
        return Usage(self._total, len(self._live), len(self._resting), len(self._bound))

    def range_of(self, number: int) -> Range:
        """The range that an address of the pool is in."""
        return next(member for (low, high), member in self._ranges if low <= number <= high)

    def refusal(self, number: int) -> str:
        """Why an address is not of the pool."""
        return f"it is {self._reserved[number]}" if number in self._reserved else ""

    def __str__(self) -> str:
        """The ranges as a person counts them: without what no pod can have."""
        return ", ".join(f"{member.subnet} ({self._words(*span)})" for span, member in self._ranges)

    def _words(self, low: int, high: int) -> str:
        while low <= high and low in self._reserved:
            low += 1
        while low <= high and high in self._reserved:
            high -= 1
        if low > high:
            return "no address for pods"
        inside = [
            str(address_of(number)) for number in sorted(self._reserved) if low < number < high
        ]
        without = f" without {', '.join(inside)}" if inside else ""
        return f"{address_of(low)} to {address_of(high)}{without}"


def _bounds(member: Range) -> tuple[int, int]:
    """First and last number of a range, within its subnet."""
    subnet = member.subnet
    low = max(number_of(member.range_start), number_of(subnet.network_address))
    return low, min(number_of(member.range_end), number_of(subnet.broadcast_address))


def _order(item: tuple[int, Entry]) -> tuple[int, int]:
    number, entry = item
    return (entry.binding.order if entry.binding else 0, number)


@dataclass(frozen=True, slots=True)
class Claim:
    """Who asks, and for what."""

    network: str
    holder: Holder
    held: Sequence[int] = ()
    """What the holder has already."""
    kept: Sequence[int] = ()
    """What is kept for the pod; empty also for a pod without a name."""
    requested: Sequence[Address] = ()
    """Addresses that must be given, at most one of each range set."""
    taken_elsewhere: Callable[[Address], bool] = lambda address: False
    """Whether something else on this node uses an address."""
    kept_elsewhere: Callable[[Address], bool] = lambda address: False
    """Whether another network of this node keeps an address for an absent pod, or has it rest."""
    is_alive: Callable[[Address, Holder], bool] = lambda address, holder: True
    """Whether a holder that is not known to be the pod's older sandbox still has its address."""


class AddressChoice(NamedTuple):
    number: int
    fresh: bool
    """False: the pod or the holder had it before, or asked for it."""


def choose(
    pools: Sequence[Pool], claim: Claim, entries: Mapping[int, Entry]
) -> tuple[AddressChoice, ...]:
    """One address out of each pool, in their order. Changes nothing.

    What is asked for comes first, then what the holder has, then what is kept for the pod, also
    from an older sandbox of it; then the candidates of the pool, last those that another network
    of the node keeps.

    Raises: UnavailableError, ExhaustedError.
    """
    wanted = _assign(pools, claim)
    chosen: list[AddressChoice] = []
    taken = set(wanted.values())
    for index, pool in enumerate(pools):
        if index in wanted:
            choice = AddressChoice(_demand(wanted[index], claim, entries), fresh=False)
        else:
            choice = _had(pool, claim, entries, taken) or _fresh(pool, claim, taken)
        taken.add(choice.number)
        chosen.append(choice)
    return tuple(chosen)


def _assign(pools: Sequence[Pool], claim: Claim) -> dict[int, int]:
    """Pool index -> the number asked for."""
    wanted: dict[int, int] = {}
    for address in dict.fromkeys(claim.requested):
        number = number_of(address)
        homes = [i for i, pool in enumerate(pools) if number in pool]
        if not homes:
            reasons = filter(None, (pool.refusal(number) for pool in pools))
            outside = f"it is outside {'; '.join(map(str, pools))}"
            raise _unavailable(claim, address, next(reasons, outside))
        free = [i for i in homes if i not in wanted]
        if not free:
            other = address_of(wanted[homes[0]])
            raise _unavailable(claim, address, f"{other} of the same range set is asked for too")
        wanted[free[0]] = number
    return wanted


def _demand(number: int, claim: Claim, entries: Mapping[int, Entry]) -> int:
    if _may_have(number, claim, entries):
        return number
    entry = entries.get(number, FREE)
    reason = "something else on this node uses it"
    if entry.holder is not None:
        reason = f"container {entry.holder.container_id or 'unknown'} holds it"
        if entry.binding is not None:
            key = entry.binding.key
            reason += f" (kept for pod {'/'.join(filter(None, (key.namespace, key.pod)))})"
    raise _unavailable(claim, address_of(number), reason)


def _unavailable(claim: Claim, address: Address, reason: str) -> UnavailableError:
    return UnavailableError(f"reserve address {address} in network {claim.network}: {reason}")


def _had(
    pool: Pool, claim: Claim, entries: Mapping[int, Entry], taken: Collection[int]
) -> AddressChoice | None:
    for number in (*claim.held, *claim.kept):
        if number in pool and number not in taken and _may_have(number, claim, entries):
            return AddressChoice(number, fresh=False)
    return None


def _may_have(number: int, claim: Claim, entries: Mapping[int, Entry]) -> bool:
    """Whether the claim may have this very address, held, kept or asked for."""
    if claim.taken_elsewhere(address_of(number)):
        return False
    holder, binding = entries.get(number, FREE)
    if holder is None:
        return True
    if holder == claim.holder or number in claim.held:
        return True
    # The newest ADD of a pod wins over its own older sandbox, but over no other container.
    sandbox = binding.container_id if binding is not None and number in claim.kept else ""
    if sandbox and sandbox == holder.container_id:
        return True
    return not claim.is_alive(address_of(number), holder)


def _fresh(pool: Pool, claim: Claim, taken: Collection[int]) -> AddressChoice:
    elsewhere, kept = 0, None
    for number in pool.candidates():
        if number in taken:
            continue
        address = address_of(number)
        if claim.taken_elsewhere(address):
            elsewhere += 1
        elif not claim.kept_elsewhere(address):
            return AddressChoice(number, fresh=True)
        elif kept is None:
            kept = number
    if kept is not None:
        return AddressChoice(kept, fresh=True)
    usage = pool.usage()
    unusable = f", {elsewhere} used by others of this node" if elsewhere else ""
    raise ExhaustedError(
        f"reserve an address in network {claim.network}: none of {usage.total} is free in {pool}: "
        f"{usage.live} live, {usage.resting} resting, {usage.bound} kept for absent pods{unusable} "
        f"({MORE_ROOM}; `limpet ipam list` shows who holds them, `limpet ipam repair` releases "
        "those whose containers are gone, `limpet ipam release` single ones)"
    )
