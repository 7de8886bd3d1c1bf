"""Where Kubernetes' programs are."""

from __future__ import annotations

import hashlib
import os
import shutil
from functools import cache
from pathlib import Path

import limpet
from limpet.lab.command import LabError, run_command

API_SERVER_PROGRAMS = ("etcd", "kube-apiserver", "kubectl")
CONTROL_PLANE_PROGRAMS = (*API_SERVER_PROGRAMS, "kube-controller-manager", "kube-scheduler")
NODE_PROGRAMS = ("kubelet",)
_SCRIPT = Path(limpet.__file__).parents[2] / "scripts" / "fetch-kubernetes"


def built_programs(*names: str) -> Path | None:
    """The folder that holds these programs, if this checkout has built them; nothing is built.

    Source: how scripts/fetch-kubernetes names it.
    """
    tools = _SCRIPT.parents[1] / "tests" / "kube" / "tools"
    parts = ("*/go.mod", "*/go.sum", "*/*.go")
    pins = [path for part in parts for path in sorted(tools.glob(part))]
    if not pins:
        return None
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in [*pins, _SCRIPT])).hexdigest()
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache_folder = Path(os.environ.get("LIMPET_CACHE") or Path(caches) / "limpet")
    folder = cache_folder / "kubernetes" / digest[:16]
    return folder if all((folder / name).exists() for name in names) else None


_SYSTEM_PROGRAMS = ("containerd", "containerd-shim-runc-v2", "runc", "busybox")
"""Programs that a node needs beside Kubernetes' own."""


def missing_programs() -> tuple[str, ...]:
    """Programs of a Kubernetes that PATH does not have; none in a checkout, which fetches them."""
    if _SCRIPT.exists():
        return ()
    needed = (*CONTROL_PLANE_PROGRAMS, *NODE_PROGRAMS, *_SYSTEM_PROGRAMS)
    return tuple(name for name in needed if shutil.which(name) is None)


@cache
def find_programs(*names: str) -> Path:
    """The folder that holds these programs; none named: all that tests and lab know.

    A checkout builds what is missing, which takes minutes the first time; an installed Limpet
    takes what PATH has. Raises: LabError.
    """
    if _SCRIPT.exists():
        return Path(run_command(str(_SCRIPT), *names).strip())
    folders = {name: shutil.which(name) for name in names or CONTROL_PLANE_PROGRAMS}
    if missing := [name for name, path in folders.items() if path is None]:
        raise LabError(
            f"find {', '.join(missing)}: not in PATH (put Kubernetes' programs into one folder of "
            "it, or run the lab in a checkout of Limpet, which builds them)"
        )
    found = {Path(path).parent for path in folders.values() if path}
    if len(found) > 1:
        there = ", ".join(sorted(map(str, found)))
        raise LabError(f"find Kubernetes' programs: they are in {there} (put them into one folder)")
    return found.pop()
