"""What is built for aarch64 here runs there: under QEMU, with the Python of Debian 12's arm64, and
on Debian 12's own kernel for it."""

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

from tests.packages.aarch64.emulated import PACKAGES, QEMU, boot, lay_kernel

pytestmark = pytest.mark.timeout(1800)
_COMPILED = (
    "aiohttp._http_parser, cryptography.fernet, msgspec, multidict, yaml, yarl, miniupnpc, "
    "_cffi_backend"
)


@pytest.fixture(scope="module")
def root(released: Path) -> Path:
    """Debian 12 for arm64, as far as Python needs it, with the package laid over it."""
    plain = cache_folder("roots") / f"bookworm-arm64-{'+'.join(PACKAGES)}"
    if not plain.exists():
        debs = resolve("bookworm", "arm64", PACKAGES, BUILD / "apt-arm64")
        unpack(fetch_all(debs), fresh := plain.with_name(f".{plain.name}"))
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


def test_an_agent_attaches_pods_on_a_kernel_of_aarch64_and_outlives_its_kill(
    root: Path, tmp_path: Path
) -> None:
    image = lay_kernel(root)
    for name, at in (("boot-aarch64", "init"), ("on_aarch64.py", "on_aarch64.py")):
        shutil.copy(Path(__file__).with_name(name), root / at)

    said = boot(root, image, tmp_path / "root.cpio")

    (line,) = [line for line in said.splitlines() if line.startswith("FOUND ")] or [said]
    found = json.loads(line.removeprefix("FOUND "))
    assert "failed" not in found, found["failed"]
    assert found["machine"] == "aarch64"
    assert found["lacks"] == []
    assert {"limpet_connect4", "limpet_sendmsg6"} <= set(found["programs"])
    assert [len(each) for each in found["added"].values()] == [2, 2]
    assert found["attachments"] == 2
    assert found["ended"] == 0
