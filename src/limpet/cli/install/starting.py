"""The agent of this version is started, and asked through the binary that the runtime will run."""

from __future__ import annotations

import time
from pathlib import Path

from limpet.agent.client import ask
from limpet.agent.settings import Settings
from limpet.agent.status.node import Process
from limpet.base.errors import AgentUnavailable, LimpetError
from limpet.cli.doctor.target import Installation
from limpet.cli.install.files import Manifest
from limpet.cli.install.options import InstallOptions
from limpet.cli.install.report import InstallReport
from limpet.cli.install.shim_probe import status_through
from limpet.cli.install.units.service import (
    UNIT,
    agent_command,
    systemctl,
    systemd_runs,
)

_AGENT_START_S = 30.0
_ASK_AGAIN_S = 0.05


def start_agent(options: InstallOptions, settings: Settings, report: InstallReport) -> None:
    """The agent of this version runs and is ready, or the report says why not."""
    if systemd_runs():
        systemctl("daemon-reload")
        systemctl("enable", UNIT)
        # Always: the configuration may have been edited. Pods do not notice a restart.
        systemctl("restart", UNIT)
    elif running_version(settings) is None:
        report.failure = (
            "not finished: systemd does not run here. Start the agent with "
            f"`{' '.join(agent_command(options.paths.config))}` and install again: the runtime's "
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


def probe_shim(
    target: Installation, manifest: Manifest, report: InstallReport, *, force: bool
) -> None:
    """The runtime is told of the binary only when it reaches the agent."""
    for file in manifest.of_role("binary"):
        problem = status_through(Path(file.path), target.network_name)
        if problem and not force:
            report.failure = (
                f"not finished: {file.path} does not reach the agent: {problem} (it looks for the "
                "socket in /etc/limpet/shim.conf; another file has to be named by LIMPET_SHIM_CONF "
                "in the runtime's environment)"
            )


def running_version(settings: Settings) -> str | None:
    """Version of the agent that runs; None when none does."""
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
