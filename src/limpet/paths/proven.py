"""The ways to the peers that are proven: kept on the disk, and told on when they have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from ipaddress import ip_address, ip_network
from pathlib import Path

import msgspec
import structlog

from limpet.base.decoding import decode_json
from limpet.base.disk import read_regular, write_durably
from limpet.base.errors import StorageError
from limpet.base.faults import noted
from limpet.base.layered_map import alter
from limpet.base.records.version import VERSION, check_version
from limpet.base.timer import Timer
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath

_log = structlog.get_logger("paths")
_WRITE_AFTER_S = 1.0
"""Paths that change together are written together."""
_TRY_AGAIN_S = 30.0

Changes = Mapping[str, tuple[PeerPath | None, PeerPath | None]]
"""By the peer's uid: what was, and what is now."""


class ProvenPaths:
    """Runs on the event loop's thread; writes on another."""

    def __init__(self, file: Path, changed: Callable[[Changes], None]) -> None:
        self.now: Mapping[str, PeerPath] = read_paths(file)
        """By the peer's uid; from the start those that were proven last. Another mapping after
        each change."""
        self._file = file
        self._changed = changed
        self._coming: dict[str, PeerPath | None] = {}
        self._written: Mapping[str, PeerPath] = self.now
        self._alarm = Timer("paths on the disk", self._begin)
        self._writing: asyncio.Task[None] | None = None

    def note(self, uid: str, path: PeerPath | None) -> None:
        """The peer is reached by `path`: told soon, with others'."""
        if path == self._coming.get(uid, self.now.get(uid)):
            return
        if not self._coming:
            asyncio.get_running_loop().call_soon(self.tell)
        self._coming[uid] = path

    def tell(self) -> None:
        """Tell what came together once; it is on the disk soon."""
        before, coming, self._coming = self.now, self._coming, {}
        changed = {uid: path for uid, path in coming.items() if path != before.get(uid)}
        if changed:
            self.now = alter(before, changed)
            if self._writing is None and not self._alarm.is_set:
                self._alarm.set_in(_WRITE_AFTER_S)
            self._changed({uid: (before.get(uid), path) for uid, path in changed.items()})

    async def close(self) -> None:
        """What was proven is on the disk then, if the disk takes it."""
        self.tell()
        if self._writing is not None:
            await self._writing
        self._alarm.stop()
        if self._written is not self.now:
            await self._write()

    def _begin(self) -> None:
        self._writing = asyncio.get_running_loop().create_task(self._write_all())

    async def _write_all(self) -> None:
        written = False
        with noted("paths on the disk"):
            written = await self._write()
        self._writing = None
        if self._written is not self.now:
            self._alarm.set_in(_WRITE_AFTER_S if written else _TRY_AGAIN_S)

    async def _write(self) -> bool:
        paths = self.now
        try:
            await asyncio.to_thread(write_paths, self._file, paths)
        except StorageError as error:
            _log.warning("proven paths are not kept on the disk", error=str(error))
            return False
        self._written = paths
        return True


class _Path(msgspec.Struct, frozen=True, omit_defaults=True):
    rung: str
    mtu_bytes: int
    device: str = ""
    next_hops: tuple[str, ...] = ()
    underlay: str = ""
    endpoint: tuple[str, int] | None = None
    relay: str = ""
    prefixes: tuple[str, ...] = ()


class _File(msgspec.Struct, frozen=True):
    version: int
    paths: dict[str, _Path]


def read_paths(path: Path) -> dict[str, PeerPath]:
    """By the peer's uid. What cannot be read is as if it were not there: it is proven again."""
    try:
        data = read_regular(path)
        check_version(data)
        found = decode_json(data, _File)
        return {uid: _parse(record) for uid, record in found.paths.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        _log.warning(
            "what was proven before is lost, and is proven again", path=str(path), error=str(error)
        )
        return {}


def _parse(record: _Path) -> PeerPath:
    """Raises: ValueError."""
    if record.rung not in transports.TRANSPORTS:
        raise ValueError(f"no transport is called {record.rung!r}")
    endpoint = record.endpoint
    return PeerPath(
        transports.TRANSPORTS[record.rung],
        record.mtu_bytes,
        record.device,
        tuple(map(ip_address, record.next_hops)),
        ip_address(record.underlay) if record.underlay else None,
        None if endpoint is None else (ip_address(endpoint[0]), endpoint[1]),
        record.relay,
        tuple(map(ip_network, record.prefixes)),
    )


def write_paths(path: Path, paths: Mapping[str, PeerPath]) -> None:
    """On the disk when it returns. Raises: StorageError."""
    records = {
        uid: _Path(
            each.rung.name,
            each.mtu_bytes,
            each.device,
            tuple(map(str, each.next_hops)),
            str(each.underlay or ""),
            None if each.endpoint is None else (str(each.endpoint[0]), each.endpoint[1]),
            each.relay,
            tuple(map(str, each.prefixes)),
        )
        for uid, each in paths.items()
    }
    write_durably(path, msgspec.json.encode(_File(VERSION, records)))
