"""Container runtimes of this machine, and whether they look where Limpet is installed."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limpet.base.configuration import parse_toml
from limpet.base.disk import read_regular
from limpet.cli.doctor.findings import Finding, error, ok, warn

DEFAULT_CONF_DIR = Path("/etc/cni/net.d")
DEFAULT_BIN_DIR = Path("/opt/cni/bin")


@dataclass(frozen=True, slots=True)
class Runtime:
    """A runtime that uses CNI, and what its configuration says about it."""

    name: str
    source: str
    """File that says so, or `defaults`."""
    conf_dir: Path = DEFAULT_CONF_DIR
    bin_dirs: tuple[Path, ...] = (DEFAULT_BIN_DIR,)
    problem: str = ""
    """Why it starts no pods as it is."""
    needs_loopback: bool = False
    """It runs the reference `loopback` plugin beside ours."""


def find_runtimes(root: Path = Path("/")) -> list[Runtime]:
    """Runtimes whose configuration or command is there."""
    return [*_containerds(root), *_crio(root), *_podman(root)]


def folders_in_use(
    runtimes: Iterable[Runtime], conf_dir: Path | None = None, bin_dir: Path | None = None
) -> tuple[Path, Path]:
    """Where the first runtime that works reads configurations and finds plugins.

    Distributions build theirs with folders of their own (Debian's containerd: /usr/lib/cni). Of
    several for plugins it is `bin_dir`, where ours was put before, if that is one of them; where
    no runtime is known it is both that were used before.
    """
    for runtime in runtimes:
        if not runtime.problem:
            usual = (each for each in (bin_dir, DEFAULT_BIN_DIR) if each in runtime.bin_dirs)
            return runtime.conf_dir, next(usual, None) or runtime.bin_dirs[0]
    return conf_dir or DEFAULT_CONF_DIR, bin_dir or DEFAULT_BIN_DIR


def examine_runtimes(
    runtimes: Iterable[Runtime], *, conf_dir: Path, bin_dir: Path
) -> Iterator[Finding]:
    """Whether each would find the configuration and the binary."""
    found = False
    for runtime in runtimes:
        found = True
        yield from _examine(runtime, conf_dir, bin_dir)
    if not found:
        yield warn(
            "runtime-missing",
            "no container runtime found (containerd, CRI-O, podman)",
            "nobody would call Limpet",
            "install one, or say with --cni-conf-dir and --cni-bin-dir where yours looks",
        )


def _examine(runtime: Runtime, conf_dir: Path, bin_dir: Path) -> Iterator[Finding]:
    who = f"{runtime.name} ({runtime.source})"
    if runtime.problem:
        yield warn(
            "runtime-says",
            f"{who} {runtime.problem}",
            "it starts no pods as it is",
            "change that there",
        )
        return
    right = True
    if runtime.conf_dir != conf_dir:
        right = False
        yield error(
            "runtime-conf-dir",
            f"{who} reads CNI configurations from {runtime.conf_dir}, not from {conf_dir}",
            "it would never call Limpet",
            f"install with --cni-conf-dir {runtime.conf_dir}",
        )
    if bin_dir not in runtime.bin_dirs:
        right = False
        yield error(
            "runtime-bin-dir",
            f"{who} looks for CNI plugins in {', '.join(map(str, runtime.bin_dirs))}, "
            f"not in {bin_dir}",
            "it would not find Limpet's binary, and start no pods",
            f"install with --cni-bin-dir {runtime.bin_dirs[0]}",
        )
    if runtime.needs_loopback and not any((d / "loopback").exists() for d in runtime.bin_dirs):
        right = False
        yield warn(
            "runtime-no-loopback",
            f"{runtime.name} needs the plugin `loopback`, and {runtime.bin_dirs[0]} has none",
            f"{runtime.name} before 2.0 starts no pod without it",
            "install the reference plugins (package containernetworking-plugins or "
            "kubernetes-cni) for that one",
        )
    if right:
        yield ok(f"{who} reads {conf_dir} and runs plugins of {bin_dir}")


def _containerds(root: Path) -> Iterator[Runtime]:
    paths = [
        root / "etc/containerd/config.toml",
        root / "var/lib/rancher/k3s/agent/etc/containerd/config.toml",
        root / "var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    ]
    found = [path for path in paths if path.exists()]
    yield from map(_containerd, found)
    if not found and shutil.which("containerd"):
        yield Runtime("containerd", "defaults", needs_loopback=True)


def _containerd(path: Path) -> Runtime:
    document, problem = read_toml(path)
    disabled = document.get("disabled_plugins") or []
    if "cri" in disabled or "io.containerd.grpc.v1.cri" in disabled:
        problem = "has the CRI plugin in disabled_plugins"
    cni = _containerd_cni(document.get("plugins"))
    bin_dirs = cni.get("bin_dirs") or [cni.get("bin_dir") or DEFAULT_BIN_DIR]
    return Runtime(
        "containerd",
        str(path),
        Path(cni.get("conf_dir") or DEFAULT_CONF_DIR),
        tuple(map(Path, bin_dirs)),
        problem,
        needs_loopback=not cni.get("use_internal_loopback"),
    )


def _containerd_cni(plugins: Any) -> Mapping[str, Any]:
    """Versions 1, 2 and 3 of its configuration have the table in different places."""
    for name in ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri"):
        cni = _table(_table(plugins, name), "cni")
        if cni:
            return cni
    return {}


def _crio(root: Path) -> Iterator[Runtime]:
    main = root / "etc/crio/crio.conf"
    paths = [main, *sorted((root / "etc/crio/crio.conf.d").glob("*.conf"))]
    found = [path for path in paths if path.exists()]
    if not found and not shutil.which("crio"):
        return
    network: dict[str, Any] = {}
    problem = ""
    for path in found:
        document, wrong = read_toml(path)
        problem = problem or wrong
        network |= _table(_table(document, "crio"), "network")
    yield Runtime(
        "CRI-O",
        str(found[-1]) if found else "defaults",
        Path(network.get("network_dir") or DEFAULT_CONF_DIR),
        tuple(map(Path, network.get("plugin_dirs") or [DEFAULT_BIN_DIR])),
        problem,
    )


_PODMAN_BIN_DIRS = (
    "/usr/local/libexec/cni",
    "/usr/libexec/cni",
    "/usr/local/lib/cni",
    "/usr/lib/cni",
    "/opt/cni/bin",
)
"""Source: containers.conf(5), cni_plugin_dirs."""


def _podman(root: Path) -> Iterator[Runtime]:
    """Only where it is told to use CNI: its own network stack takes no plugins."""
    path = root / "etc/containers/containers.conf"
    if not path.exists():
        return
    document, problem = read_toml(path)
    network = _table(document, "network")
    if network.get("network_backend") == "cni":
        yield Runtime(
            "podman",
            str(path),
            Path(network.get("network_config_dir") or DEFAULT_CONF_DIR),
            tuple(map(Path, network.get("cni_plugin_dirs") or _PODMAN_BIN_DIRS)),
            problem,
        )


def read_toml(path: Path) -> tuple[dict[str, Any], str]:
    """The document, and what is wrong with it."""
    try:
        return parse_toml(read_regular(path).decode()), ""
    except (OSError, ValueError) as problem:
        return {}, f"has a configuration that cannot be read: {problem}"


def _table(document: Any, name: str) -> dict[str, Any]:
    found = document.get(name) if isinstance(document, dict) else None
    return found if isinstance(found, dict) else {}
