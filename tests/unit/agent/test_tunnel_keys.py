"""The tunnel's key and port are made once and are the same for ever."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from limpet.agent.tunnel_keys import keep_tunnel_key
from limpet.model.errors import ConfigError, StorageError


def test_key_and_port_are_the_same_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "tunnel.json"

    made = keep_tunnel_key(path)

    assert keep_tunnel_key(path) == made
    assert keep_tunnel_key(path, port=4000) == made
    assert len(made.private_key) == len(made.public_key) == 32
    assert made.private_key[0] % 8 == 0
    assert 64 <= made.private_key[31] < 128
    assert 1024 < made.port < 32768
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_key_goes_with_the_port_that_was_asked_for(tmp_path: Path) -> None:
    assert keep_tunnel_key(tmp_path / "tunnel.json", port=4000).port == 4000


def test_two_nodes_have_different_keys(tmp_path: Path) -> None:
    one, other = (keep_tunnel_key(tmp_path / name) for name in ("one", "other"))

    assert one.private_key != other.private_key
    assert one.public_key != other.public_key


@pytest.mark.parametrize(
    "content", [b"", b"{", b"{}", b'{"private_key":"AAAA","port":1}', b'{"private_key":5,"port":1}']
)
def test_a_damaged_key_is_told_and_never_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tunnel.json"
    path.write_bytes(content)

    with pytest.raises(ConfigError, match="is damaged"):
        keep_tunnel_key(path)

    assert path.read_bytes() == content


def test_a_port_that_is_none_is_told(tmp_path: Path) -> None:
    path = tmp_path / "tunnel.json"
    keep_tunnel_key(path, port=4000)
    path.write_bytes(path.read_bytes().replace(b"4000", b"70000"))

    with pytest.raises(ConfigError, match="port 70000"):
        keep_tunnel_key(path)


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nowhere"):
        keep_tunnel_key(tmp_path / "nowhere" / "tunnel.json")


def test_the_private_key_is_never_shown(tmp_path: Path) -> None:
    made = keep_tunnel_key(tmp_path / "tunnel.json")

    assert repr(made.private_key) not in repr(made)
