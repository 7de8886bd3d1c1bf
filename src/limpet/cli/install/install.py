"""`limpet install`: look first, then write; the runtime's configuration last."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from limpet.agent.client import ask
from limpet.agent.settings import DEFAULT_PATH, Settings, load_settings, parse_settings
from limpet.agent.status import Process
from limpet.base.disk import read_if_there
from limpet.base.errors import AgentUnavailable, ConfigError, LimpetError
from limpet.cli.doctor.cluster import examine_vxlan
from limpet.cli.doctor.examine import examine
from limpet.cli.doctor.findings import Finding, error, errors, warn
from limpet.cli.doctor.target import Target
from limpet.cli.install.conflist import CONFLIST, conflist_text
from limpet.cli.install.files import Manifest
from limpet.cli.install.joining import (
    JoinOptions,
    folders_of,
    granted_state,
    join_first,
    node_to_join,
    own_snapshot,
)
from limpet.cli.install.runtimes import find_runtimes, folders_in_use
from limpet.cli.install.service import (
    DEFAULT_UNIT_DIR,
    UNIT,
    agent_command,
    systemctl,
    systemd_runs,
    unit_text,
)
from limpet.cli.install.shim_probe import status_through
from limpet.cni.shim_binary import shim_path

_NETWORK_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*")
"""Source: CNI SPEC.md, 'Configuration format', key name."""
_AGENT_START_S = 30.0
_ASK_AGAIN_S = 0.05


@dataclass(frozen=True, slots=True)
class InstallOptions:
    """What the command line says."""

    segments: tuple[str, ...] = ()
    cluster_cidrs: tuple[str, ...] = ()
    join: JoinOptions = JoinOptions()
    cni_bin_dir: Path | None = None
    """None: where the runtime looks."""
    cni_conf_dir: Path | None = None
    config: Path = DEFAULT_PATH
    unit_dir: Path = DEFAULT_UNIT_DIR
    network_name: str = "limpet"
    allow_forward: bool = False
    cni: bool = True
    """False: pods of this node are another network's."""
    force: bool = False
    dry_run: bool = False
    start: bool = True


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file as it should be. `keep`: one that is there already is a person's."""

    role: str
    path: Path
    content: bytes
    mode: int = 0o644
    keep: bool = False


@dataclass(slots=True)
class Report:
    """What install says, line by line, and whether all is in place."""

    findings: list[Finding] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    failure: str = ""

    @property
    def complete(self) -> bool:
        return not self.failure


def install(options: InstallOptions) -> Report:
    """Raises: LimpetError (ConfigError, StorageError, KernelError) where it cannot go on."""
    if not _NETWORK_NAME.fullmatch(options.network_name):
        raise ConfigError(
            f"install: network name {options.network_name!r}: a letter or digit, "
            "then letters, digits, `_`, `.`, `-`"
        )
    settings = _settings(options)
    joining = node_to_join(options.join, settings, options.segments)
    target = _target(options, settings, joining=joining)
    files = _planned_files(options, target)
    report = Report(findings=_look(options, settings, target, files))
    if errors(report.findings) and not options.force:
        report.failure = f"nothing was changed: {_IN_THE_WAY}"
    elif options.dry_run:
        controllers = " or ".join(options.join.controllers)
        report.steps += [f"would join the cluster of {controllers}"] if joining else []
        report.steps += [f"would write {file.path}" for file in files if _differs(file)]
    else:
        if joining:
            _join(options, settings, target, files, report)
        if report.complete:
            _write(options, settings, Manifest.load(settings.folders.state_dir), files, report)
    return report


_IN_THE_WAY = "findings marked `error` stand in the way (--force goes on all the same)"


def _target(options: InstallOptions, settings: Settings, *, joining: bool) -> Target:
    conf_dir, bin_dir = folders_in_use(find_runtimes())
    return Target(
        settings,
        granted_state(settings),
        (options.cni_conf_dir or conf_dir) / CONFLIST,
        options.cni_bin_dir or bin_dir,
        options.network_name,
        allow_forward=options.allow_forward or settings.pods.allow_forward,
        installed=bool(Manifest.load(settings.folders.state_dir).of_role("conflist")),
        joining=joining,
    )


