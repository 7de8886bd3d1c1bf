"""What a report is made of: each piece a file of the archive, gathered by itself."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import msgspec

from limpet import __version__
from limpet.agent.client import call
from limpet.agent.settings import Settings
from limpet.base.errors import LimpetError
from limpet.cli.bugreport.secrets import without_secrets
from limpet.cli.install.units.controller_service import CONTROLLER_UNIT
from limpet.cli.install.units.dns_service import DNS_UNIT
from limpet.cli.install.units.page_service import PAGE_UNIT
from limpet.cli.install.units.service import UNIT
from limpet.cli.kept_events import events_of_node
from limpet.lab.world.node import lab_log
from limpet.timeline.answer import MOST_ENTRIES

_COMMAND_S = 15.0
_LOG_LINES = "5000"
LOG_BYTES = 4 << 20
_UNITS = (UNIT, DNS_UNIT, CONTROLLER_UNIT, PAGE_UNIT)
_VERBS = {
    "status.json": "status",
    "peers.json": "peers",
    "pods.json": "attachments",
    "addresses.json": "ipam.list",
    "address-check.json": "ipam.check",
    "services.json": "services",
    "policies.json": "policy.list",
}
"""Verbs of the agent by file; one that it does not know is a line in the list of contents."""
_COMMANDS = {
    "network/nft.txt": "nft list ruleset",
    "network/address.txt": "ip -d address",
    "network/links.txt": "ip -d -s link",
    "network/routes.txt": "ip route show table all",
    "network/routes6.txt": "ip -6 route show table all",
    "network/rules.txt": "ip rule",
    "network/rules6.txt": "ip -6 rule",
    "network/neighbours.txt": "ip neigh",
    "network/fdb.txt": "bridge fdb",
    "network/tunnels.txt": "ip xfrm state list nokeys",
    "network/sockets.txt": "ss -lntup",
    "network/conntrack.txt": "conntrack -S",
    "machine/disk.txt": "df -h",
    "machine/inodes.txt": "df -i",
    "machine/mounts.txt": "findmnt --real",
    "machine/modules.txt": "lsmod",
    "machine/kernel.txt": "uname -a",
    "machine/clock.txt": "timedatectl",
    "machine/memory.txt": "free -m",
}
_FILES = (
    "/etc/limpet/shim.conf",
    "/etc/limpet/controller.toml",
    "/etc/os-release",
    "/proc/version",
    "/proc/loadavg",
    "/proc/cmdline",
)


@dataclass(frozen=True, slots=True)
class Piece:
    """A file of the archive."""

    name: str
    gather: Callable[[], str]
    """Its text, with secrets. Raises: LimpetError, OSError: why there is none."""


def pieces(
    settings: Settings, config: Path, conf_dir: Path, agent_pid: int | None
) -> Iterator[Piece]:
    """All of them, what is asked for most first. `config`: the agent's; `conf_dir`: the runtime's
    CNI configurations; `agent_pid`: None: no agent answers."""
    yield Piece("versions.json", lambda: _json(_versions()))
    for name, verb in _VERBS.items():
        yield Piece(name, partial(_ask, settings, verb))
    yield Piece("events.json", lambda: _events(settings))
    yield Piece("doctor.json", lambda: _doctor(settings))
    yield Piece("plan.json", lambda: _plan(settings))
    yield Piece("settings/agent.toml", partial(_file, config))
    for path in (*map(Path, _FILES), *sorted(conf_dir.glob("*.conf*"))):
        yield Piece(f"settings{path}", partial(_file, path))
    for name, command in _COMMANDS.items():
        yield Piece(name, partial(_run, *command.split()))
    for unit in _UNITS:
        words = ("journalctl", "--no-pager", "-o", "short-iso", "-n", _LOG_LINES, "-u", unit)
        yield Piece(f"logs/{unit.removesuffix('.service')}.txt", partial(_run, *words))
    yield Piece("logs/agent-file.txt", lambda: _agent_log(settings, agent_pid))
    yield Piece("machine/files.txt", lambda: _listing(settings))
    yield Piece("machine/features.json", _features)


def _json(document: Any) -> str:
    return json.dumps(without_secrets(msgspec.to_builtins(document)), indent=1) + "\n"


def _versions() -> dict[str, Any]:
    return {
        "limpet": __version__,
        "python": sys.version,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "libraries": {each.name: each.version for each in distributions()},
        "by_root": os.geteuid() == 0,
    }


def _ask(settings: Settings, verb: str) -> str:
    return _json(call(settings.folders.socket, verb))


def _events(settings: Settings) -> str:
    """Also of an agent that is dead, from the disk."""
    return _json(events_of_node(settings.folders, lambda _: None, limit=MOST_ENTRIES))


def _agent_log(settings: Settings, pid: int | None) -> str:
    """The end of the file that the agent writes its log to, where that is not the journal."""
    path = lab_log(settings.folders.state_dir)
    if path is None and pid is not None:
        path = Path(f"/proc/{pid}/fd/2")
    if path is None or not path.is_file():
        raise LimpetError("the agent of this node writes to no file")
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_BYTES))
        if file.tell():
            file.readline()  # the rest of a line may be the rest of a secret
        return file.read(LOG_BYTES).decode("utf-8", errors="replace")


def _doctor(settings: Settings) -> str:
    from limpet.cli.answers import FindingLine
    from limpet.cli.doctor.doctor import diagnose
    from limpet.cli.doctor.findings import by_harm

    found = by_harm(diagnose(settings, None, None))
    return _json([FindingLine.of(each) for each in found])


def _plan(settings: Settings) -> str:
    """What a round would change now, in words; empty: the node is as planned."""
    from limpet.cli.doctor.installed.installation import find_installed
    from limpet.cli.doctor.machine.planned import pending_changes, words_of
    from limpet.cli.doctor.pods.attached import read_pods

    state = find_installed(settings, None, None).state
    changes = pending_changes(settings, state, read_pods(settings))
    return _json({"pending": [words_of(each) for each in changes]})


def _features() -> str:
    from limpet.datapath.together.kernel_trial import try_features

    return _json({"lacking": try_features(ipv6=True, cluster=True)})


def _file(path: Path) -> str:
    with open(path, "rb") as file:
        return file.read(1 << 20).decode("utf-8", errors="replace")


def _run(*words: str) -> str:
    if shutil.which(words[0]) is None:
        raise LimpetError(f"{words[0]} is not on this machine")
    try:
        done = subprocess.run(
            words, capture_output=True, timeout=_COMMAND_S, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise LimpetError(f"{' '.join(words)}: no end within {_COMMAND_S:.0f} s") from error
    said = done.stdout.decode("utf-8", errors="replace")
    if done.returncode and not said:
        why = done.stderr.decode("utf-8", errors="replace").strip()
        raise LimpetError(f"{' '.join(words)}: {why or f'exit code {done.returncode}'}")
    return said


def _listing(settings: Settings) -> str:
    """Mode, size and path of what Limpet keeps; no content."""
    folders = settings.folders
    lines = []
    for top in (folders.state_dir, folders.run_dir, folders.data_dir, Path("/etc/limpet")):
        for path in sorted(top.rglob("*")):
            try:
                stat = path.lstat()
            except OSError:
                continue  # it has gone
            lines.append(f"{stat.st_mode:o} {stat.st_size:>10} {stat.st_mtime:.0f} {path}")
    return "\n".join(lines) + "\n"
