"""The controller as a systemd service: `limpet controller install` and `uninstall`."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from limpet.base.configuration import CONTROLLER_PATH
from limpet.base.disk import remove_durably
from limpet.base.errors import CommandLineError, ConfigError, LimpetError
from limpet.cli.install.files import Manifest
from limpet.cli.install.planned_files import PlannedFile, put_file
from limpet.cli.install.uninstall import Removal, attempt, remove_timeline, take_back
from limpet.cli.install.units.page_service import (
    PAGE_ROLE,
    PAGE_UNIT,
    page_unit_text,
    start_page,
    stop_page,
)
from limpet.cli.install.units.service import (
    DEFAULT_UNIT_DIR,
    exec_start,
    has_unit,
    systemctl,
    systemd_runs,
)
from limpet.controller.backup import only_controller
from limpet.controller.reach import reach_problem, read_links
from limpet.controller.settings import (
    ControllerSettings,
    load_settings,
    parse_settings,
)
from limpet.controller.store.database import check_database
from limpet.web.access.tokens import CERTIFICATE_FOLDER, FILE_NAME

CONTROLLER_UNIT = "limpet-controller.service"

_UNIT_TEXT = """\
# Limpet's; `systemctl edit {unit}` keeps changes apart from it.
[Unit]
Description=Limpet controller: grants address segments, keeps the record of nodes and pods
After=local-fs.target network.target
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart={command}
Restart=always
RestartSec=1
# A large database is read through before it is used.
TimeoutStartSec=300
OOMScoreAdjust=-500
LimitNOFILE=65536
# A port below 1024, if `listen` names one, and nothing else: root without its powers.
CapabilityBoundingSet=CAP_NET_BIND_SERVICE
NoNewPrivileges=yes
ProtectSystem=full
PrivateTmp={private_tmp}
DevicePolicy=closed
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
RestrictNamespaces=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
UMask=0077