def _look(
    options: InstallOptions, settings: Settings, target: Target, files: Iterable[PlannedFile]
) -> list[Finding]:
    """`settings`: as they are or will be written."""
    network = own_snapshot(settings).network
    return [
        *_against_config(options, settings),
        *examine(target),
        *(examine_vxlan(network.vxlan_id, network.vxlan_port) if network is not None else ()),
        *_edits(Manifest.load(settings.folders.state_dir), files),
        *_former_cni(settings),
    ]


def _former_cni(settings: Settings) -> Iterator[Finding]:
    """A node that attached pods, and is not to any more."""
    for file in Manifest.load(settings.folders.state_dir).of_role("conflist"):
        if not settings.pods.cni:
            yield error(
                f"{file.path} makes the runtime call Limpet, and the agent's configuration has "
                "cni = false",
                "pods would not start, and those that Limpet has attached would not go",
                "limpet uninstall first (it says which pods are in the way), then install again",
            )


def _join(
    options: InstallOptions,
    settings: Settings,
    target: Target,
    files: Iterable[PlannedFile],
    report: Report,
) -> None:
    """Afterwards is known what the cluster is like, and all is looked at once more."""
    report.steps.append(join_first(settings, options.join, force=options.force))
    granted = replace(target, state=granted_state(settings), joining=False)
    report.findings = _look(options, settings, granted, files)
    if errors(report.findings) and not options.force:
        report.failure = f"the node has joined, but is not installed: {_IN_THE_WAY}"


def _settings(options: InstallOptions) -> Settings:
    """Of the configuration that is there; else of the one that will be written."""
    if options.config.exists():
        return load_settings(options.config)
    return parse_settings(_config_document(options), "from the command line")


def _config_document(options: InstallOptions) -> dict[str, Any]:
    document: dict[str, Any] = {}
    if options.segments:
        document["segments"] = list(options.segments)
    if options.cluster_cidrs:
        document["cluster_cidrs"] = list(options.cluster_cidrs)
    if options.allow_forward:
        document["allow_forward"] = True
    if not options.cni:
        document["cni"] = False
    return document


def _against_config(options: InstallOptions, settings: Settings) -> Iterator[Finding]:
    """A configuration that is there is a person's: what the command line says has to be in it."""
    if not options.config.exists():
        return
    asked = parse_settings(_config_document(options), "from the command line")
    for name in ("segments", "cluster_cidrs", "allow_forward", "cni"):
        wanted, there = getattr(asked.pods, name), getattr(settings.pods, name)
        if wanted not in (getattr(Settings().pods, name), there):
            text = json.dumps(_config_document(options)[name])
            yield error(
                f"{options.config} has another value of {name} than the command line",
                "a configuration that is there is never overwritten",
                f"write {name} = {text} there, or leave the option out",
            )


# What is to be written.


def _planned_files(options: InstallOptions, target: Target) -> list[PlannedFile]:
    """In the order of writing. The conflist is the last, since a runtime acts on it at once."""
    settings = target.settings
    config = PlannedFile(
        "config", options.config, _config_text(_config_document(options)), keep=True
    )
    unit = PlannedFile("unit", options.unit_dir / UNIT, unit_text(options.config).encode())
    if not settings.pods.cni:
        return [config, unit]
    files = [
        PlannedFile("binary", target.cni_bin_dir / "limpet", shim_path().read_bytes(), 0o755),
        config,
        unit,
        PlannedFile("conflist", target.conflist, conflist_text(options.network_name)),
    ]
    if settings.folders.socket != Settings().folders.socket:
        shim_conf = options.config.parent / "shim.conf"
        text = f"# Read by Limpet's CNI binary.\nsocket={settings.folders.socket}\n".encode()
        files.insert(2, PlannedFile("shim_conf", shim_conf, text, keep=True))
    return files


