"""containerd for a node: where its programs are, and how it is configured."""

from __future__ import annotations

import sys
from pathlib import Path

import limpet
from limpet.lab.command import run_command
from limpet.lab.kube.image import IMAGE

SOCKET = "/run/containerd/containerd.sock"
BIN_DIR, CONF_DIR = "/opt/cni/bin", "/etc/cni/net.d"
REFERENCE_DIR = "/usr/lib/cni"
"""Where Debian has the reference plugins; a runtime needs `loopback` of them."""
_CHECKOUT = Path(limpet.__file__).parents[2]
_UNUSED = ("aufs", "btrfs", "devmapper", "zfs")

CRUN = "/usr/libexec/crun/crun"
"""Not where programs are looked for: podman would take it in place of runc.

Where cgroups v2 are beside v1 it puts containers into groups of both; runc leaves v2 alone.
"""
_CONFIG = f"""\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  {", ".join(f'"io.containerd.snapshotter.v1.{name}"' for name in _UNUSED)},
  "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp",
]
[grpc]
address = "{SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
restrict_oom_score_adj = true
disable_apparmor = true
sandbox_image = "{IMAGE}"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{BIN_DIR}"
conf_dir = "{CONF_DIR}"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""


def config(oci_runtime: str = "") -> str:
    """containerd's configuration. `oci_runtime`: what it starts containers with; empty: runc."""
    if not oci_runtime:
        return _CONFIG
    options = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]'
    return f'{_CONFIG}{options}\nBinaryName = "{oci_runtime}"\n'


def find_runtimes() -> str:
    """A tree to be laid over / that has containerd, runc and busybox; empty: this machine's own.

    A checkout fetches Debian's packages. Raises: LabError.
    """
    script = _CHECKOUT / "scripts" / "fetch-runtimes"
    if not script.exists():
        return ""
    run_command(str(script))
    return str(_CHECKOUT / "build" / "runtimes")


def shared_folders() -> list[str]:
    """What a node with a root of its own has to see of this machine to run Limpet."""
    found = {str(_CHECKOUT), sys.prefix, sys.base_prefix}
    return sorted(folder for folder in found if not folder.startswith("/usr"))
