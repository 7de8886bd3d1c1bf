"""The ways to the peers that were proven last, on the disk."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path

import msgspec
import structlog

from limpet.agent.identity import write_durably
from limpet.model.overlay import PeerPath, Rung

_log = structlog.get_logger("paths")
_VERSION = 1


class _Path(msgspec.Struct, frozen=True, omit_defaults=True):
    rung: Rung
    mtu_bytes: int
    device: str = ""
    next_hops: tuple[str, ...] = ()
    underlay: str = ""


class _File(msgspec.Struct, frozen=True):
    version: int
    paths: dict[str, _Path]


def read_paths(path: Path) -> dict[str, PeerPath]:
    """By the peer's uid. What cannot be read is as if it were not there: it is proven anew."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_File)
        if found.version != _VERSION:
            raise ValueError(f"version {found.version} instead of {_VERSION}")
        return {uid: _parse(record) for uid, record in found.paths.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
        _log.warning(
            "what was proven before is lost, and is proven anew", path=str(path), error=str(error)
        )
        return {}


def _parse(record: _Path) -> PeerPath:
    """Raises: ValueError."""
    return PeerPath(
        record.rung,
        record.mtu_bytes,
        record.device,
        tuple(map(ip_address, record.next_hops)),
        ip_address(record.underlay) if record.underlay else None,
    )


def write_paths(path: Path, paths: Mapping[str, PeerPath]) -> None:
    """On the disk when it returns. Raises: StorageError."""
    records = {
        uid: _Path(
            each.rung,
            each.mtu_bytes,
            each.device,
            tuple(map(str, each.next_hops)),
            str(each.underlay or ""),
        )
        for uid, each in paths.items()
    }
    write_durably(path, msgspec.json.encode(_File(_VERSION, records)))
