"""Wheels that need no compiler: a static CNI binary and eBPF objects inside, one for each machine.

The binary is linked with musl, so it runs whatever C library a machine has, and the Python is for
every Python 3: a wheel is tagged for glibc and musl alike.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

from release.checkout import (
    MACHINES,
    OUT,
    ReleaseError,
    alone,
    copy_sources,
    environment,
    epoch_s,
    run,
    say,
)
from release.cross import toolchain
from release.elf import read_elf

BINARY = "limpet/bin/limpet-cni"
OBJECTS = ("limpet/bpf/services.bpf.o",)
PAGE = "limpet/docs/install.md"
"""One of those that `limpet help` reads."""


def platforms(machine: str) -> list[str]:
    """The oldest systems that pip knows: nothing in the wheel asks for a C library."""
    return [f"manylinux2014_{machine}", f"manylinux_2_17_{machine}", f"musllinux_1_1_{machine}"]


def build_wheel(architecture: str, out: Path = OUT, version: str | None = None) -> Path:
    """`version`: another than git says. Raises: ReleaseError, also for what `check` refuses."""
    say(f"building the wheel for {MACHINES[architecture]}")
    with alone(f"wheel-{architecture}") as folder:
        return _build(architecture, folder, out, environment(version))


def _build(architecture: str, folder: Path, out: Path, variables: dict[str, str]) -> Path:
    machine = MACHINES[architecture]
    source = copy_sources(folder / "source")
    settings: list[str] = []
    if (found := toolchain(architecture)) is not None:
        settings = ["--config-settings", f"cmake.args=-DCMAKE_TOOLCHAIN_FILE={found}"]
    made = folder / "made"
    shutil.rmtree(made, ignore_errors=True)
    run(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--no-build-isolation", "--wheel-dir", str(made), *settings, str(source)),
        env=variables | {"_PYTHON_HOST_PLATFORM": f"linux-{machine}"},
    )
    (plain,) = made.glob("*.whl")
    unpacked = folder / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    for entry, content in entries(plain):
        put(unpacked / entry.filename, content, executable=is_executable(entry))
    check(unpacked, machine)
    out.mkdir(parents=True, exist_ok=True)
    wheel = out / f"{plain.name.rsplit('-', 1)[0]}-{'.'.join(platforms(machine))}.whl"
    pack(unpacked, wheel, machine)
    return wheel


def entries(wheel: Path) -> Iterator[tuple[zipfile.ZipInfo, bytes]]:
    """Its files; zipfile's own extraction forgets which are programs."""
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            if not entry.is_dir():
                yield entry, archive.read(entry)


def is_executable(entry: zipfile.ZipInfo) -> bool:
    return bool(entry.external_attr >> 16 & 0o100)


def put(path: Path, content: bytes, *, executable: bool) -> None:
    """With the folders that it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755 if executable else 0o644)


def check(unpacked: Path, machine: str) -> None:
    """The binary is static and for that machine, the objects are for the kernel, there is no
    other machine code, and the documentation is there. Raises: ReleaseError."""
    binary = read_elf(unpacked / BINARY)
    if binary.machine != machine or not binary.static:
        raise ReleaseError(f"{BINARY}: wanted a static one for {machine}, it is {binary}")
    for name in OBJECTS:
        path = unpacked / name
        if not path.exists():
            raise ReleaseError(f"{name} is missing (apt-get install clang libbpf-dev)")
        if read_elf(path).machine != "bpf":
            raise ReleaseError(f"{name}: no eBPF object")
    if not (unpacked / PAGE).is_file():
        raise ReleaseError(f"{PAGE} is missing: `limpet help` reads it")
    for path in sorted(unpacked.rglob("*")):
        name = str(path.relative_to(unpacked))
        if path.is_file() and name not in (BINARY, *OBJECTS):
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    raise ReleaseError(f"{name}: machine code that nobody has spoken of")


def pack(unpacked: Path, wheel: Path, machine: str) -> None:
    """Tagged, in one order, with one time. Source: PyPA binary distribution format, RECORD."""
    (info,) = unpacked.glob("*.dist-info")
    described = (info / "WHEEL").read_text().splitlines()
    kept = [line for line in described if line and not line.startswith("Tag: ")]
    tags = [f"Tag: py3-none-{platform}" for platform in platforms(machine)]
    (info / "WHEEL").write_text("\n".join([*kept, *tags]) + "\n")
    record = info / "RECORD"
    record.unlink()
    paths = sorted(path for path in unpacked.rglob("*") if path.is_file())
    lines = []
    for path in paths:
        content = path.read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{path.relative_to(unpacked)},sha256={digest},{len(content)}\n")
    record.write_text("".join(lines) + f"{record.relative_to(unpacked)},,\n")
    when = time.gmtime(epoch_s())[:6]
    fresh = wheel.with_suffix(".new")
    with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in [*paths, record]:
            entry = zipfile.ZipInfo(str(path.relative_to(unpacked)), when)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            entry.external_attr = (0o100000 | (path.stat().st_mode & 0o777)) << 16
            archive.writestr(entry, path.read_bytes())
    fresh.rename(wheel)
