"""The version in a JSON object that is kept: one of a later Limpet is refused in words. Pure."""

from __future__ import annotations

import msgspec

from limpet.base.decoding import decode_json

VERSION = 1
"""Format of all files that `check_version` reads; a file that changes has its own from then on."""


class NewerFormatError(ValueError):
    """It is of a format that only a later Limpet knows."""


class _Versioned(msgspec.Struct, frozen=True):
    version: int


class _FirstUnlessSaid(_Versioned, frozen=True):
    version: int = 1


def check_version(data: bytes | str, known: int = VERSION, *, said: bool = True) -> None:
    """Before anything else of it is read: a later one may mean something else by the same words.

    `said`: it has to say one; else it is of version 1 when it says none.
    Raises: NewerFormatError; ValueError for what is no object of ours.
    """
    try:
        version = decode_json(data, _Versioned if said else _FirstUnlessSaid).version
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    if version > known:
        raise NewerFormatError(
            f"it has format {version}, this Limpet knows {known} (install the later Limpet again)"
        )
    if version < 1:
        raise ValueError(f"it has format {version}, and the first one is 1")
