"""When a node needs a further segment, and which is granted next. Pure, time is passed in.

A node asks before it runs out, so that it can grow while cut off.

The address space of a family is cut into segments of one length, numbered from 0. Space that was
never used goes first; what a removed node held rests, and is granted again when nothing else is
left, the longest rested first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from itertools import combinations

from limpet.base.addresses import Prefix
from limpet.base.errors import ExhaustedError
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import Network

_LONGEST_SEGMENT = {4: 30, 6: 126}
"""A segment holds a gateway and at least one pod."""
_NEVER_PODS = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "224.0.0.0/3",
            "::/8",
            "fe80::/10",
            "ff00::/8",
        ),
    )
)


@dataclass(frozen=True, slots=True)
class Holding:
    """Who has a segment, or had it last."""

    prefix: Prefix
    uid: str
    """Empty: perhaps a node that we have not heard of, since we were restored from a back-up."""
    resting_since_s: float | None = None
    """By the controller's clock; None: it is held."""


class AddressSpace:
    """The cluster's segments: which are held, which rest, and which is next."""

    def __init__(self, network: Network, quarantine_s: float) -> None:
        self._cidrs: dict[int, Prefix] = {cidr.version: cidr for cidr in network.pod_cidrs}
        self._lengths = dict(network.segment_lengths)
        self._quarantine_s = quarantine_s
        self._holdings: dict[Prefix, Holding] = {}
        self._resting: dict[Prefix, Holding] = {}

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(sorted(self._cidrs))

    @property
    def holdings(self) -> Mapping[Prefix, Holding]:
        return self._holdings

    def size(self, version: int) -> int:
        """How many segments the family has."""
        return 1 << (self._lengths[version] - self._cidrs[version].prefixlen)

    def number(self, prefix: Prefix) -> int | None:
        """None for what is no segment of this cluster."""
        cidr = self._cidrs.get(prefix.version)
        if cidr is None or prefix.prefixlen != self._lengths[prefix.version]:
            return None
        offset = int(prefix.network_address) - int(cidr.network_address)
        number = offset >> (cidr.max_prefixlen - prefix.prefixlen)
        return number if 0 <= number < self.size(prefix.version) else None

    def segment(self, version: int, number: int) -> Prefix:
        cidr, length = self._cidrs[version], self._lengths[version]
        first = int(cidr.network_address) + (number << (cidr.max_prefixlen - length))
        # By the address, not the number: 1 as a number is always IPv4.
        return ip_network((ip_address(first.to_bytes(cidr.max_prefixlen // 8, "big")), length))

    def put(self, prefix: Prefix, holding: Holding | None) -> None:
        """None: it is as if nobody ever had it."""
        self._holdings.pop(prefix, None)
        self._resting.pop(prefix, None)
        if holding is not None:
            self._holdings[prefix] = holding
            if holding.resting_since_s is not None:
                self._resting[prefix] = holding

    def next_free(
        self, version: int, mark: int, now_s: float, *, only_unused: bool = False
    ) -> Prefix:
        """`mark`: the highest number that was ever granted, -1 for none. Raises: ExhaustedError."""
        for number in range(mark + 1, self.size(version)):
            segment = self.segment(version, number)
            if segment not in self._holdings:
                return segment
        if only_unused:
            raise ExhaustedError(
                f"grant an IPv{version} segment: after the restore only space that was never used "
                "may be granted, and none is left (see `limpet controller recovery`)"
            )
        free = self._gap(version) or self._longest_rested(version, now_s)
        if free is None:
            raise ExhaustedError(self._full(version))
        return free

    def _gap(self, version: int) -> Prefix | None:
        """The lowest that nobody has and nobody had."""
        of_family = sum(1 for prefix in self._holdings if prefix.version == version)
        if of_family >= self.size(version):
            return None
        for number in range(of_family + 1):
            segment = self.segment(version, number)
            if segment not in self._holdings:
                return segment
        return None

    def _longest_rested(self, version: int, now_s: float) -> Prefix | None:
        rested = [
            (holding.resting_since_s, holding.prefix)
            for holding in self._resting.values()
            if holding.prefix.version == version
            and holding.resting_since_s is not None
            and now_s - holding.resting_since_s >= self._quarantine_s
        ]
        return min(rested)[1] if rested else None

    def _full(self, version: int) -> str:
        resting = sum(1 for prefix in self._resting if prefix.version == version)
        return (
            f"grant an IPv{version} segment: all {self.size(version)} of {self._cidrs[version]} "
            f"are taken, {resting} of them rest after their node was removed "
            "(remove nodes that are gone for good: limpet node remove NAME)"
        )


def network_problems(network: Network) -> list[str]:
    """Why no cluster can be made of this; empty: it can."""
    problems = []
    versions = [cidr.version for cidr in network.pod_cidrs]
    if not versions:
        problems.append("pod_cidrs: at least one prefix is needed, for example 10.244.0.0/16")
    for version in (4, 6):
        if versions.count(version) > 1:
            problems.append(
                f"pod_cidrs: more than one of IPv{version} (name one that is large enough for all)"
            )
    for cidr in network.pod_cidrs:
        length = network.segment_lengths[cidr.version]
        if length > _LONGEST_SEGMENT[cidr.version]:
            problems.append(
                f"segment_length_v{cidr.version} = {length}: a segment holds a gateway and a pod, "
                f"so at most {_LONGEST_SEGMENT[cidr.version]}"
            )
        elif length < cidr.prefixlen:
            problems.append(
                f"segment_length_v{cidr.version} = {length}: no /{length} fits into {cidr} "
                f"(choose {cidr.prefixlen} to {_LONGEST_SEGMENT[cidr.version]})"
            )
        problems += [
            f"pod_cidrs: {cidr} overlaps {other}, which no pod may use (choose another, such as "
            f"{'10.244.0.0/16' if cidr.version == 4 else 'fd00:244::/48'})"
            for other in _NEVER_PODS
            if _overlap(cidr, other)
        ]
    every = [("pod_cidrs", each) for each in network.pod_cidrs]
    every += [("service_cidrs", each) for each in network.service_cidrs]
    problems += [
        f"{field_name}: {prefix} overlaps {other} of {other_name} (choose prefixes that lie apart)"
        for (other_name, other), (field_name, prefix) in combinations(every, 2)
        if _overlap(prefix, other)
    ]
    return problems


def behind_problem(
    network: Network, prefix: Prefix, others: Iterable[tuple[Prefix, str]]
) -> str | None:
    """Why the prefix can't be behind a node; `others`: what is, each with the name of its node."""
    for field_name, cidrs in (
        ("the cluster's pod CIDR", network.pod_cidrs),
        ("the cluster's service CIDR", network.service_cidrs),
    ):
        for cidr in cidrs:
            if _overlap(prefix, cidr):
                return (
                    f"it overlaps {field_name} {cidr}, so that nobody could tell which of the two "
                    "an address is of (name a prefix that lies apart)"
                )
    for never in _NEVER_PODS:
        if _overlap(prefix, never):
            return f"it overlaps {never}, which no node forwards (name a prefix that lies apart)"
    for other, name in others:
        if _overlap(prefix, other):
            return (
                f"it overlaps {other}, which is behind {name}: an address is behind one node "
                f"(limpet node set {name} --remove-behind {other})"
            )
    return None


def overlaps_with(network: Network, used: Iterable[Prefix]) -> list[tuple[Prefix, Prefix]]:
    """Pod or service CIDRs, each with a prefix that the node uses otherwise (its LAN) and meets."""
    own = (*network.pod_cidrs, *network.service_cidrs)
    return [(cidr, other) for other in used for cidr in own if _overlap(cidr, other)]


def _overlap(one: Prefix, other: Prefix) -> bool:
    return one.version == other.version and one.overlaps(other)


@dataclass(frozen=True, slots=True)
class SegmentUse:
    """How full one segment of this node is."""

    prefix: Prefix
    size: int
    """Addresses that pods can have."""
    live: int
    resting: int
    """Released a moment ago."""
    bound: int = 0
    """Kept for absent pods. They are given up in need, so they count as free."""

    @property
    def taken(self) -> int:
        return self.live + self.resting


def wanted_versions(grant: Grant, network: Network, uses: Sequence[SegmentUse]) -> tuple[int, ...]:
    """IP versions of which the node needs one more segment, in order.

    It has one of each version of the pods' before the first pod comes, and a spare one that
    nothing was taken of as soon as more than half of the others is taken, up to the network's
    quota. A granted segment that `uses` does not speak of is untouched.
    """
    versions = sorted({cidr.version for cidr in network.pod_cidrs})
    return tuple(version for version in versions if _is_wanted(version, grant, network, uses))


def _is_wanted(version: int, grant: Grant, network: Network, uses: Sequence[SegmentUse]) -> bool:
    granted = {segment for segment in grant.segments if segment.version == version}
    if not granted:
        return network.segment_quota > 0
    in_use = [use for use in uses if use.prefix in granted and use.taken]
    if len(in_use) < len(granted) or len(granted) >= network.segment_quota:
        return False
    return 2 * sum(use.taken for use in in_use) > sum(use.size for use in in_use)
