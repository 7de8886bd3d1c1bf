"""Machines with a fresh Debian of their own, systemd as its first process, and nothing of ours."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

from release.checkout import cache_folder
from release.debian import KEYS, sites

from tests.clients.machine import Machine
from tests.waiting import wait_until

SUITES = ("bookworm", "trixie")
_PRESENT = "systemd,systemd-sysv,dbus,udev,iproute2,iputils-ping,procps,ca-certificates"
"""What a machine that is installed by hand has as well."""
_LISTS_S = 6 * 3600.0
"""Older lists name packages that mirrors may have no more."""
_OPTIONS = ("-qq", "-y", "-o", "APT::Sandbox::User=root", "-o", "Dpkg::Use-Pty=0")
_SHARED = "/etc/apt/apt.conf.d/90-shared"
"""Machines share what was downloaded, and wait for each other in `download` alone."""
_UNASKED = {"DEBIAN_FRONTEND": "noninteractive"}
PACKAGES = "/root/packages"
"""Where the packages to be tried lie in it."""


class RootMachine(Machine):
    """Debian of that suite; `power_off` and `boot` keep its disk. `packages`: a folder of ours."""

    def __init__(self, suite: str, packages: Path) -> None:
        super().__init__()
        self.suite = suite
        self._base, self._packages = base(suite), packages

    def _boot_command(self) -> list[str]:
        archives = cache_folder(f"roots/{self.suite}-archives")
        (archives / "partial").mkdir(exist_ok=True)
        return [
            str(Path(__file__).with_name("boot-root")),
            *(str(self.folder), str(self._base)),
            f"{archives}:/var/cache/apt/archives",
            f"{cache_folder(f'roots/{self.suite}-lists')}:/var/lib/apt/lists",
            f"{self._packages}:{PACKAGES}",
            f"{Path(__file__).parent}:/run/limpet-tests",
        ]

    def boot(self) -> None:
        super().boot()
        self.write(_SHARED, 'Debug::NoLocking "true";\nAPT::Keep-Downloaded-Packages "true";\n')
        entered = self.start("/run/limpet-tests/boot-systemd", self.name)
        self.pid = wait_until(lambda: _systemd_below(entered.pid), "systemd is the first process")
        wait_until(
            lambda: (
                self.try_run("systemctl", "is-system-running").stdout.strip()
                in ("running", "degraded")
            ),
            "systemd has started",
        )

    def apt(self, *words: str, timeout_s: float = 300) -> str:
        """As a person: the machine has a mirror. What is downloaded is kept for the next machine.

        Only the download is done in the network of the machine that the tests run on: no script of
        a package may run there.
        """
        if words[0] in ("install", "upgrade"):
            self.download(" ".join(["apt-get", *words]))
        return self.run("apt-get", *_OPTIONS, *words, env=_UNASKED, timeout_s=timeout_s)

    def download(self, command: str) -> None:
        """What that line of a shell with `apt-get` would fetch, into the machine's cache."""
        fetching = command.replace("apt-get", f"apt-get {' '.join(_OPTIONS)} --download-only", 1)
        with (cache_folder("roots") / f"{self.suite}.apt-lock").open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            kept = os.fstat(held.fileno())
            if not kept.st_size or time.time() - kept.st_mtime > _LISTS_S:
                self._in_our_network("apt-get", *_OPTIONS, "update")
                held.write(f"{time.ctime()}\n")
            self._in_our_network("sh", "-c", f"cd {PACKAGES} && {fetching}")

    def _in_our_network(self, *argv: str) -> None:
        entered = [word for word in self.argv(argv) if not word.startswith("--net")]
        done = subprocess.run(entered, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"


def _systemd_below(pid: int) -> int:
    """0 until the program of the one descendant is systemd."""
    words = ["pgrep", "--parent", str(pid), "--exact", "systemd"]
    return int(subprocess.run(words, capture_output=True, check=False).stdout or 0)


def base(suite: str, architecture: str = "") -> Path:
    """The unpacked root, made once: nobody writes to it."""
    cache = cache_folder("roots")
    folder, archive = cache / suite, cache / f"{suite}.tar"
    with (cache / f"{suite}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not archive.exists():
            fresh = archive.with_suffix(".new.tar")
            subprocess.run([*_mmdebstrap(suite), str(fresh), *_sources(suite)], check=True)
            fresh.rename(archive)
        if not folder.exists():
            fresh = folder.with_suffix(".new")
            subprocess.run(["rm", "-rf", fresh], check=True)
            fresh.mkdir()
            with tarfile.open(archive) as tar:
                tar.extractall(fresh, filter="fully_trusted", numeric_owner=True)
            os.chmod(fresh, 0o755)
            fresh.rename(folder)
    return folder


def _mmdebstrap(suite: str) -> Sequence[str]:
    options = ("--quiet", "--variant=minbase", f"--include={_PRESENT}")
    return ("mmdebstrap", *options, '--aptopt=Acquire::Languages "none"', suite)


def _sources(suite: str) -> list[str]:
    signed = f"[signed-by={KEYS}] " if KEYS.exists() else ""
    where = sites()
    suites = [("main", suite), ("main", f"{suite}-updates"), ("security", f"{suite}-security")]
    return [f"deb {signed}{where[site]} {each} main" for site, each in suites if site in where]
