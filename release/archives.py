"""Archives whose bytes follow from their contents: order, times, owners and modes are fixed."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

from release.checkout import epoch_s


def files_below(folder: Path) -> dict[str, Path]:
    """By the path within."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path for path in paths}


def write_tar(target: Path, files: Mapping[str, Path | bytes], *, packed: bool) -> None:
    """`files`: what they hold, by their path in the archive; packed: by gzip."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in sorted(files):
            source = files[name]
            content = source if isinstance(source, bytes) else source.read_bytes()
            executable = name.endswith(".sh") or (
                isinstance(source, Path) and bool(source.stat().st_mode & 0o100)
            )
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(content), epoch_s()
            info.mode = 0o755 if executable else 0o644
            tar.addfile(info, io.BytesIO(content))
    plain = buffer.getvalue()
    fresh = target.with_name(f".{target.name}.new")
    fresh.write_bytes(gzip.compress(plain, 9, mtime=0) if packed else plain)
    fresh.rename(target)
