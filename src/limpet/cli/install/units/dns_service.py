"""Names as a systemd service, beside the agent's: where the settings have `dns = "on"`."""

from __future__ import annotations

import sys
from pathlib import Path

from limpet.agent.settings import Settings
from limpet.cli.install.files import Manifest
from limpet.cli.install.units.service import exec_start, has_unit, systemctl, systemd_runs
from limpet.dns.device import remove_device

DNS_UNIT = "limpet-dns.service"
DNS_ROLE = "dns_unit"
DNS_SOCKET = "dns.sock"

_UNIT_TEXT = """\
# Limpet's; `systemctl edit {unit}` keeps changes apart from it.
[Unit]
Description=Limpet DNS: names for the pods of this node
After=local-fs.target systemd-sysctl.service network-pre.target
Before=containerd.service crio.service docker.service podman.service kubelet.service
Before=k3s.service k3s-agent.service edgecore.service
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart={command}
Restart=always
RestartSec=100ms
TimeoutStartSec=60
# What is asked while it restarts waits in its sockets, which are kept here.
FileDescriptorStoreMax=64
OOMScoreAdjust=-998
LimitNOFILE=65536
CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_BIND_SERVICE CAP_DAC_OVERRIDE
NoNewPrivileges=yes
LockPersonality=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_UNIX AF_NETLINK AF_INET AF_INET6
SystemCallArchitectures=native
UMask=0077

[Install]
WantedBy=multi-user.target
"""


def dns_unit_text(config: Path) -> str:
    """The unit file for names with that configuration."""
    command = [sys.executable, "-P", "-m", "limpet", "dns", "serve", "--config", str(config)]
    return _UNIT_TEXT.format(unit=DNS_UNIT, command=exec_start(command))


def start_dns(settings: Settings, config: Path) -> list[str]:
    """Names are answered if the settings say so; what was done. Raises: LimpetError."""
    if settings.dns.dns == "off":
        return []
    if not systemd_runs():
        return [f"names: systemd does not run here; start `limpet dns serve --config {config}`"]
    systemctl("enable", DNS_UNIT)
    systemctl("restart", DNS_UNIT)
    return [f"names: answered at {', '.join(map(str, settings.dns.listen))}"]


def stop_dns(manifest: Manifest) -> list[str]:
    """Names are answered no more by a service of ours; what was done. Raises: LimpetError."""
    if not has_unit(manifest, DNS_ROLE, DNS_UNIT):
        return []
    if systemd_runs():
        systemctl("disable", "--now", DNS_UNIT)
    taken_back = [manifest.take_back(file) for file in manifest.of_role(DNS_ROLE)]
    return [*taken_back, *remove_device()]
