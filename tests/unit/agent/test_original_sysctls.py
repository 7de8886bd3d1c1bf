"""What the agent remembers of the kernel's settings before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from limpet.agent.original_sysctls import OriginalSysctls, read_originals
from limpet.base.errors import StorageError

FORWARD = "net/ipv4/ip_forward"


def test_what_a_setting_was_is_remembered_once(tmp_path: Path) -> None:
    path = tmp_path / "state" / "sysctls.json"
    originals = OriginalSysctls(path)
    assert originals.was(FORWARD) is None

    originals.keep(FORWARD)

    assert (
        OriginalSysctls(path).was(FORWARD)
        == originals.was(FORWARD)
        == read_originals(path)[FORWARD]
    )


@pytest.mark.parametrize(
    "text", [bytes(300), b'{"version":1,"sys', b""], ids=["zeros", "half", "no"]
)
def test_a_damaged_record_ends_nobody_and_is_left_for_uninstall_to_tell(
    tmp_path: Path, text: bytes
) -> None:
    path = tmp_path / "sysctls.json"
    path.write_bytes(text)

    originals = OriginalSysctls(path)
    originals.keep(FORWARD)

    assert originals.was(FORWARD) is None
    assert path.read_bytes() == text, "what is there now may be Limpet's"
    with pytest.raises(StorageError, match="no record of the kernel's settings before Limpet"):
        read_originals(path)


def test_a_record_that_the_disk_has_lost_ends_nobody_either(tmp_path: Path) -> None:
    path = tmp_path / "sysctls.json"
    path.symlink_to("/proc/self/mem")  # whose first page nobody can read: EIO

    assert OriginalSysctls(path).was(FORWARD) is None
    assert path.is_symlink()
