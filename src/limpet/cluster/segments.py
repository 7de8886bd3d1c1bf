"""When a node needs a further segment, and which is granted next. Pure, time is passed in.

A node asks before it runs out, so that it can grow while cut off.

The address space of a family is cut into segments of one length, numbered from 0. Space that was
never used goes first; what a removed node held rests, and is granted again when nothing else is
left, the longest rested first. Where somebody else hands out segments too (Kubernetes), only the
controller's own part of the space is granted here; what the others handed out is held all the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from itertools import combinations

from limpet.base.addresses import LONGEST_SEGMENT, Prefix, bounds_of
from limpet.base.errors import ExhaustedError
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import Network

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

    def __init__(
        self, network: Network, quarantine_s: float, own_cidrs: Sequence[Prefix] | None = None
    ) -> None:
        """`own_cidrs`: parts of the pod CIDRs that segments are granted from; None: all of them."""
        self._cidrs: dict[int, Prefix] = {cidr.version: cidr for cidr in network.pod_cidrs}
        self._lengths = dict(network.segment_lengths)
        self._quarantine_s = quarantine_s
        own = network.pod_cidrs if own_cidrs is None else own_cidrs
        self._own = {version: self._numbers(version, own) for version in self._cidrs}
        self._holdings: dict[Prefix, Holding] = {}
        self._resting: dict[Prefix, Holding] = {}

    def _numbers(self, version: int, cidrs: Sequence[Prefix]) -> range:
        for cidr in cidrs:
            if cidr.version == version:
                whole, bits = self._cidrs[version], cidr.max_prefixlen - self._lengths[version]
                first, last = ((at - int(whole.network_address)) >> bits for at in bounds_of(cidr))
                return range(first, last + 1)
        return range(0)

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(sorted(self._cidrs))

    @property
    def holdings(self) -> Mapping[Prefix, Holding]:
        return self._holdings

    def is_resting(self, uid: str) -> bool:
        """Whether something rests that this node had: it was removed."""
        return any(holding.uid == uid for holding in self._resting.values())

    def left_over(self, version: int, uid: str, named: Collection[Prefix]) -> Prefix | None:
        """What is held for the node and none of what its grant names: a writer was stopped between
        the segment and the grant."""
        for prefix, holding in self._holdings.items():
            is_held = holding.uid == uid and holding.resting_since_s is None
            if is_held and prefix.version == version and prefix not in named:
                return prefix
        return None

    def own(self, version: int) -> range:
        """Numbers of the segments of the family that are granted here; there may be none."""
        return self._own[version]

    def free(self, version: int) -> int:
        """How many segments of those nobody has or had."""
        own = self._own[version]
        held = (self.number(each) for each in self._holdings if each.version == version)
        return (
            own.stop - own.start - sum(1 for number in held if number is not None and number in own)
        )

    def number(self, prefix: Prefix) -> int | None:
        """None for what is no segment of this cluster."""
        cidr = self._cidrs.get(prefix.version)
        if cidr is None or prefix.prefixlen != self._lengths[prefix.version]:
            return None
        offset = int(prefix.network_address) - int(cidr.network_address)
        number = offset >> (cidr.max_prefixlen - prefix.prefixlen)
        size = 1 << (prefix.prefixlen - cidr.prefixlen)
        return number if 0 <= number < size else None

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
        self,
        version: int,
        mark: int,
        now_s: float,
        *,
        only_unused: bool = False,
        avoid: Collection[Prefix] = (),
    ) -> Prefix:
        """`mark`: the highest number that was ever granted, -1 for none. `avoid`: segments that
        somebody else has handed out. Raises: ExhaustedError."""
        own = self._own[version]
        unused = self._first_free(version, mark + 1, avoid)
        if unused is not None:
            return unused
        if only_unused and own:
            raise ExhaustedError(
                f"grant an IPv{version} segment: after the restore only space that was never used "
                "may be granted, and none is left (see `limpet controller recovery`)"
            )
        free = self._first_free(version, 0, avoid) or self._longest_rested(version, now_s, avoid)
        if free is None:
            raise ExhaustedError(self._full(version))
        return free

    def _first_free(self, version: int, start: int, avoid: Collection[Prefix]) -> Prefix | None:
        """The lowest from `start` on that nobody has and nobody had."""
        own = self._own[version]
        for number in range(max(start, own.start), own.stop):
            segment = self.segment(version, number)
            if segment not in self._holdings and segment not in avoid:
                return segment
        return None

    def _longest_rested(
        self, version: int, now_s: float, avoid: Collection[Prefix]
    ) -> Prefix | None:
        rested = [
            (holding.resting_since_s, holding.prefix)
            for holding in self._resting.values()
            if holding.prefix.version == version
            and holding.resting_since_s is not None
            and now_s - holding.resting_since_s >= self._quarantine_s
            and self.number(holding.prefix) in self._own[version]
            and holding.prefix not in avoid
        ]
        return min(rested)[1] if rested else None

    def rests_until_s(self, holding: Holding) -> float | None:
        """When it is free again, by the controller's clock; None: it is held."""
        since_s = holding.resting_since_s
        return None if since_s is None else since_s + self._quarantine_s

    def _full(self, version: int) -> str:
        own = self._own[version]
        if not own:
            return (
                f"grant an IPv{version} segment: the controller has no IPv{version} addresses of "
                "its own, since nodes have the podCIDRs of their Nodes in Kubernetes (name in "
                "own_cidrs of the controller's configuration a part of pod_cidrs that Kubernetes "
                "does not hand out)"
            )
        size = own.stop - own.start  # of IPv6 there may be more than len() can say
        cidr = self._cidrs[version]
        whole = size == 1 << (self._lengths[version] - cidr.prefixlen)
        of = f"{cidr}" if whole else "the controller's own_cidrs"
        resting = sum(1 for each in self._resting if self._is_own(each, version))
        return (
            f"grant an IPv{version} segment: all {size} of {of} "
            f"are taken, {resting} of them rest after their node was removed "
            "(remove nodes that are gone for good: limpet node remove NAME)"
        )

    def _is_own(self, prefix: Prefix, version: int) -> bool:
        return prefix.version == version and self.number(prefix) in self._own[version]


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
        if length > LONGEST_SEGMENT[cidr.version]:
            problems.append(
                f"segment_length_v{cidr.version} = {length}: a segment holds a gateway and a pod, "
                f"so at most {LONGEST_SEGMENT[cidr.version]}"
            )
        elif length < cidr.prefixlen:
            problems.append(
                f"segment_length_v{cidr.version} = {length}: no /{length} fits into {cidr} "
                f"(choose {cidr.prefixlen} to {LONGEST_SEGMENT[cidr.version]})"
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


def own_cidr_problems(network: Network, own_cidrs: Sequence[Prefix]) -> list[str]:
    """Why these can't be the part of the pod CIDRs that the controller grants from; empty: none."""
    problems = []
    for number, cidr in enumerate(own_cidrs):
        if any(cidr.version == before.version for before in own_cidrs[:number]):
            problems.append(f"own_cidrs: more than one of IPv{cidr.version} (name one)")
        whole = [each for each in network.pod_cidrs if each.version == cidr.version]
        length = network.segment_lengths[cidr.version]
        if not whole or not _is_inside(cidr, whole[0]):
            inside = ", ".join(map(str, network.pod_cidrs))
            problems.append(
                f"own_cidrs: {cidr} is not inside of pod_cidrs ({inside}): all pods' addresses are"
            )
        elif cidr.prefixlen > length:
            problems.append(
                f"own_cidrs: no segment of /{length} fits into {cidr} (name one of /{length} or "
                "wider)"
            )
    return problems


def _is_inside(prefix: Prefix, cidr: Prefix) -> bool:
    first, last = bounds_of(cidr)
    inner_first, inner_last = bounds_of(prefix)
    return prefix.version == cidr.version and first <= inner_first and inner_last <= last


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
