"""What settings of the kernel were before us: the agent keeps it, uninstall puts it back."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import structlog

from limpet.base.decoding import decode_json
from limpet.base.disk import is_rotten, read_if_there, refusals, write_durably
from limpet.base.errors import StorageError
from limpet.base.records.version import VERSION, NewerFormatError, check_version
from limpet.linux.sysctl import read_sysctl

_log = structlog.get_logger("agent")

SYSCTLS_FILE = "sysctls.json"
"""In the agent's state folder."""


class _File(msgspec.Struct, frozen=True):
    version: int
    sysctls: dict[str, str]


class OriginalSysctls:
    """What is in the file when it is made, and what is kept since."""

    def __init__(self, path: Path) -> None:
        """Raises: StorageError: it cannot be read, or a later Limpet has written it."""
        self._path = path
        self._is_lost = False
        """A damaged file stays as it is, for uninstall and a person: what is there now may be ours,
        and shall not pass for what was before."""
        try:
            self._values = read_originals(path)
        except StorageError as error:
            if not (isinstance(error, DamagedOriginals) or is_rotten(error)):
                raise
            _log.warning("settings of the kernel before Limpet are lost", problem=str(error))
            self._is_lost, self._values = True, {}

    def was(self, sysctl: str) -> str | None:
        """None: it has not been changed by us, or nobody knows."""
        return self._values.get(sysctl)

    def keep(self, sysctl: str) -> None:
        """Raises: StorageError; then the setting must not be changed."""
        if self._is_lost:
            return
        if sysctl == "net/ipv4/ip_forward":
            # The kernel turns this one over with forwarding. Source: inet_forward_change.
            self.keep("net/ipv4/conf/all/accept_redirects")
        value = read_sysctl(sysctl)
        if sysctl in self._values or value is None:
            return
        self._values[sysctl] = value
        try:
            with refusals("make folder", self._path.parent):
                self._path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(self._path, encode_originals(self._values))
        except StorageError:
            del self._values[sysctl]
            raise


class DamagedOriginals(StorageError):
    """There is a file, and not what was written."""


def encode_originals(values: dict[str, str]) -> bytes:
    return json.dumps({"version": VERSION, "sysctls": values}, indent=1, sort_keys=True).encode()


def read_originals(path: Path) -> dict[str, str]:
    """By path below /proc/sys; none where nothing was kept. Raises: StorageError, DamagedOriginals:
    without the file nobody knows what was there, and what is there now may be ours."""
    text = read_if_there(path)
    if text is None:
        return {}
    try:
        check_version(text)
        return decode_json(text, _File).sysctls
    except NewerFormatError as error:
        raise StorageError("read", str(path), str(error)) from error
    except (ValueError, msgspec.MsgspecError) as error:
        raise DamagedOriginals(
            "read", str(path), f"no record of the kernel's settings before Limpet: {error}",
            hint="put it right, or move it away: uninstall then leaves them as they are",
        ) from error  # fmt: skip