def _config_text(document: dict[str, Any]) -> bytes:
    lines = ["# Settings of `limpet agent`, read when it starts.\n"]
    # A JSON string, list or boolean is the same in TOML.
    lines += [f"{key} = {json.dumps(value)}\n" for key, value in document.items()]
    return "".join(lines).encode()


def _differs(file: PlannedFile) -> bool:
    now = read_if_there(file.path)
    return now is None or (not file.keep and now != file.content)


def _edits(manifest: Manifest, files: Iterable[PlannedFile]) -> Iterator[Finding]:
    for file in files:
        if not file.keep and file.role != "binary" and manifest.is_edited(file.path):
            yield warn(
                f"{file.path} was changed since it was installed",
                "it is left as it is",
                "delete it to get Limpet's own again",
            )


# Writing.


def _write(
    options: InstallOptions,
    settings: Settings,
    manifest: Manifest,
    files: Iterable[PlannedFile],
    report: Report,
) -> None:
    conflists = [file for file in files if file.role == "conflist"]
    for folder in folders_of(settings):
        manifest.make_folder(folder)
    for file in files:
        if file not in conflists:
            report.steps.append(put_file(manifest, file))
    if options.start:
        _start(options, settings, report)
        if report.complete:
            _probe(options, manifest, report)
    else:
        report.steps.append(
            f"the agent is not started, as asked; start it with: systemctl enable --now {UNIT}"
        )
    if report.complete:
        report.steps += [put_file(manifest, file) for file in conflists]


def put_file(manifest: Manifest, file: PlannedFile) -> str:
    """What was done with the file. Raises: StorageError."""
    there = read_if_there(file.path) is not None
    kept = there and (file.keep or (file.role != "binary" and manifest.is_edited(file.path)))
    if kept:
        said = "kept"
    elif not manifest.put(file.role, file.path, file.content, file.mode):
        said = "up to date"
    else:
        said = "replaced" if there else "written"
    return f"{file.path}: {said}"


def _start(options: InstallOptions, settings: Settings, report: Report) -> None:
    """The agent of this version runs and is ready, or the report says why not."""
    if systemd_runs():
        systemctl("daemon-reload")
        systemctl("enable", UNIT)
        # Always: the configuration may have been edited. Pods do not notice a restart.
        systemctl("restart", UNIT)
    elif _version_of(settings) is None:
        report.failure = (
            "not finished: systemd does not run here. Start the agent with "
            f"`{' '.join(agent_command(options.config))}` and install again: the runtime's "
            "configuration is written when the agent answers"
        )
        return
    status = _await_agent(settings)
    if not status.ready and not options.force:
        report.failure = (
            f"not finished: the agent runs, but pods would fail: {'; '.join(status.reasons)}"
        )
        return
    report.steps.append(f"agent: runs (process {status.pid}, {settings.folders.socket})")


def _probe(options: InstallOptions, manifest: Manifest, report: Report) -> None:
    """The runtime is told of the binary only when it reaches the agent."""
    for file in manifest.of_role("binary"):
        problem = status_through(Path(file.path), options.network_name)
        if problem and not options.force:
            report.failure = (
                f"not finished: {file.path} does not reach the agent: {problem} (it looks for the "
                "socket in /etc/limpet/shim.conf; another file has to be named by LIMPET_SHIM_CONF "
                "in the runtime's environment)"
            )


def _version_of(settings: Settings) -> str | None:
    """Of the agent that runs; None when none does."""
    try:
        return ask(settings.folders.socket, "status", Process).version
    except AgentUnavailable:
        return None


def _await_agent(settings: Settings) -> Process:
    """The agent's status, as soon as it answers. Raises: LimpetError when it does not in time."""
    give_up_s = time.monotonic() + _AGENT_START_S
    while True:
        try:
            return ask(settings.folders.socket, "status", Process)
        except AgentUnavailable as unavailable:
            if time.monotonic() > give_up_s:
                raise LimpetError(
                    f"start the agent: no answer at {settings.folders.socket} "
                    f"within {_AGENT_START_S:.0f} s (journalctl -u {UNIT} says why)"
                ) from unavailable
        time.sleep(_ASK_AGAIN_S)
