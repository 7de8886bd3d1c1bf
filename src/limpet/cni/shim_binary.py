"""Where the built shim is, the program that is installed as the CNI plugin."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import limpet
from limpet.base.errors import StorageError


def shim_path() -> Path:
    """The shim's binary: beside the package, or (editable install) where the build put it.

    Raises: StorageError.
    """
    beside = Path(limpet.__file__).parent / "bin" / "limpet-cni"
    installed = Path(sysconfig.get_path("platlib")) / "limpet" / "bin" / "limpet-cni"
    for path in (beside, installed):
        if path.is_file():
            return path
    raise StorageError("find the CNI shim", str(beside), "not there", hint="build it: make setup")
