"""WireGuard's values for tests of both its protocols."""

from __future__ import annotations

from hypothesis import strategies as st
from tests.strategies import prefixes

from limpet.datapath.tunnel.state import (
    DeviceReading,
    DeviceSetting,
    PeerReading,
    PeerSetting,
    TunnelPeer,
)

keys = st.binary(min_size=32, max_size=32)
ports = st.integers(1, 65535)
endpoints = st.tuples(st.ip_addresses(v=4) | st.ip_addresses(v=6), ports)
keepalives = st.integers(0, 65535)
peers = st.builds(
    TunnelPeer,
    keys,
    st.frozensets(prefixes, max_size=5),
    st.none() | endpoints,
    keepalives,
)
bytes_counted = st.integers(0, 2**64 - 1)
peer_readings = st.builds(PeerReading, peers, st.integers(0, 2**62), bytes_counted, bytes_counted)


def readings() -> st.SearchStrategy[DeviceReading]:
    return st.builds(
        DeviceReading,
        keys,
        st.integers(0, 65535),
        st.integers(0, 2**32 - 1),
        st.lists(peer_readings, max_size=4).map(
            lambda found: {each.peer.public_key: each for each in found}
        ),
    )


def settings() -> st.SearchStrategy[DeviceSetting]:
    peer_settings = st.builds(
        PeerSetting,
        keys,
        st.lists(prefixes, max_size=5, unique=True).map(tuple),
        st.none() | endpoints,
        st.none() | keepalives,
        st.booleans(),
    )
    return st.builds(
        DeviceSetting,
        st.none() | keys,
        st.none() | ports,
        st.none() | st.integers(0, 2**32 - 1),
        st.lists(peer_settings, max_size=4, unique_by=lambda each: each.public_key).map(tuple),
    )
