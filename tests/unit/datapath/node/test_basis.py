"""What a plan goes by, in a file."""

from __future__ import annotations

import os
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path

import pytest

from limpet.base.node_state import NodeState, RoutedNetworks
from limpet.datapath.node.basis import (
    BASIS_FILE,
    BasisFile,
    PlanBasis,
    decode_basis,
    encode_basis,
    read_basis,
)
from limpet.datapath.node.pod.attachment import BridgeSpec

FULL = PlanBasis(
    NodeState(
        segments=(ip_network("10.244.7.0/24"), ip_network("fd00:7::/64")),
        cluster_cidrs=(ip_network("10.244.0.0/16"),),
        behind=RoutedNetworks(
            (ip_network("10.1.0.0/16"),), (ip_network("10.2.0.0/16"),), (ip_network("fd01::/48"),)
        ),
        in_cluster=True,
        underlay_mtu_bytes=1400,
        overlay_links=frozenset({"limvx4", "limwg0"}),
        own_ports=frozenset({("UDP", 7471, 7471), ("TCP", 443, 443)}),
    ),
    bridges=(
        BridgeSpec("limpet0", (ip_interface("10.244.7.1/24"),), (ip_network("10.244.7.0/24"),)),
        BridgeSpec("lan0", promisc=True),
    ),
    host_ports_expected=True,
    names_at=(ip_address("169.254.20.10"), ip_address("fd5b:9ad1:7e3c::53")),
)


@pytest.mark.parametrize("basis", [PlanBasis(), FULL])
def test_it_is_read_as_it_was_written(basis: PlanBasis) -> None:
    assert decode_basis(encode_basis(basis)) == basis


def test_it_is_written_for_root_alone_when_it_is_new_and_else_left_alone(tmp_path: Path) -> None:
    path = tmp_path / BASIS_FILE
    assert read_basis(path) is None
    file = BasisFile(path)
    file.keep(FULL)
    assert path.stat().st_mode & 0o777 == 0o600
    first = path.stat().st_ino

    file.keep(FULL)
    assert path.stat().st_ino == first
    assert read_basis(path) == FULL
    file.keep(PlanBasis())
    assert read_basis(path) == PlanBasis()
    assert os.listdir(tmp_path) == [BASIS_FILE]


def test_where_it_cannot_be_written_it_is_when_it_can(tmp_path: Path) -> None:
    path = tmp_path / "later" / BASIS_FILE
    file = BasisFile(path)
    file.keep(FULL)
    path.parent.mkdir()

    file.keep(FULL)

    assert read_basis(path) == FULL


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"version":1}',
        encode_basis(FULL)[:-9],
        encode_basis(FULL).replace(b"10.1.0.0/16", b"10.1.0.1/16"),
        encode_basis(FULL).replace(b'"version":1', b'"version":2'),
    ],
)
def test_one_that_is_nonsense_or_of_a_later_version_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / BASIS_FILE
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"."):
        decode_basis(content)
    assert read_basis(path) is None