[Install]
WantedBy=multi-user.target
"""
_CONFIG_HEADER = """\
# Settings of `limpet controller`, read when it starts; docs/controller.md has all of them.
# Chosen once, since every segment is cut by them: cluster, pod_cidrs, segment_length_v4/_v6.
"""


@dataclass(frozen=True, slots=True)
class ControllerInstall:
    """What the command line says."""

    pod_cidrs: tuple[str, ...] = ()
    """Empty: as the configuration says, or its default."""
    config: Path = CONTROLLER_PATH
    unit_dir: Path = DEFAULT_UNIT_DIR
    start: bool = True


def controller_command(config: Path) -> list[str]:
    """How this very installation starts its controller."""
    return [sys.executable, "-P", "-m", "limpet", "controller", "--config", str(config)]


def controller_unit(config: Path) -> str:
    """The unit file for a controller with that configuration."""
    command = controller_command(config)
    # With a /tmp of its own it would not find an installation that is there.
    in_tmp = any(Path(command[0]).is_relative_to(each) for each in ("/tmp", "/var/tmp"))
    return _UNIT_TEXT.format(
        unit=CONTROLLER_UNIT,
        command=exec_start(command),
        private_tmp="no" if in_tmp else "yes",
    )


def install_controller(options: ControllerInstall) -> list[str]:
    """Looks first, writes then, starts at last; says what it did, line by line.

    Raises: LimpetError; ConfigError, or a StorageError of the database: nothing was changed.
    """
    settings = _settings(options)
    _check(settings, start=options.start)
    manifest = Manifest.load(settings.state_dir)
    manifest.make_folder(settings.state_dir)
    os.chmod(settings.state_dir, 0o700)
    config = PlannedFile("config", options.config, _config_text(options), keep=True)
    unit = PlannedFile(
        "unit", options.unit_dir / CONTROLLER_UNIT, controller_unit(options.config).encode()
    )
    steps = [put_file(manifest, config), put_file(manifest, unit)]
    if settings.looks.page_listen is not None:
        page = page_unit_text(options.config).encode()
        steps.append(put_file(manifest, PlannedFile(PAGE_ROLE, options.unit_dir / PAGE_UNIT, page)))
    if not options.start:
        return [
            *steps,
            f"not started, as asked; start it: systemctl enable --now {CONTROLLER_UNIT}",
        ]
    systemctl("daemon-reload")
    systemctl("enable", CONTROLLER_UNIT)
    # Always: the configuration may have been edited. Nodes do not notice.
    systemctl("restart", CONTROLLER_UNIT)
    listening = ", ".join(f"{host} port {port}" for host, port in settings.listen)
    return [
        *steps,
        f"controller: runs ({listening}; {settings.socket})",
        *start_page(manifest, settings.looks.page_listen),
        "let a node in: limpet token create",
    ]


def _settings(options: ControllerInstall) -> ControllerSettings:
    """Settings of the configuration that is there; else of the one that will be written.

    Raises: ConfigError where the command line says something else than the file; CommandLineError.
    """
    try:
        asked = parse_settings(_document(options), "from the command line")
    except ConfigError as error:
        raise CommandLineError(str(error)) from error
    if not options.config.exists():
        return asked
    settings = load_settings(options.config)
    if options.pod_cidrs and asked.network.pod_cidrs != settings.network.pod_cidrs:
        there = ", ".join(map(str, settings.network.pod_cidrs))
        raise ConfigError(
            f"install: {options.config} has pod_cidrs {there}, the command line has "
            f"{', '.join(options.pod_cidrs)} (a configuration that is there is never overwritten: "
            "change it there, or leave --pod-cidr out)"
        )
    return settings


def _check(settings: ControllerSettings, *, start: bool) -> None:
    """Raises: LimpetError for what would keep it from starting."""
    if start and not systemd_runs():
        raise LimpetError(
            "install: systemd does not run here (run `limpet controller` by what starts services "
            "here, or write the files alone: --no-start)"
        )
    check_database(settings.database)
    if not settings.database.exists() and (problem := reach_problem(settings, read_links())):
        raise ConfigError(f"install: {problem}")


def _document(options: ControllerInstall) -> dict[str, list[str]]:
    return {"pod_cidrs": list(options.pod_cidrs)} if options.pod_cidrs else {}


def _config_text(options: ControllerInstall) -> bytes:
    # A JSON list is the same in TOML.
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in _document(options).items()]
    return "".join([_CONFIG_HEADER, *lines]).encode()


def uninstall_controller(settings: ControllerSettings, *, purge: bool) -> Removal:
    """Stops it and takes its files back; the cluster's database stays unless `purge`.

    Goes on past what fails. Raises: LimpetError, with nothing changed, while a controller runs
    that no service manager has started.
    """
    manifest = Manifest.load(settings.state_dir)
    removal = Removal()
    if systemd_runs() and has_unit(manifest, "unit", CONTROLLER_UNIT):
        attempt(removal, lambda: systemctl("disable", "--now", CONTROLLER_UNIT))
        if removal.failures:
            return removal
    attempt(removal, lambda: removal.steps.extend(stop_page(manifest)))
    if settings.database.exists():
        with only_controller(settings):
            pass
    take_back(manifest, manifest.of_role("unit"), removal)
    if systemd_runs():
        attempt(removal, lambda: systemctl("daemon-reload"))
    if purge:
        take_back(manifest, manifest.of_role("config"), removal)
        attempt(removal, lambda: _remove_cluster(settings, removal))
    _remove_record(settings, manifest, removal)
    return removal


def _remove_cluster(settings: ControllerSettings, removal: Removal) -> None:
    """With all its keys. Raises: StorageError."""
    was_there = settings.database.exists()
    for path in sorted(settings.state_dir.glob(f"{settings.database.stem}.*")):
        remove_durably(path)
    remove_timeline(settings.state_dir)
    remove_durably(settings.state_dir / FILE_NAME)
    shutil.rmtree(settings.state_dir / CERTIFICATE_FOLDER, ignore_errors=True)
    if was_there:
        removal.steps.append(f"{settings.database}: removed, with the keys of the cluster")


def _remove_record(settings: ControllerSettings, manifest: Manifest, removal: Removal) -> None:
    """The record of the installation goes when nothing is left that it tells of."""
    if removal.failures:
        return
    kept = [*manifest.files, *([str(settings.database)] if settings.database.exists() else [])]
    if kept:
        manifest.save()
        removal.steps.append(
            f"kept: {', '.join(kept)} (`limpet controller uninstall --purge` removes them: without "
            "the database and without a back-up the cluster's keys are lost)"
        )
        return
    remove_durably(manifest.path)
    try:
        settings.socket.parent.rmdir()
    except OSError:  # an agent's too, or gone
        pass
    for folder in manifest.remove_folders():
        removal.steps.append(f"{folder}: removed")
