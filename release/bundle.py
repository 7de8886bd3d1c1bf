"""One file with all that a site without internet needs, and checksums of all that is given out."""

from __future__ import annotations

import gzip
import hashlib
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from release.archives import files_below, write_tar
from release.chart import image_tag
from release.checkout import BUILD, CHECKOUT, OUT, ReleaseError, run, say, sha256, version
from release.deb import debian_version
from release.debian import Deb, fetch_all, resolve
from release.libraries import LOCK, PYTHONS, wheels

ARCHITECTURE = "amd64"
"""The only one that there is an image for."""
SOURCE = CHECKOUT / "deploy" / "bundle"
DEBIANS = SOURCE / f"{ARCHITECTURE}.lock"
_NEEDED = {
    "bookworm": ("python3", "libnftables1", "libbpf1", "wireguard-go/bookworm-backports"),
    "trixie": ("python3", "libnftables1", "libbpf1", "wireguard-go"),
}


def lock_debians() -> Path:
    """Asks the mirrors what there is now. Raises: ReleaseError."""
    found = [
        deb
        for suite, packages in _NEEDED.items()
        for deb in resolve(suite, ARCHITECTURE, packages, BUILD / f"apt-{suite}")
    ]
    lines = [f"deb {deb.suite} {deb.site} {deb.path} {deb.sha256}\n" for deb in found]
    DEBIANS.write_text(
        "# Written by `python -m release lock`: Debian's packages in the bundle.\n" + "".join(lines)
    )
    return DEBIANS


def locked_debians() -> Iterator[Deb]:
    for line in DEBIANS.read_text(encoding="utf-8").splitlines():
        if line.startswith("deb "):
            yield Deb(*line.split()[1:])


def write_bundle() -> Path:
    """Of what is in `OUT`. Raises: ReleaseError."""
    say("putting the bundle together")
    files = dict(_contents())
    files["SHA256SUMS"] = "".join(
        f"{_digest(content)}  {name}\n" for name, content in sorted(files.items())
    ).encode()
    folder = f"limpet-{version()}-bundle-{ARCHITECTURE}"
    target = OUT / f"{folder}.tar"
    write_tar(
        target, {f"{folder}/{name}": content for name, content in files.items()}, packed=False
    )
    return target


def _contents() -> Iterator[tuple[str, Path | bytes]]:
    values = {"@VERSION@": version(), "@ARCHITECTURE@": ARCHITECTURE}
    for name in ("install.sh", "README.md"):
        text = (SOURCE / name).read_text(encoding="utf-8")
        for mark, value in values.items():
            text = text.replace(mark, value)
        yield name, text.encode()
    own = _made(f"limpet_{debian_version(version())}_{ARCHITECTURE}.deb")
    for suite in _NEEDED:
        debs = [deb for deb in locked_debians() if deb.suite == suite]
        paths = {deb.file_name: path for deb, path in zip(debs, fetch_all(debs), strict=True)}
        paths[own.name] = own
        yield f"debian/{suite}/Packages.gz", gzip.compress(_index(paths).encode(), 9, mtime=0)
        yield from ((f"debian/{suite}/{name}", path) for name, path in paths.items())
    for wheel in {path for python in PYTHONS for path in wheels(ARCHITECTURE, python)}:
        yield f"wheels/{wheel.name}", wheel
    (own_wheel,) = OUT.glob(f"limpet-{version()}-*x86_64*.whl")
    yield f"wheels/{own_wheel.name}", own_wheel
    yield "wheels/run.lock", LOCK
    image = _made(image_name())
    yield f"image/{image.name}", image
    for path in [*OUT.glob("limpet-chart-*.tgz"), _made("limpet.yaml"), *OUT.glob("*.cdx.json")]:
        yield path.name, path
    for name, path in files_below(CHECKOUT / "docs").items():
        yield f"docs/{name}", path


def image_name() -> str:
    return f"limpet-image-{image_tag(version())}-{ARCHITECTURE}.tar"


def _made(name: str) -> Path:
    if not (OUT / name).exists():
        raise ReleaseError(f"{OUT / name} is not there (python -m release all)")
    return OUT / name


def _index(paths: dict[str, Path]) -> str:
    """What apt reads of a mirror. Source: deb-src-control(5), Debian repository format."""
    entries = []
    for name, path in sorted(paths.items()):
        control = run("dpkg-deb", "--field", path).strip()
        entries.append(
            f"{control}\nFilename: ./{name}\nSize: {path.stat().st_size}\nSHA256: {sha256(path)}\n"
        )
    return "\n".join(entries)


def _digest(content: Path | bytes) -> str:
    return hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else sha256(content)


def write_image() -> Path:
    """Raises: ReleaseError."""
    tag = image_tag(version())
    done = subprocess.run(
        [CHECKOUT / "scripts" / "build-image", "--tag", tag], stdout=subprocess.PIPE, check=False
    )
    if done.returncode:
        raise ReleaseError("the image was not built, see above")
    target = OUT / image_name()
    shutil.copyfile(done.stdout.decode().strip(), target)
    return target


def write_sums(paths: Iterable[Path]) -> Path:
    """As `sha256sum --check` reads them."""
    target = OUT / "SHA256SUMS"
    target.write_text("".join(f"{sha256(path)}  {path.name}\n" for path in sorted(paths)))
    return target
