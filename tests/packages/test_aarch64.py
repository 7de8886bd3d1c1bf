"""What is built for aarch64 here runs there: under QEMU, with the Python of Debian 12's arm64."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from release.checkout import BUILD, cache_folder, version
from release.debian import fetch_all, resolve, unpack
from release.wheel import BINARY

pytestmark = pytest.mark.timeout(900)
QEMU = Path("/usr/bin/qemu-aarch64-static")
_COMPILED = (
    "aiohttp._http_parser, cryptography.fernet, msgspec, multidict, yaml, yarl, miniupnpc, "
    "_cffi_backend"
)


@pytest.fixture(scope="module")
def root(released: Path) -> Path:
    """Debian 12 for arm64, as far as Python needs it, with the package laid over it."""
    plain = cache_folder("roots") / "bookworm-arm64"
    if not plain.exists():
        debs = resolve("bookworm", "arm64", ["python3", "libnftables1"], BUILD / "apt-arm64")
        unpack(fetch_all(debs), fresh := plain.with_name(".bookworm-arm64.new"))
        fresh.rename(plain)
    root = BUILD / "arm64-root"
    shutil.rmtree(root, ignore_errors=True)
    subprocess.run(["cp", "-a", "--reflink=auto", plain, root], check=True)
    (deb,) = released.glob("limpet_*_arm64.deb")
    subprocess.run(["dpkg-deb", "-x", deb, root], check=True)
    shutil.copy(QEMU, root)
    return root


def python(root: Path, *words: str) -> str:
    command = ["chroot", str(root), f"/{QEMU.name}", "/usr/lib/limpet/bin/python3", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_binary_of_the_wheel_answers(released: Path, tmp_path: Path) -> None:
    (wheel,) = released.glob("limpet-*aarch64.whl")
    with zipfile.ZipFile(wheel) as archive:
        binary = Path(archive.extract(BINARY, tmp_path))
    binary.chmod(0o755)

    done = subprocess.run(
        [QEMU, binary],
        env={"CNI_COMMAND": "VERSION"},
        input="{}",
        capture_output=True,
        text=True,
        check=True,
    )

    assert "1.1.0" in json.loads(done.stdout)["supportedVersions"]


def test_the_command_line_of_the_package_starts_with_all_its_libraries(root: Path) -> None:
    assert python(root, "-I", "/usr/bin/limpet", "--version") == f"limpet {version()}\n"
    assert python(root, "-c", f"import platform, {_COMPILED}; print(platform.machine())") == (
        "aarch64\n"
    )
