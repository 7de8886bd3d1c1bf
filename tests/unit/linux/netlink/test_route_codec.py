"""Messages of routes and rules: what is encoded is what a parser of the same reads."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.base.addresses import Address, Prefix
from limpet.linux.netlink import route_codec
from tests.strategies import addresses, prefixes, u32
from tests.unit.linux.netlink.as_received import received


@given(
    prefix=prefixes,
    table=st.integers(1, 2**32 - 1),
    metric=st.integers(1, 2**32 - 1),
    ifindex=st.none() | st.integers(1, 2**31 - 1),
    mtu_bytes=st.none() | st.integers(1, 65535),
)
def test_a_route_is_read_back_as_it_was_put(
    prefix: Prefix, table: int, metric: int, ifindex: int | None, mtu_bytes: int | None
) -> None:
    gateway, source = prefix[0], prefix[-1]
    sent = route_codec.route(
        prefix,
        ifindex=ifindex,
        table=table,
        gateway=gateway,
        source=source,
        metric=metric,
        mtu_bytes=mtu_bytes,
    )
    found = route_codec.parse_route(received(sent))

    length = 4 if prefix.version == 4 else 16
    assert (found.destination or bytes(length)) == prefix.network_address.packed
    assert found.prefix_length == prefix.prefixlen
    assert (found.table, found.metric) == (table, metric)
    assert (found.gateway, found.source) == (gateway.packed, source.packed)
    assert (found.ifindex, found.mtu_bytes) == (ifindex or 0, mtu_bytes or 0)
    assert found.type == route_codec.RTN_UNICAST
    assert sent.what.startswith(f"route {prefix} via {gateway}")


@pytest.mark.parametrize(
    ("prefix", "gateway", "unreachable", "scope"),
    [
        ("10.0.0.0/8", None, False, route_codec.RT_SCOPE_LINK),
        ("10.0.0.0/8", "10.0.0.1", False, route_codec.RT_SCOPE_UNIVERSE),
        ("10.0.0.0/8", None, True, route_codec.RT_SCOPE_UNIVERSE),
        ("fd00::/8", None, False, route_codec.RT_SCOPE_UNIVERSE),
    ],
)
def test_an_ipv4_route_without_gateway_is_on_link(
    prefix: str, gateway: str | None, unreachable: bool, scope: int
) -> None:
    sent = route_codec.route(
        ip_network(prefix),
        ifindex=None if unreachable else 1,
        gateway=ip_address(gateway) if gateway else None,
        unreachable=unreachable,
    )
    assert received(sent).body[6] == scope


@given(st.sampled_from([4, 6]), u32, st.integers(1, 2**32 - 1), st.booleans())
def test_a_rule_is_read_back_as_it_was_put(
    version: int, priority: int, table: int, delete: bool
) -> None:
    sent = route_codec.rule(version, priority=priority, table=table, delete=delete)
    found = route_codec.parse_rule(received(sent))

    assert (found.version, found.priority, found.table) == (version, priority, table)


@given(prefixes, addresses, addresses, st.integers(1, 2**32 - 1), st.integers(68, 65535))
def test_a_route_to_a_peer_is_read_as_it_is_put(
    prefix: Prefix, gateway: Address, source: Address, metric: int, mtu_bytes: int
) -> None:
    message = received(
        route_codec.route(
            prefix,
            ifindex=4,
            gateway=gateway,
            source=source,
            metric=metric,
            mtu_bytes=mtu_bytes,
            table=5148,
            protocol=148,
            on_link="eth0",
        )
    )

    info = route_codec.parse_route(message)
    assert (info.table, info.protocol, info.type) == (5148, 148, route_codec.RTN_UNICAST)
    assert (info.ifindex, info.metric, info.mtu_bytes) == (4, metric, mtu_bytes)
    assert (info.prefix_length, info.source) == (prefix.prefixlen, source.packed)
    assert info.destination == (prefix.network_address.packed if prefix.prefixlen else b"")
    assert info.gateway == gateway.packed
    assert message.body[8] == route_codec.RTNH_F_ONLINK


@given(prefixes, st.integers(1, 2**32 - 1))
def test_a_route_is_deleted_by_prefix_metric_table_and_origin(prefix: Prefix, metric: int) -> None:
    request = route_codec.route(
        prefix, ifindex=None, metric=metric, table=5148, protocol=148, delete=True
    )

    info = route_codec.parse_route(received(request))

    assert (info.table, info.protocol, info.metric) == (5148, 148, metric)
    assert info.prefix_length == prefix.prefixlen
    assert info.ifindex == 0
