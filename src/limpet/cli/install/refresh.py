"""`limpet install --refresh`: what is installed here becomes that of this version.

Packages do this after an upgrade: nothing is looked at, and nothing starts that did not run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from limpet.agent.settings import Settings
from limpet.base.configuration import AGENT_PATH, CONTROLLER_PATH
from limpet.base.errors import LimpetError
from limpet.cli.install.files import Manifest
from limpet.cli.install.planned_files import PlannedFile, put_file
from limpet.cli.install.report import InstallReport
from limpet.cli.install.units.agent_pod import find_care
from limpet.cli.install.units.controller_service import CONTROLLER_UNIT, controller_unit
from limpet.cli.install.units.dns_service import DNS_ROLE, DNS_UNIT, dns_unit_text
from limpet.cli.install.units.page_service import PAGE_ROLE, PAGE_UNIT, page_unit_text
from limpet.cli.install.units.service import UNIT, systemctl, systemd_runs, unit_text
from limpet.cni.shim_binary import shim_path
from limpet.controller.settings import load_settings as load_controllers_settings

_UNITS = (CONTROLLER_UNIT, UNIT, DNS_UNIT, PAGE_UNIT)


def refresh(settings: Settings) -> InstallReport:
    """What was done, and which units did not start anew. Raises: LimpetError.

    What runs is started anew; pods do not notice.
    """
    manifests = (
        Manifest.load(settings.folders.state_dir),
        Manifest.load(load_controllers_settings(None).state_dir),
    )
    by_image = find_care(settings).image_brings_binary
    steps = [
        put_file(manifest, file)
        for manifest in manifests
        for file in [*_as_of_now(manifest)]
        if not (by_image and file.role == "binary")
    ]
    failures: list[str] = []
    if systemd_runs():
        for words in (("daemon-reload",), *(("try-restart", unit) for unit in _UNITS)):
            try:
                systemctl(*words)
            except LimpetError as error:  # it must not keep the others as they were
                failures.append(str(error))
    return InstallReport(steps=steps, failure="; ".join(failures))


def _as_of_now(manifest: Manifest) -> Iterator[PlannedFile]:
    """The binary, and units that were written: not the settings, nor what makes runtimes call."""
    configs = [Path(file.path) for file in manifest.of_role("config")]
    for file in manifest.files.values():
        path = Path(file.path)
        if file.role == "binary":
            yield PlannedFile(file.role, path, shim_path().read_bytes(), 0o755)
        elif file.role == DNS_ROLE:
            yield PlannedFile(file.role, path, dns_unit_text(_one(configs, AGENT_PATH)).encode())
        elif file.role == PAGE_ROLE:
            text = page_unit_text(_one(configs, CONTROLLER_PATH))
            yield PlannedFile(file.role, path, text.encode())
        elif file.role == "unit" and path.name == CONTROLLER_UNIT:
            text = controller_unit(_one(configs, CONTROLLER_PATH))
            yield PlannedFile(file.role, path, text.encode())
        elif file.role == "unit":
            yield PlannedFile(file.role, path, unit_text(_one(configs, AGENT_PATH)).encode())


def _one(configs: list[Path], default: Path) -> Path:
    return configs[0] if configs else default
