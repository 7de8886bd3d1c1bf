"""The page as a systemd service, beside the controller's: where the settings have `page_listen`."""

from __future__ import annotations

import sys
from pathlib import Path

from limpet.cli.install.files import Manifest
from limpet.cli.install.units.service import exec_start, has_unit, systemctl, systemd_runs

PAGE_UNIT = "limpet-page.service"
PAGE_ROLE = "page_unit"

_UNIT_TEXT = """\
# Limpet's; `systemctl edit {unit}` keeps changes apart from it.
[Unit]
Description=Limpet page: shows the network to people
After=local-fs.target network.target limpet-controller.service
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart={command}
Restart=always
RestartSec=5
LimitNOFILE=16384
MemoryMax=512M
# Root without its powers: it may open the controller's socket, and nothing else.
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
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
UMask=0077

[Install]
WantedBy=multi-user.target
"""


def page_unit_text(config: Path) -> str:
    """The unit file for a page with that configuration of the controller."""
    command = [sys.executable, "-P", "-m", "limpet", "ui", "--controller", "--tokens-only"]
    in_tmp = any(Path(command[0]).is_relative_to(each) for each in ("/tmp", "/var/tmp"))
    return _UNIT_TEXT.format(
        unit=PAGE_UNIT,
        command=exec_start([*command, "--config", str(config)]),
        private_tmp="no" if in_tmp else "yes",
    )


def start_page(manifest: Manifest, listen: str | None) -> list[str]:
    """It runs if the settings say where; what was done. Raises: LimpetError."""
    if listen is None:
        return stop_page(manifest)
    systemctl("enable", PAGE_UNIT)
    systemctl("restart", PAGE_UNIT)
    return [f"page: served at {listen}; let somebody look: limpet ui token create NAME"]


def stop_page(manifest: Manifest) -> list[str]:
    """It is served no more by a service of ours; what was done. Raises: LimpetError."""
    if not has_unit(manifest, PAGE_ROLE, PAGE_UNIT):
        return []
    if systemd_runs():
        systemctl("disable", "--now", PAGE_UNIT)
    return [manifest.take_back(file) for file in manifest.of_role(PAGE_ROLE)]
