"""The agent as a systemd service."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from limpet.base.disk import read_if_there
from limpet.base.errors import LimpetError
from limpet.cli.install.files import Manifest

UNIT = "limpet-agent.service"
DEFAULT_UNIT_DIR = Path("/etc/systemd/system")
PACKAGED_UNIT_DIR = Path("/usr/lib/systemd/system")
"""Where a distribution's package has put the units, if Limpet came by one."""
_SYSTEMCTL_S = 120.0

_UNIT_TEXT = """\
# Limpet's; `systemctl edit {unit}` keeps changes apart from it.
[Unit]
Description=Limpet agent: pod addresses and pod interfaces of this node
# A node that is cut off has no network that could be waited for. What flushes tables and what
# sets sysctls comes before, what starts pods comes after.
After=local-fs.target systemd-modules-load.service systemd-sysctl.service
After=nftables.service network-pre.target
Before=containerd.service crio.service docker.service podman.service kubelet.service
Before=k3s.service k3s-agent.service edgecore.service
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart={command}
Restart=always
RestartSec=1
TimeoutStartSec=60
# Tables of policies belong to a socket that is kept here while no agent runs.
FileDescriptorStoreMax=4
# What the agent starts for tunnels outlives it.
KillMode=process
OOMScoreAdjust=-999
LimitNOFILE=65536
# No mount namespace: the agent must see the namespaces of pods as they are mounted, and nothing
# may keep them when they go. No RestrictNamespaces: it enters them.
CapabilityBoundingSet={capabilities}
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_UNIX AF_NETLINK AF_PACKET AF_INET AF_INET6
SystemCallArchitectures=native
UMask=0077

[Install]
WantedBy=multi-user.target
"""
CAPABILITIES = (
    "CAP_NET_ADMIN",
    "CAP_NET_BIND_SERVICE",  # a relay's TCP port 443
    "CAP_NET_RAW",
    "CAP_SYS_ADMIN",  # setns
    "CAP_SYS_PTRACE",  # /proc/<pid>/ns of containers, when it looks who has an address
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
)


def agent_command(config: Path) -> list[str]:
    """How this very installation starts its agent, whatever folder it is started in."""
    return [sys.executable, "-P", "-m", "limpet", "agent", "--config", str(config)]


def unit_text(config: Path) -> str:
    """The unit file for an agent with that configuration."""
    return _UNIT_TEXT.format(
        unit=UNIT,
        command=exec_start(agent_command(config)),
        capabilities=" ".join(CAPABILITIES),
    )


def exec_start(command: list[str]) -> str:
    """The value of ExecStart that systemd reads as that command."""
    return " ".join(map(_quoted, command))


def _quoted(word: str) -> str:
    """A word of ExecStart. Source: systemd.service(5), 'Command lines'."""
    word = word.replace("%", "%%").replace("$", "$$")
    if re.fullmatch(r"[\w@%+=:,./$-]+", word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def packaged(unit: Path, content: bytes) -> Path | None:
    """The package's own file, if that is what install would write as `unit`.

    Another configuration, or another Python, makes another unit; and a person may have named
    another folder than the usual one. Raises: StorageError.
    """
    own = PACKAGED_UNIT_DIR / unit.name
    same = unit.parent == DEFAULT_UNIT_DIR and read_if_there(own) == content
    return own if same else None


def has_unit(manifest: Manifest, role: str, unit: str) -> bool:
    """Install has written it, or a package has brought it."""
    return bool(manifest.of_role(role)) or (PACKAGED_UNIT_DIR / unit).exists()


def systemd_runs() -> bool:
    """Source: sd_booted(3)."""
    return Path("/run/systemd/system").is_dir() and shutil.which("systemctl") is not None


def systemctl(*arguments: str) -> None:
    """Raises: LimpetError with what systemctl said."""
    words = ["systemctl", *arguments]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=_SYSTEMCTL_S
        )
    except subprocess.TimeoutExpired:
        why = f"it did not end within {_SYSTEMCTL_S:.0f} s"
    else:
        if not done.returncode:
            return
        why = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
    unit = next((each for each in arguments if each.endswith(".service")), UNIT)
    raise LimpetError(
        f"run {' '.join(words)}: {' '.join(why.split())} (journalctl -u {unit} says more)"
    )
