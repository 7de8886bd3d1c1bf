"""Of files: also of what has no end, such as a pipe or a device, no more is read than the bound."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from tarfile import TarFile, TarInfo
from threading import Thread
from unittest.mock import patch

from limpet.base import disk
from limpet.base.bounds.servers import API_TOKEN, KUBECONFIG
from limpet.base.bounds.strangers import JOIN_TOKEN
from limpet.base.bounds.words import FILE, SNAPSHOT
from limpet.base.disk import read_if_there, read_kept
from limpet.base.errors import LimpetError, StorageError
from limpet.cli.bundle.site_bundle import SUMS, _sums
from limpet.cli.commands.serving.policy import _documents
from limpet.cli.options import given_token
from limpet.cloud.enrollment import read_token
from limpet.kubernetes.access.kubeconfig import read_kubeconfig
from tests.unit.base.bounds.probes import probe

_ROOM = 16 << 10
"""Of the pipe, and of what Python reads ahead."""


def _read_of_an_endless(read: Callable[[Path], object]) -> int:
    """How many bytes are taken out of a pipe that is always full, and maybe so many more as have
    room in it."""
    written = 0

    def write(path: Path) -> None:
        nonlocal written
        with open(path, "wb", buffering=0) as pipe, suppress(BrokenPipeError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4096)
            while True:
                written += pipe.write(bytes(4096)) or 0

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pipe")
        os.mkfifo(path)
        writer = Thread(target=write, args=(path,))
        writer.start()
        with suppress(LimpetError):
            read(path)
        writer.join()
    return written


@probe(API_TOKEN, above=API_TOKEN.most + _ROOM)
def _endless_token_of_an_account(amount: int) -> bool:
    return _read_of_an_endless(read_token) >= amount


@probe(JOIN_TOKEN, above=JOIN_TOKEN.most + _ROOM)
def _endless_token(amount: int) -> bool:
    return _read_of_an_endless(lambda path: given_token("join", "", str(path))) >= amount


@probe(FILE, above=FILE.most + _ROOM)
def _endless_policy(amount: int) -> bool:
    return _read_of_an_endless(_documents) >= amount


@probe(FILE)
def _policy(amount: int) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "policy.toml")
        path.write_bytes(b"#".ljust(amount))
        try:
            _documents(path)
        except LimpetError as error:
            return "it has more than" not in str(error)
        return True


@probe(FILE)
def _file_that_may_be_there(amount: int) -> bool:
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(amount)
        try:
            return len(read_if_there(Path(file.name)) or b"") == amount
        except StorageError:
            return False


@probe(KUBECONFIG, above=KUBECONFIG.most + _ROOM)
def _endless_kubeconfig(amount: int) -> bool:
    return _read_of_an_endless(lambda path: read_kubeconfig([path])) >= amount


@probe(SNAPSHOT)
def _kept(amount: int) -> bool:
    """A thousand bytes stand for as many as there may be."""
    most = replace(SNAPSHOT, most=1000)
    with tempfile.NamedTemporaryFile() as file, patch.object(disk, "SNAPSHOT", most):
        file.truncate(amount - SNAPSHOT.most + most.most)
        try:
            return read_kept(Path(file.name)) is not None
        except StorageError:
            return False


@probe(FILE)
def _sums_of_a_bundle(amount: int) -> bool:
    """What is read names no file."""
    member = TarInfo(f"limpet/{SUMS}")
    member.size = amount
    packed = BytesIO()
    with TarFile(fileobj=packed, mode="w") as tar:
        tar.addfile(member, BytesIO(b"x" * amount))
    packed.seek(0)
    with TarFile(fileobj=packed) as tar:
        try:
            _sums(Path("released"), tar, tar.getmembers(), "limpet")
        except LimpetError as error:
            return "does not name the files" in str(error)
    raise AssertionError("it names the files")
