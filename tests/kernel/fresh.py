"""Network namespaces made for one test, gone after it whatever happens."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from limpet.kernel.namespaces import Namespace

PREFIX = "lci"
_numbers = itertools.count()


class FreshNetns:
    """A network namespace under /run/netns with its loopback up."""

    def __init__(self) -> None:
        self.name = f"{PREFIX}-{os.getpid()}-{next(_numbers)}"
        self.path = f"/run/netns/{self.name}"

    def run(self, *argv: str) -> str:
        """What a command says in the namespace. Raises: AssertionError unless it succeeds."""
        done = self.try_run(*argv)
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout

    def try_run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["nsenter", f"--net={self.path}", *argv], capture_output=True, text=True, timeout=60
        )

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The calling thread is in the namespace."""
        with Namespace(self.path) as namespace, namespace.entered():
            yield


@contextmanager
def fresh_netns() -> Iterator[FreshNetns]:
    netns = FreshNetns()
    subprocess.run(["ip", "netns", "add", netns.name], check=True)
    try:
        netns.run("ip", "link", "set", "lo", "up")
        yield netns
    finally:
        subprocess.run(["ip", "netns", "delete", netns.name], check=True)


def runtimes_environment(checkout: Path, folder: Path) -> dict[str, str]:
    """Environment in which the unpacked iptables commands run, with a lock of their own."""
    runtimes = checkout / "build" / "runtimes" / "usr"
    (libraries,) = (runtimes / "lib").glob("*-linux-gnu")
    return {
        "PATH": f"{runtimes}/sbin:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(libraries),
        "XTABLES_LIBDIR": str(libraries / "xtables"),
        "XTABLES_LOCKFILE": str(folder / "xtables.lock"),
    }
