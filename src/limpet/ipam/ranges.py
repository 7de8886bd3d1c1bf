"""Ranges of addresses that are given out, as host-local has them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from limpet.base.addresses import Address, Prefix


@dataclass(frozen=True, slots=True)
class Range:
    """One entry of host-local's `ranges`: bounds inclusive, the gateway never given."""

    subnet: Prefix
    range_start: Address
    range_end: Address
    gateway: Address


RangeSet = tuple[Range, ...]
"""Ranges of one family; one address is given out of each set."""


def segment_range(segment: Prefix) -> Range:
    """A whole segment: first usable address is the gateway's, network and broadcast left out.

    A segment has at least four addresses.
    """
    last = segment[-2] if segment.version == 4 else segment[-1]
    return Range(subnet=segment, range_start=segment[1], range_end=last, gateway=segment[1])


def segment_range_sets(segments: Iterable[Prefix]) -> tuple[RangeSet, ...]:
    """The segments as one range set for each family that they have."""
    held = tuple(segments)
    return tuple(
        tuple(segment_range(segment) for segment in held if segment.version == version)
        for version in (4, 6)
        if any(segment.version == version for segment in held)
    )
