"""A C compiler for machines other than this one: Debian's cross compiler, with that machine's musl.

musl's files are the Debian package of the other architecture, unpacked and not installed.
"""

from __future__ import annotations

from pathlib import Path

from release.checkout import BUILD, MACHINES, ReleaseError, run
from release.debian import Deb, fetch, unpack

_NATIVE = "x86_64"
_SPECS = Path(f"/usr/lib/{_NATIVE}-linux-musl/musl-gcc.specs")
MUSL_VERSION = "1.2.3"
"""Of Debian 12, on which all is built: that of this machine's own `musl-tools`, too."""
MUSL = {
    "arm64": Deb(
        "bookworm",
        "main",
        f"pool/main/m/musl/musl-dev_{MUSL_VERSION}-1_arm64.deb",
        "55c2ca4bc3041c8ed8ac7dc3ef6080d9551a21650568b2fd7610b59eaf98a4f4",
    )
}
"""Fixed by checksum, as everything that gets into what is given out."""


def toolchain(architecture: str) -> Path | None:
    """CMake's toolchain file; None where this machine's own compiler does. Raises: ReleaseError."""
    native = run("dpkg", "--print-architecture").strip()
    if architecture == native:
        return None
    machine = MACHINES[architecture]
    if native != "amd64" or architecture not in MUSL:
        raise ReleaseError(f"a wheel for {architecture} is built on amd64, not on {native}")
    if not _SPECS.exists():
        raise ReleaseError(f"{_SPECS} is not there (apt-get install musl-tools)")
    folder = BUILD / f"cross-{architecture}"
    unpack([fetch(MUSL[architecture])], folder / "root")
    specs = folder / "musl-gcc.specs"
    root = folder / "root" / "usr"
    text = _SPECS.read_text().replace(_NATIVE, machine)
    specs.write_text(text.replace("/usr/", f"{root}/"))
    compiler = folder / f"{machine}-musl-gcc"
    compiler.write_text(f'#!/bin/sh\nexec {machine}-linux-gnu-gcc "$@" -specs "{specs}"\n')
    compiler.chmod(0o755)
    file = folder / "toolchain.cmake"
    file.write_text(
        "set(CMAKE_SYSTEM_NAME Linux)\n"
        f"set(CMAKE_SYSTEM_PROCESSOR {machine})\n"
        f"set(CMAKE_C_COMPILER {compiler})\n"
        # eBPF is for no machine: one object, whoever builds it.
        f"set(ASM_INCLUDE /usr/include/{_NATIVE}-linux-gnu)\n"
    )
    return file
