"""Where runtimes look for plugins."""

from __future__ import annotations

from pathlib import Path

import pytest

from limpet.cli.doctor.findings import Level
from limpet.cli.install.runtimes import (
    DEFAULT_BIN_DIR,
    DEFAULT_CONF_DIR,
    Runtime,
    examine_runtimes,
    find_runtimes,
    folders_in_use,
)

CONTAINERD_1 = """
version = 2
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "/etc/cni/net.d"
"""
CONTAINERD_2 = """
version = 3
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/srv/cni", "/opt/cni/bin"]
conf_dir = "/srv/net.d"
use_internal_loopback = true
"""
CRIO = """
[crio.network]
network_dir = "/etc/crio/net.d"
plugin_dirs = ["/usr/libexec/cni"]
"""
PODMAN = """
[network]
network_backend = "cni"
"""


@pytest.fixture(autouse=True)
def _no_commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.mark.parametrize(
    ("path", "text", "conf_dir", "bin_dir"),
    [
        ("etc/containerd/config.toml", CONTAINERD_1, "/etc/cni/net.d", "/usr/lib/cni"),
        ("etc/containerd/config.toml", CONTAINERD_2, "/srv/net.d", "/opt/cni/bin"),
        ("etc/containerd/config.toml", "", "/etc/cni/net.d", "/opt/cni/bin"),
        ("etc/crio/crio.conf.d/10.conf", CRIO, "/etc/crio/net.d", "/usr/libexec/cni"),
        ("etc/containers/containers.conf", PODMAN, "/etc/cni/net.d", "/opt/cni/bin"),
    ],
)
def test_limpet_goes_where_the_runtime_looks(
    tmp_path: Path, path: str, text: str, conf_dir: str, bin_dir: str
) -> None:
    write(tmp_path, path, text)

    runtimes = find_runtimes(tmp_path)
    found = folders_in_use(runtimes)

    assert found == (Path(conf_dir), Path(bin_dir))
    levels = {
        finding.level for finding in examine_runtimes(runtimes, conf_dir=found[0], bin_dir=found[1])
    }
    assert Level.ERROR not in levels


def test_what_was_used_before_is_used_again_where_no_runtime_says_otherwise() -> None:
    before = Path("/srv/net.d"), Path("/usr/lib/cni")
    assert folders_in_use([], *before) == before
    both = Runtime("containerd", "config.toml", bin_dirs=(DEFAULT_BIN_DIR, before[1]))
    assert folders_in_use([both], *before) == (DEFAULT_CONF_DIR, before[1])
    one = Runtime("containerd", "config.toml", bin_dirs=(Path("/srv/cni"),))
    assert folders_in_use([one], *before) == (DEFAULT_CONF_DIR, Path("/srv/cni"))


def test_a_runtime_that_looks_elsewhere_is_an_error_that_says_where() -> None:
    runtime = Runtime("containerd", "config.toml", Path("/srv/net.d"), (Path("/srv/cni"),))

    findings = list(examine_runtimes([runtime], conf_dir=DEFAULT_CONF_DIR, bin_dir=DEFAULT_BIN_DIR))

    assert [finding.level for finding in findings] == [Level.ERROR, Level.ERROR]
    assert "--cni-conf-dir /srv/net.d" in findings[0].advice
    assert "--cni-bin-dir /srv/cni" in findings[1].advice


@pytest.mark.parametrize("text", ['disabled_plugins = ["cri"]', "]["])
def test_a_runtime_that_starts_no_pods_is_named_and_not_followed(tmp_path: Path, text: str) -> None:
    write(tmp_path, "etc/containerd/config.toml", text)

    runtimes = find_runtimes(tmp_path)
    (finding,) = examine_runtimes(runtimes, conf_dir=DEFAULT_CONF_DIR, bin_dir=DEFAULT_BIN_DIR)

    assert finding.level is Level.WARN
    assert folders_in_use(runtimes) == (DEFAULT_CONF_DIR, DEFAULT_BIN_DIR)


def test_podman_with_its_own_network_stack_is_none_of_ours(tmp_path: Path) -> None:
    write(tmp_path, "etc/containers/containers.conf", '[network]\nnetwork_backend = "netavark"\n')

    assert find_runtimes(tmp_path) == []
