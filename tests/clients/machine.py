"""A machine of its own on this one: network, processes, mounts, disk; see `boot` beside this file.

Nothing in it can outlive it, and it can't outlive the tests: its first process ends when the pipe
to us is closed, and the kernel then ends the rest, with every namespace, interface and mount.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

from limpet.lab import launch
from tests.waiting import PATIENCE_S, wait_until

T = TypeVar("T")

CHECKOUT = Path(__file__).resolve().parents[2]
RUNTIMES = CHECKOUT / "build" / "runtimes"
OUTSIDE = "lct-outside"
"""Network namespace next to the machine's; its end of the link has the addresses .1 and ::1."""
NODE_V4, NODE_V6 = "192.0.2.10", "2001:db8::10"
"""The machine's addresses on the link to OUTSIDE."""
_PREFIX = "lct-"
_JUST_MADE_S = 60.0
"""A folder this young may be a machine's that is about to say that it is in use."""
_RUN_S = 300.0
"""A command that hangs is one that takes this long on the busiest machine."""
_CGROUPS = Path("/sys/fs/cgroup")


class Process:
    """A program running in a machine; its output goes to the file `log`."""

    def __init__(self, argv: Sequence[str], log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self._entered = launch.launcher().start(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        self.pid = _child_of(self._entered, argv)

    def kill(self) -> None:
        """End it by SIGKILL, as a crash would; returns when it is gone."""
        if self.running:
            with suppress(ProcessLookupError):  # ended itself, and was reaped by who entered it
                os.kill(self.pid, signal.SIGKILL)
        self._entered.wait(PATIENCE_S)

    @property
    def running(self) -> bool:
        return self._entered.poll() is None


class Machine:
    """Booted on entry, gone on exit. `/var` and `/opt` outlive `power_off` and `boot`."""

    def __init__(self, *, containerd: str = "") -> None:
        """`containerd`: its version, "1.6", "1.7" or "2"; empty: the one of this Debian."""
        self._programs = [*_other_containerd(containerd), RUNTIMES]
        self.name = f"{_PREFIX}{secrets.token_hex(4)}"
        self.folder = Path(tempfile.gettempdir(), self.name)
        self.pid = 0
        self._first: subprocess.Popen[str] | None = None
        self._processes: list[Process] = []
        (self.folder / "root").mkdir(parents=True)
        self._in_use = os.open(self.folder, os.O_RDONLY)
        fcntl.flock(self._in_use, fcntl.LOCK_EX)

    def __enter__(self) -> Self:
        try:
            self.boot()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.power_off()
        shutil.rmtree(self.folder)
        os.close(self._in_use)

    def boot(self) -> None:
        """Returns when the machine's link is up; /run is empty, nothing runs."""
        self._first = subprocess.Popen(
            [
                *("unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork"),
                *("--propagation", "private", *self._boot_command()),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._first.stdout is not None
        assert self._first.stdout.readline() == "up\n", "the machine did not boot; see stderr"
        self.pid = _child_of(self._first, ["unshare"])

    def _boot_command(self) -> list[str]:
        """What makes a machine of fresh namespaces; see `boot`."""
        shared = sorted({str(CHECKOUT), sys.prefix, sys.base_prefix})
        return [
            str(Path(__file__).with_name("boot")),
            *(str(self.folder), ":".join(map(str, self._programs))),
            *(folder for folder in shared if not folder.startswith("/usr")),
        ]

    def power_off(self) -> None:
        """As a cut of the power, but for what was written: that is on the disk."""
        if self._first is None:
            return
        with self._first:  # closes the pipe that it reads, waits: then all its processes are gone
            pass
        for process in self._processes:
            process.kill()
        self._processes.clear()
        self._first, self.pid = None, 0
        _remove_cgroups(self.name)

    def path(self, inside: str) -> Path:
        """How a file of the running machine is reached from here."""
        return Path(f"/proc/{self.pid}/root{inside}")

    def write(self, inside: str, text: str) -> None:
        """Write a file of the running machine, with the folders that it needs."""
        path = self.path(inside)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def argv(
        self, argv: Sequence[str], *, netns: str = "", env: Mapping[str, str] | None = None
    ) -> list[str]:
        """The command that runs `argv` in the machine, in its network or the named one."""
        net = f"--net={self.path('/run/netns/' + netns)}" if netns else "--net"
        variables = {"PATH": "/usr/sbin:/usr/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"}
        assignments = [f"{name}={value}" for name, value in (variables | dict(env or {})).items()]
        return [
            *("nsenter", f"--target={self.pid}", "--mount", "--pid", "--ipc", "--uts", net),
            *("--", "env", "-i", *assignments),
            *argv,
        ]

    def try_run(
        self,
        *argv: str,
        netns: str = "",
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        timeout_s: float = _RUN_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the machine to its end, whatever its exit code."""
        return launch.launcher().run(
            self.argv(argv, netns=netns, env=env), input=stdin, timeout=timeout_s
        )

    def run(
        self,
        *argv: str,
        netns: str = "",
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        timeout_s: float = _RUN_S,
    ) -> str:
        """What a command prints. Raises: AssertionError with what it said, unless it succeeds."""
        done = self.try_run(*argv, netns=netns, env=env, stdin=stdin, timeout_s=timeout_s)
        assert done.returncode == 0, f"{argv}: exit {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, *argv: str, netns: str = "", env: Mapping[str, str] | None = None) -> Process:
        """A program that goes on running, at most until the machine is off."""
        name = argv[2] if argv[1:2] == ("-m",) else Path(argv[0]).name
        process = Process(self.argv(argv, netns=netns, env=env), self.folder / f"{name}.log")
        self._processes.append(process)
        return process

    def logs(self) -> Iterator[tuple[str, str]]:
        """Name and text of what the programs of this machine have said."""
        for log in sorted(self.folder.glob("*.log")):
            yield log.name, log.read_text(errors="replace")

    def fetch(self, url: str, *, netns: str = "") -> str:
        """What an HTTP server answers to the machine, or to one of its named namespaces."""
        # Not wget's own limit: busybox 1.35 crashes on -T.
        command = ("timeout", "5", "busybox", "wget", "-q", "-O", "-", url)
        return self.run(*command, netns=netns).strip()

    def ping_all(self, addresses: Iterable[str], *, netns: str = "") -> None:
        """Raises: AssertionError unless every address answers; all are tried at once."""
        script = (
            'for one in "$@"; do ping -q -n -c 1 -w 5 -i 0.2 "$one" & pids="$pids $!"; done;'
            "failed=0; for pid in $pids; do wait $pid || failed=1; done; exit $failed"
        )
        self.run("sh", "-c", script, "ping_all", *addresses, netns=netns)

    def serve_http(self, netns: str, answer: str) -> Process:
        """An HTTP server on port 80 of a named namespace, which answers `answer`."""
        self.write(f"/run/www/{netns}/index.html", answer)
        server = self.start(
            "busybox", "httpd", "-f", "-p", "80", "-h", f"/run/www/{netns}", netns=netns
        )
        wait_until(
            lambda: "LISTEN" in self.run("ss", "-tln", netns=netns), "the HTTP server listens"
        )
        return server

    def links(self, *kinds: str) -> set[str]:
        """Names of the machine's virtual interfaces of these kinds, but for its own uplink."""
        found = json.loads(self.run("ip", "-json", "-details", "link"))
        return {
            link["ifname"]
            for link in found
            if link.get("linkinfo", {}).get("info_kind") in kinds and link["ifname"] != "uplink"
        }

    @contextmanager
    def namespace(self, name: str) -> Iterator[str]:
        """A named network namespace; gives its path in the machine."""
        self.run("ip", "netns", "add", name)
        try:
            yield f"/run/netns/{name}"
        finally:
            self.run("ip", "netns", "delete", name)


def _other_containerd(version: str) -> list[Path]:
    """The tree to lay over the machine's own programs; downloads it where it is not."""
    if not version:
        return []
    own = subprocess.check_output([RUNTIMES / "usr/bin/containerd", "--version"], text=True)
    if f" {version}." in own:
        return []
    fetch = str(CHECKOUT / "scripts" / "fetch-containerd")
    return [Path(subprocess.check_output([fetch, version], text=True).strip())]


def _child_of(process: launch.Process, argv: Sequence[str]) -> int:
    """The one child of `unshare --fork` or `nsenter --pid`: the program that they run."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

    def child() -> str:
        assert process.poll() is None, f"{argv!r}: exit {process.poll()} at once"
        return children.read_text()

    return int(wait_until(child, f"{argv!r} starts its program"))


def remove_leftovers() -> None:
    """Remove the folders of machines whose tests were killed; all else of them went with them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(BlockingIOError, FileNotFoundError):  # in use, or removed by its owner
            in_use = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(in_use, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - folder.stat().st_mtime > _JUST_MADE_S:
                    _remove_cgroups(folder.name)
                    shutil.rmtree(folder)
            finally:
                os.close(in_use)


def _remove_cgroups(name: str) -> None:
    """Remove the control groups of a machine that is off."""
    for hierarchy in [_CGROUPS, *_CGROUPS.glob("*/")]:
        top = hierarchy / name
        wait_until(partial(_remove_empty, top), f"{top} is empty and removed")


def _remove_empty(top: Path) -> bool:
    """False while the kernel still holds one of the folders."""
    for folder, _, _ in os.walk(top, topdown=False):
        try:
            os.rmdir(folder)
        except OSError:
            return False
    return not top.exists()
