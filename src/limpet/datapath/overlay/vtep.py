"""The MACs of the node's VXLAN devices: decided once, kept for life."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog

from limpet.base.decoding import decode_json
from limpet.base.disk import read_if_there, refusals, write_durably
from limpet.base.errors import StorageError
from limpet.cluster.topology.vtep_mac import derived_vtep_mac, is_made_of_another
from limpet.datapath.overlay.state import UNICAST_MAC

_log = structlog.get_logger("vtep")
_FORMAT = 1
VTEP_FILE = "vtep.json"
"""Beside the node's identity."""
VERSIONS = (4, 6)
"""IP versions of the underlay."""


def keep_vtep_macs(
    path: Path, uid: str, *, recorded: Mapping[int, str], existing: Mapping[int, str]
) -> dict[int, str]:
    """By IP version of the underlay: what is kept in `path`, else `recorded` (what the cluster
    knows of this node), else that of an `existing` device, else made of the node's uid. A device
    whose MAC is made of another uid is left from an identity that this machine had before, perhaps
    as a copy of one that has it still.

    What was decided is on disk when this returns, where that takes it; else the next start decides
    by the record. A file of a later Limpet is left alone. Raises: StorageError: it cannot be read.
    """
    kept, is_ours = _read(path)
    brought = {
        version: mac
        for version, mac in existing.items()
        if not is_made_of_another(uid, version, mac)
    }
    macs = {
        version: kept.get(version)
        or recorded.get(version)
        or brought.get(version)
        or derived_vtep_mac(uid, version)
        for version in VERSIONS
    }
    if macs != kept and is_ours:
        try:
            _write(path, macs)
        except StorageError as error:  # a read-only disk shall not cost the node its network
            _log.warning("the MACs of VXLAN devices are not kept", error=str(error))
    return macs


def kept_vtep_macs(path: Path) -> dict[int, str]:
    """By IP version of the underlay; empty: nothing was decided yet. Raises: StorageError."""
    return _read(path)[0]


def adopt_vtep_macs(path: Path, macs: Mapping[int, str]) -> None:
    """The devices that are to come have those of others that were there before, unless they have
    their own already. Raises: StorageError."""
    kept, is_ours = _read(path)
    right = {version: mac for version, mac in macs.items() if UNICAST_MAC.fullmatch(mac)}
    if is_ours and {**right, **kept} != kept:
        _write(path, {**right, **kept})


class _Version(msgspec.Struct, frozen=True):
    version: int


class _File(msgspec.Struct, frozen=True):
    version: int
    macs: dict[int, str]


def _read(path: Path) -> tuple[dict[int, str], bool]:
    """What is kept, and whether the file may be written. Raises: StorageError."""
    data = read_if_there(path)
    if data is None:
        return {}, True
    # What it holds is in the cluster's record, or on the device, nearly always.
    try:
        version = decode_json(data, _Version).version
        if version > _FORMAT:
            _log.warning(
                "the MACs of VXLAN devices are not kept: they are made anew at each start "
                "(install the later Limpet again, or remove the file)",
                path=str(path),
                error=f"it has format {version}, this Limpet knows {_FORMAT}",
            )
            return {}, False
        macs = decode_json(data, _File).macs
        if wrong := [mac for mac in macs.values() if not UNICAST_MAC.fullmatch(mac)]:
            raise ValueError(f"{wrong[0]!r} is no MAC of one device")
        return macs, True
    except (msgspec.MsgspecError, ValueError) as error:  # also of what is no UTF-8
        _log.warning("the kept MACs cannot be read", path=str(path), error=str(error))
        return {}, True


def _write(path: Path, macs: Mapping[int, str]) -> None:
    with refusals("make folder", path.parent):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_durably(path, msgspec.json.encode(_File(_FORMAT, dict(macs))))
