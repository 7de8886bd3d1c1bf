"""A container image made by hand: busybox alone, as `docker save` would write it."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

IMAGE = "lct.test/busybox:1"
"""Its name. Run as it is, it sleeps: it serves as the pause image too."""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_COMMANDS = ("sh", "sleep", "httpd", "wget", "ping", "ip", "cat", "timeout")


def write_image(path: Path, busybox: Path) -> None:
    """Write the archive to `path`, from a static busybox."""
    layer = _tar(
        [(_file("bin/busybox", 0o755), busybox.read_bytes())]
        + [(_link(f"bin/{command}", "busybox"), b"") for command in _COMMANDS]
        + [(_folder(name), b"") for name in ("www", "tmp", "etc")]
    )
    config = json.dumps(
        {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {"Env": ["PATH=/bin"], "Entrypoint": ["/bin/sleep", "1000000"]},
            "rootfs": {
                "type": "layers",
                "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"],
            },
        }
    ).encode()
    manifest = json.dumps(
        [{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]
    ).encode()
    files = {"config.json": config, "layer.tar": layer, "manifest.json": manifest}
    path.write_bytes(_tar([(_file(name, 0o644), data) for name, data in files.items()]))


def _tar(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def _file(name: str, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode = mode
    return info


def _folder(name: str) -> tarfile.TarInfo:
    info = _file(name, 0o755)
    info.type = tarfile.DIRTYPE
    return info


def _link(name: str, target: str) -> tarfile.TarInfo:
    info = _file(name, 0o777)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info
