"""Debian's packages, by checksum, from the mirror that this machine's apt has."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from release.checkout import ReleaseError, cache_folder, run, sha256

KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


@dataclass(frozen=True, slots=True, order=True)
class Deb:
    """A package as a mirror has it."""

    suite: str
    site: str
    """`main` or `security`."""
    path: str
    sha256: str

    @property
    def package(self) -> str:
        return self.path.rpartition("/")[2].partition("_")[0]

    @property
    def file_name(self) -> str:
        """As apt would call it; the mirror's has its `~` and `+` as numbers."""
        name = self.path.rpartition("/")[2]
        return re.sub("%([0-9a-f]{2})", lambda found: chr(int(found[1], 16)), name)


@cache
def sites() -> dict[str, str]:
    """Where this machine has Debian's packages from: `main` and `security`.

    Raises: ReleaseError.
    """
    found: dict[str, str] = {}
    listed = run("apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)")
    for line in listed.splitlines():
        release, _, site = line.partition(" ")
        if re.fullmatch(r"[a-z]+-security", release):
            found.setdefault("security", site)
        elif re.fullmatch(r"bookworm|trixie|forky|sid|stable", release):
            found.setdefault("main", site)
    if "main" not in found:
        raise ReleaseError("apt's sources name no mirror of Debian (add one; nothing is installed)")
    return found


def fetch(deb: Deb) -> Path:
    """Into the cache, by checksum: what was there once needs no mirror any more.

    Raises: ReleaseError.
    """
    target = cache_folder("image") / f"{deb.sha256}.deb"
    if target.exists() and sha256(target) == deb.sha256:
        return target
    fresh = target.with_name(f".{deb.sha256}.{os.getpid()}")
    where = sites()
    try:
        run(
            *(
                "/usr/lib/apt/apt-helper",
                "-o",
                "APT::Sandbox::User=root",
                "-o",
                "Acquire::Retries=3",
            ),
            *("download-file", f"{where.get(deb.site, where['main'])}{deb.path}", fresh),
            f"SHA256:{deb.sha256}",
        )
    except ReleaseError as error:
        raise ReleaseError(
            f"{deb.path}: {error} (a mirror keeps the newest versions only: the lock file that "
            "names it has to be renewed)"
        ) from error
    fresh.replace(target)
    return target


def fetch_all(debs: Iterable[Deb]) -> list[Path]:
    """Raises: ReleaseError."""
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(fetch, debs))


def unpack(debs: Sequence[Path], root: Path) -> None:
    """Lays their files over each other in a fresh folder; none of their scripts runs.

    Raises: ReleaseError.
    """
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for deb in debs:
        done = subprocess.run(["dpkg-deb", "-x", deb, root], capture_output=True, check=False)
        if done.returncode:
            raise ReleaseError(f"{deb}: cannot be unpacked: {done.stderr.decode().strip()}")


def resolve(
    suite: str, architecture: str, packages: Sequence[str], folder: Path, *, present: str = ""
) -> list[Deb]:
    """What apt of that Debian would fetch for these packages, on a machine that has nothing, or
    what `present` says (the text of a /var/lib/dpkg/status). Raises: ReleaseError.
    """
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "lists" / "partial").mkdir(parents=True)
    (folder / "archives" / "partial").mkdir(parents=True)
    (folder / "status").write_text(present)
    signed = f"[signed-by={KEYS}] " if KEYS.exists() else ""
    where = sites()
    suites = {
        "main": (suite, f"{suite}-updates", f"{suite}-backports"),
        "security": (f"{suite}-security",),
    }
    (folder / "sources.list").write_text(
        "".join(
            f"deb {signed}{where[site]} {each} main\n" for site in where for each in suites[site]
        )
    )
    settings = {
        "APT::Sandbox::User": "root",
        "APT::Architecture": architecture,
        "Acquire::Languages": "none",
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": folder / "lists",
        "Dir::State::status": folder / "status",
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "Dir::Cache::archives": folder / "archives",
        "Acquire::ForceHash": "SHA256",
    }
    options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
    apt = ["apt-get", "-qq", *options]
    run(*apt, "update")
    listed = run(*apt, "-y", "--no-install-recommends", "--print-uris", "install", *packages)
    found = []
    for line in listed.splitlines():
        uri, _, _, digest = line.split()
        site = next(name for name in where if uri.strip("'").startswith(where[name]))
        path = uri.strip("'")[len(where[site]) :]
        found.append(Deb(suite, site, path, digest.removeprefix("SHA256:")))
    shutil.rmtree(folder)
    return sorted(found)
