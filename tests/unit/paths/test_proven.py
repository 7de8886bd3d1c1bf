"""Proven paths on the disk: there after a restart, and no worse than missing when damaged."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.base.errors import StorageError
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath
from limpet.paths.proven import Changes, ProvenPaths, read_paths, write_paths
from tests.effort import examples

ONE = PeerPath(transports.VXLAN, 1400, underlay=ip_address("192.0.2.1"))
paths = st.builds(
    PeerPath,
    st.sampled_from(transports.by_preference()),
    st.integers(68, 65535),
    st.text(max_size=15),
    st.lists(st.ip_addresses(), max_size=2).map(tuple),
    st.none() | st.ip_addresses(),
    st.none() | st.tuples(st.ip_addresses(), st.integers(0, 65535)),
    st.text(max_size=24),
    st.lists(st.ip_addresses().map(ip_network), max_size=2).map(tuple),
)


@settings(deadline=None, max_examples=25)
@given(st.dictionaries(st.text(min_size=1, max_size=24), paths, max_size=4))
def test_paths_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, kept: dict[str, PeerPath]
) -> None:
    path = tmp_path_factory.getbasetemp() / "paths.json"
    write_paths(path, kept)
    assert read_paths(path) == kept


@settings(deadline=None, max_examples=examples(50))
@given(st.binary(max_size=80) | st.sampled_from([b'{"version":1,"paths":{"a":{"rung":"x"}}}']))
def test_whatever_the_file_holds_reading_it_raises_nothing(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    path.write_bytes(content)
    assert read_paths(path) == {}


@pytest.mark.parametrize("address", ["", "192.0.2", "fe80::1%eth0%"])
def test_a_file_with_an_address_that_is_none_counts_as_missing(
    tmp_path: Path, address: str
) -> None:
    path = tmp_path / "paths.json"
    record = f'{{"rung":"route","mtu_bytes":1500,"next_hops":["{address}"]}}'
    path.write_text(f'{{"version":1,"paths":{{"a":{record}}}}}')
    assert read_paths(path) == {}


def test_closing_puts_on_the_disk_what_was_to_be_kept(tmp_path: Path) -> None:
    path = tmp_path / "paths.json"
    told: list[Changes] = []

    async def scenario() -> None:
        proven = ProvenPaths(path, told.append)
        proven.note("a", ONE)
        await asyncio.sleep(0)
        proven.note("b", ONE)
        await proven.close()

    asyncio.run(scenario())
    assert read_paths(path) == {"a": ONE, "b": ONE}
    assert told == [{"a": (None, ONE)}, {"b": (None, ONE)}]


def test_a_disk_that_takes_nothing_stops_nobody(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "paths.json"

    async def scenario() -> None:
        proven = ProvenPaths(path, lambda _changes: None)
        proven.note("a", ONE)
        await proven.close()
        assert proven.now == {"a": ONE}

    asyncio.run(scenario())
    with pytest.raises(StorageError, match="No such file"):
        write_paths(path, {"a": ONE})
