"""The Debian package, one for each architecture, for every Debian whose Python `libraries` knows.

Limpet and the libraries that it was tested with lie in a virtual environment of the package's own,
made of the system's Python: Debian's libraries are not touched, and none is needed.
"""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import sys
import time
from email.parser import HeaderParser
from pathlib import Path

from limpet.base.configuration import AGENT_PATH, CONTROLLER_PATH
from limpet.cli.install.units.controller_service import CONTROLLER_UNIT, controller_unit
from limpet.cli.install.units.dns_service import DNS_UNIT, dns_unit_text
from limpet.cli.install.units.page_service import PAGE_UNIT, page_unit_text
from limpet.cli.install.units.service import PACKAGED_UNIT_DIR, UNIT, unit_text
from limpet.ipam.hostlocal import JOURNAL
from release.checkout import (
    CHECKOUT,
    OUT,
    ReleaseError,
    alone,
    environment,
    epoch_s,
    run,
    say,
    version,
)
from release.libraries import PYTHONS, lay
from release.wheel import build_wheel

SOURCE = CHECKOUT / "deploy" / "debian"
HOME = Path("usr/lib/limpet")
PYTHON = f"/{HOME}/bin/python3"
_PROGRAM = f"""#!{PYTHON} -I
import sys

from limpet.__main__ import main

sys.exit(main())
"""
_COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/limpet",
    "zsh": "usr/share/zsh/vendor-completions/_limpet",
    "fish": "usr/share/fish/vendor_completions.d/limpet.fish",
}


def debian_version(pep440: str) -> str:
    """What Debian sorts as PyPA does: `1.2~rc1` is before `1.2`, and `1.2~~dev1` before both."""
    public, plus, commit = pep440.partition("+")
    public = re.sub(r"(a|b|rc)(?=\d)", r"~\1", public).replace(".dev", "~~dev")
    return public + plus + commit


def build_deb(architecture: str) -> Path:
    """Raises: ReleaseError."""
    with alone(f"deb-{architecture}") as folder:
        wheel = build_wheel(architecture, folder)
        say(f"building the Debian package for {architecture}")
        tree = folder / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        lay(architecture, wheel, tree / HOME / "site-packages")
        wheel.unlink()
        _environment_of_its_own(tree)
        _units(tree)
        _for_a_person(tree)
        _control(tree, architecture)
        OUT.mkdir(parents=True, exist_ok=True)
        target = OUT / f"limpet_{debian_version(version())}_{architecture}.deb"
        run(
            *("dpkg-deb", "--build", "--root-owner-group", "-Zxz", "-z4", "--threads-max=1"),
            *(str(tree), str(target)),
            env=environment(),
        )
        return target


def _environment_of_its_own(tree: Path) -> None:
    """As `python3 -m venv` makes it, for each Python that the system may have or get."""
    home = tree / HOME
    (home / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    (home / "bin").mkdir()
    (home / "bin" / "python3").symlink_to("../../../bin/python3")
    for python in PYTHONS:
        (home / "lib" / f"python{python}").mkdir(parents=True)
        (home / "lib" / f"python{python}" / "site-packages").symlink_to("../../site-packages")
    _write(tree / "usr/bin/limpet", _PROGRAM, 0o755)


def _units(tree: Path) -> None:
    """Those that `limpet install` would write, so that it finds them and writes none."""
    texts = {
        UNIT: unit_text(AGENT_PATH),
        DNS_UNIT: dns_unit_text(AGENT_PATH),
        CONTROLLER_UNIT: controller_unit(CONTROLLER_PATH),
        PAGE_UNIT: page_unit_text(CONTROLLER_PATH),
    }
    for name, text in texts.items():
        _write(
            tree / PACKAGED_UNIT_DIR.relative_to("/") / name, text.replace(sys.executable, PYTHON)
        )


def _for_a_person(tree: Path) -> None:
    """Completion, man pages, licences, the changelog. Raises: ReleaseError."""
    for shell, path in _COMPLETIONS.items():
        _write(tree / path, run(sys.executable, "-P", "-m", "limpet", "completion", shell))
    _man_pages(tree / "usr/share/man/man1")
    doc = tree / "usr/share/doc/limpet"
    _write(doc / "copyright", _copyright(tree / HOME / "site-packages"))
    _write_packed(doc / "changelog.gz", _changelog().encode())
    _write_packed(doc / "NEWS.gz", (CHECKOUT / "CHANGELOG.md").read_bytes())
    overrides = (SOURCE / "lintian-overrides").read_text()
    _write(tree / "usr/share/lintian/overrides/limpet", overrides)


def _man_pages(folder: Path) -> None:
    folder.mkdir(parents=True)
    run(sys.executable, CHECKOUT / "scripts" / "write-man", folder, version(), env=environment())
    for page in sorted(folder.glob("*.1")):
        _write_packed(page.with_suffix(".1.gz"), page.read_bytes())
        page.unlink()


def _copyright(site_packages: Path) -> str:
    """Of Limpet, and where that of each library is."""
    lines = []
    for metadata in sorted(site_packages.glob("*.dist-info/METADATA")):
        said = HeaderParser().parsestr(metadata.read_text(encoding="utf-8"))
        licence = said["License-Expression"] or (said["License"] or "").splitlines()[0:1]
        name = licence if isinstance(licence, str) else "".join(licence)
        lines.append(f" {said['Name']} {said['Version']}: {name or 'see there'}\n")
    text = (SOURCE / "copyright").read_text()
    return text.replace("@LIBRARIES@\n", "".join(lines))


def _changelog() -> str:
    when = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(epoch_s()))
    return (
        f"limpet ({debian_version(version())}) stable; urgency=medium\n\n"
        "  * What has changed is in /usr/share/doc/limpet/NEWS.gz.\n\n"
        f" -- Limpet's maintainers <limpet@limpet.dev>  {when}\n"
    )


def _control(tree: Path, architecture: str) -> None:
    size_kib = sum(
        -(-path.lstat().st_size // 1024) for path in tree.rglob("*") if not path.is_dir()
    )
    values = {
        "VERSION": debian_version(version()),
        "ARCHITECTURE": architecture,
        "SIZE_KIB": str(size_kib),
        "JOURNAL": JOURNAL,
    }
    for name in ("control", "triggers", "postinst", "prerm", "postrm"):
        text = (SOURCE / name).read_text()
        for key, value in values.items():
            text = text.replace(f"@{key}@", value)
        _write(tree / "DEBIAN" / name, text, 0o755 if name.startswith(("pre", "post")) else 0o644)
    sums = subprocess.run(
        "find * -path DEBIAN -prune -o -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum",
        shell=True,
        cwd=tree,
        check=True,
        capture_output=True,
        text=True,
    )
    _write(tree / "DEBIAN" / "md5sums", sums.stdout)
    for path in tree.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


def _write_packed(path: Path, content: bytes) -> None:
    """Without the time, and as `gzip -9` does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, 9, mtime=0))
    path.chmod(0o644)


def debs(architectures: tuple[str, ...]) -> list[Path]:
    """Raises: ReleaseError."""
    if shutil.which("dpkg-deb") is None:
        raise ReleaseError("dpkg-deb is needed (apt-get install dpkg)")
    return [build_deb(architecture) for architecture in architectures]
