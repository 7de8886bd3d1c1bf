"""Back-up and restore of the controller's database, with all keys of the cluster."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from limpet.base.decoding import decode_json
from limpet.base.disk import Disk, refusals
from limpet.base.errors import ConfigError, LimpetError, StorageError
from limpet.base.process.lifetime import only_one
from limpet.controller.registry.records import (
    AUTHORITY,
    STATE,
    AuthorityRecord,
    StateRecord,
)
from limpet.controller.registry.registry import Registry
from limpet.controller.registry.rotation import take_keys
from limpet.controller.registry.tables import Tables
from limpet.controller.settings import ControllerSettings
from limpet.controller.state.recovery import begin
from limpet.controller.store.database import (
    begin_new_life,
    copy_database,
    read_item,
    unfinished,
)
from limpet.controller.store.sqlite import SqliteStore

T = TypeVar("T")


def back_up(settings: ControllerSettings, target: Path) -> None:
    """Also while the controller runs. Raises: ConfigError, StorageError."""
    _check_is_a_file("back up", settings)
    copy_database(settings.database, target)


def restore(settings: ControllerSettings, source: Path) -> Path | None:
    """Puts a back-up in the database's place; the next start recovers. The controller is stopped.

    Returns where the former database is now. Raises: LimpetError; then nothing has changed.
    """
    _check_is_a_file("restore", settings)
    with only_controller(settings):
        coming = _coming(settings)
        with refusals("restore", settings.database):
            _remove_all_of(coming)
        copy_database(source, coming)
        former = _Former(
            _item_of(settings.database, STATE, StateRecord),
            _item_of(settings.database, AUTHORITY, AuthorityRecord),
        )
        try:
            begin_new_life(coming)
            asyncio.run(_begin_recovery(coming, settings, former))
            if any(path.exists() for path in _companions(coming)):
                raise StorageError("restore", str(coming), "its log could not be taken into it")
        except BaseException:
            _remove_all_of(coming)
            raise
        with refusals("restore", settings.database):
            folder = settings.database.parent
            aside = _put_aside(settings.database)
            Disk().fsync_folder(folder)  # no power cut brings the former one's log back alone
            os.replace(coming, settings.database)
            Disk().fsync_folder(folder)
        return aside


def _check_is_a_file(operation: str, settings: ControllerSettings) -> None:
    """Raises: ConfigError."""
    if settings.place.store != "sqlite":
        raise ConfigError(
            f"{operation} the controller: its state is not in a file, but at an API server, as "
            f'store = "{settings.place.store}" says (save and restore its etcd: etcdctl snapshot; '
            "the controller finds out by itself what was granted since)"
        )


def only_controller(settings: ControllerSettings) -> AbstractContextManager[None]:
    """One process works on a database at a time. Raises: StorageError on entering."""
    return only_one(
        settings.state_dir / "controller.lock",
        folder_mode=0o700,
        taken="a controller runs on this database",
        hint="stop it first: systemctl stop limpet-controller",
    )


def check_no_restore_was_cut_off(settings: ControllerSettings) -> None:
    """Raises: StorageError."""
    coming = _coming(settings)
    if any(path.exists() for path in (coming, *_companions(coming))):
        raise StorageError(
            "open database",
            str(settings.database),
            "a restore was cut off",
            hint="run `limpet controller restore FILE` again, or remove "
            f"{coming}* to go on with what was there",
        )


def _coming(settings: ControllerSettings) -> Path:
    return settings.database.with_name(settings.database.name + ".restoring")


@dataclass(frozen=True, slots=True)
class _Former:
    """What the database that is replaced still tells; None: nothing."""

    state: StateRecord | None
    authority: AuthorityRecord | None


def _item_of(database: Path, name: str, of: type[T]) -> T | None:
    """None: it cannot be read."""
    if not database.exists():
        return None
    try:
        value = read_item(database, name, name)
        return None if value is None else decode_json(value, of)
    except (StorageError, msgspec.MsgspecError):
        return None


async def _begin_recovery(path: Path, settings: ControllerSettings, former: _Former) -> None:
    store = SqliteStore(path)
    try:
        registry = Registry(store, settings.quarantine_s)
        await registry.start()
        try:
            await registry.change(lambda tables: _begin(tables, settings, former))
        finally:
            await registry.stop()
    finally:
        await store.close()


def _begin(tables: Tables, settings: ControllerSettings, former: _Former) -> None:
    if not tables.exists:
        raise LimpetError("restore: the back-up holds no cluster")
    begin(tables, settings.restore_margin, time.time(), paused=False, former=former.state)
    ours = tables.authority.cluster_keys
    if former.authority is not None and is_followed_by(ours, former.authority.cluster_keys):
        take_keys(tables, former.authority)  # nodes take nothing that a revoked key signs


def is_followed_by(ours: tuple[bytes, ...], later: tuple[bytes, ...]) -> bool:
    """Whether there were rotations since."""
    return len(later) > len(ours) and later[: len(ours)] == ours


def _put_aside(database: Path) -> Path | None:
    """Its log goes before the database itself is replaced: it must never meet another one."""
    if not database.exists():
        return None
    former = next(
        path
        for number in itertools.count(1)
        if not (path := database.with_name(f"{database.name}.before-restore-{number}")).exists()
    )
    os.link(database, former)
    for companion, kept in zip(_companions(database), _companions(former), strict=True):
        if companion.exists():
            os.rename(companion, kept)
    return former


def _remove_all_of(database: Path) -> None:
    """Its log goes before it: SQLite plays one that lies beside another database into that."""
    for path in (*_companions(database), unfinished(database), database):
        path.unlink(missing_ok=True)


def _companions(database: Path) -> tuple[Path, Path]:
    """SQLite's write-ahead log and its index."""
    return (
        database.with_name(database.name + "-wal"),
        database.with_name(database.name + "-shm"),
    )
