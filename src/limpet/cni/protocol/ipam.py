"""The `ipam` object of a network configuration, as host-local takes it."""

from __future__ import annotations

from itertools import pairwise

from limpet.base.errors import CniCode, CniError
from limpet.cni.protocol.fields import Fields, invalid, keys, list_items
from limpet.cni.protocol.values import IpamConf
from limpet.datapath.node.pod.attachment import RouteSpec
from limpet.ipam.leases import Range, RangeSet

OWN_TYPE = "limpet"
"""`type` of our main plugin, and `ipam.type` of our IPAM plugin: the name of the binary."""

IPAM = keys(
    *("type", "ranges", "routes", "resolvConf", "dataDir"),
    *("subnet", "rangeStart", "rangeEnd", "gateway"),
)
_RANGE = keys("subnet", "rangeStart", "rangeEnd", "gateway")
ROUTE = keys("dst", "gw", "mtu", "advmss", "priority", "table", "scope")
_U32 = 2**32 - 1


def parse_ipam(top: Fields) -> tuple[IpamConf, list[str]]:
    """`ipam` of a network configuration, and the dotted names of the keys in it that say nothing.

    Raises: CniError 7.
    """
    ipam = top.object("ipam", IPAM)
    unknown = ipam.unknown
    _check_type(ipam)
    sets = parse_range_sets(ipam.values.get("ranges"), ipam.at("ranges"), unknown)
    if "subnet" in ipam.values:
        sets = ((_parse_range(ipam),), *sets)
    else:  # the reference ignores these too when there is no subnet beside them
        unknown += [ipam.at(k) for k in ("rangeStart", "rangeEnd", "gateway") if k in ipam.values]
    check_overlaps(sets, "ipam.ranges")
    routes = []
    for route in ipam.objects("routes", ROUTE):
        routes.append(to_route(route))
        unknown += route.unknown
    conf = IpamConf(
        range_sets=sets,
        routes=tuple(routes),
        resolv_conf=ipam.absolute_path("resolvConf"),
        data_dir=ipam.absolute_path("dataDir"),
    )
    return conf, unknown


def _check_type(ipam: Fields) -> None:
    kind = ipam.text("type")
    if kind not in (None, "", OWN_TYPE, "host-local"):
        raise ipam.invalid("type", "is not served", 'limpet serves "limpet" and "host-local"')
    if kind == "host-local" and "subnet" not in ipam.values and not ipam.values.get("ranges"):
        raise CniError(
            CniCode.INVALID_NETWORK_CONFIG,
            'ipam.ranges: missing with ipam.type "host-local"',
            'ipam.type "limpet" takes the addresses from the segments of the node',
        )


def parse_range_sets(value: object, path: str, unknown: list[str]) -> tuple[RangeSet, ...]:
    """host-local's `[[{subnet, rangeStart, rangeEnd, gateway}, …], …]`."""
    sets = []
    for set_path, entries in list_items(value, path) if value is not None else []:
        members = [Fields(entry, at, _RANGE) for at, entry in list_items(entries, set_path)]
        ranges = tuple(_parse_range(member) for member in members)
        if not ranges:
            raise invalid(set_path, entries, "is an empty range set")
        if len({r.subnet.version for r in ranges}) > 1:
            raise invalid(set_path, entries, "mixes IPv4 and IPv6", "make two range sets of it")
        sets.append(ranges)
        for member in members:
            unknown += member.unknown
    return tuple(sets)


def _parse_range(fields: Fields) -> Range:
    """One range with the defaults of host-local. Source: its Range.Canonicalize()."""
    subnet = fields.prefix("subnet", mask=False)
    if subnet is None:
        raise CniError(CniCode.INVALID_NETWORK_CONFIG, f"{fields.at('subnet')}: missing")
    if subnet.prefixlen > subnet.max_prefixlen - 2:
        raise fields.invalid("subnet", "is too small to give addresses from")
    first = subnet.network_address + 1
    last = subnet.broadcast_address - (1 if subnet.version == 4 else 0)
    bounds = {"gateway": first, "rangeStart": first, "rangeEnd": last}
    for key in bounds:
        address = fields.address(key)
        if address is None:
            continue
        if address not in subnet:
            raise fields.invalid(key, f"is not in {fields.at('subnet')} {subnet}")
        bounds[key] = address
    start, end = bounds["rangeStart"], bounds["rangeEnd"]
    if int(end) < int(start):
        raise fields.invalid("rangeEnd", f"is before the start of the range, {start}")
    return Range(subnet, start, end, bounds["gateway"])


def check_overlaps(sets: tuple[RangeSet, ...], path: str) -> None:
    """Raises: CniError 7 if two ranges, of one set or of two, share an address."""
    spans = sorted(
        (r.subnet.version, int(r.range_start), int(r.range_end), number)
        for number, members in enumerate(sets)
        for r in members
    )
    for (version, _, end, number), (next_version, start, _, next_number) in pairwise(spans):
        if version == next_version and start <= end:
            first, second = sorted((number, next_number))
            raise CniError(
                CniCode.INVALID_NETWORK_CONFIG,
                f"{path}: range sets {first} and {second} share addresses"
                if first != second
                else f"{path}: two ranges of range set {first} share addresses",
            )


def to_route(fields: Fields) -> RouteSpec:
    """A route in the form of CNI 1.1.0; 0 counts as unset where it does so in the reference."""
    destination = fields.prefix("dst", mask=True)
    if destination is None:
        raise CniError(CniCode.INVALID_NETWORK_CONFIG, f"{fields.at('dst')}: missing")
    gateway = fields.address("gw")
    if gateway is not None and gateway.version != destination.version:
        raise fields.invalid("gw", f"is not of the family of {destination}")
    return RouteSpec(
        destination,
        gateway,
        mtu=fields.number("mtu", 0, _U32) or None,
        advmss=fields.number("advmss", 0, _U32) or None,
        priority=fields.number("priority", 0, _U32) or None,
        table=fields.number("table", 0, _U32),
        scope=fields.number("scope", 0, 255),
    )
