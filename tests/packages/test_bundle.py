"""The bundle on machines that reach nobody."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from release.checkout import version

from tests.packages.roots import PACKAGES, SUITES, RootMachine

pytestmark = pytest.mark.timeout(1500)


def unpacked(released: Path, folder: Path) -> Path:
    """As a person does."""
    (bundle,) = released.glob("limpet-*-bundle-*.tar")
    subprocess.run(["tar", "-xf", bundle, "-C", folder], check=True)
    (inside,) = folder.iterdir()
    return Path(PACKAGES, inside.name)


@pytest.mark.parametrize("suite", SUITES)
def test_it_makes_a_node_of_a_machine_without_any_network(
    suite: str, released: Path, tmp_path: Path
) -> None:
    folder = unpacked(released, tmp_path)
    with RootMachine(suite, tmp_path) as machine:
        assert "LOOPBACK" in machine.run("ip", "-oneline", "link", "show", "up")
        assert machine.run("ip", "route") == ""

        machine.run(f"{folder}/install.sh", timeout_s=600)

        assert machine.run("limpet", "--version") == f"limpet {version()}\n"
        assert "agent: runs" in machine.run("limpet", "install", "--segment", "10.244.7.0/24")
        assert machine.run("dpkg", "--verify", "limpet") == ""


def test_on_another_system_it_installs_the_wheels(released: Path, tmp_path: Path) -> None:
    """With a Python and libnftables of its own, and no packages that the bundle knows."""
    folder = unpacked(released, tmp_path)
    with RootMachine(SUITES[0], tmp_path) as machine:
        machine.apt("install", "python3-venv", "libnftables1")
        machine.run(
            "sed", "-i", "s/^VERSION_CODENAME=.*/VERSION_CODENAME=another/", "/etc/os-release"
        )
        assert machine.run("ip", "route") == ""

        done = machine.try_run(f"{folder}/install.sh", timeout_s=600)

        assert done.returncode == 0, done.stderr
        assert f"installed: limpet {version()}\n" in done.stderr
        limpet = "/usr/local/bin/limpet"  # no shell here looks in that folder
        assert machine.run("readlink", limpet) == "/opt/limpet/bin/limpet\n"
        assert "agent: runs" in machine.run(limpet, "install", "--segment", "10.244.7.0/24")
        assert "ready" in machine.run(limpet, "status", "--wait", "--timeout", "60")


def test_a_sites_bundle_lets_a_machine_into_its_cluster(released: Path, tmp_path: Path) -> None:
    """One machine is both: it has the controller, and is a node of it."""
    settings = tmp_path / "harbour.toml"
    settings.write_text('log_level = "debug"\n')
    (bundle,) = released.glob("limpet-*-bundle-*.tar")
    site = tmp_path / "bundle" / "harbour.tar"
    site.parent.mkdir()
    own = ("--settings", str(settings), "--controller", "127.0.0.1:7470")
    command = (sys.executable, "-m", "limpet", "bundle", str(bundle), str(site), *own)
    subprocess.run(command, check=True)
    subprocess.run(["tar", "-xf", site, "-C", site.parent], check=True)
    site.unlink()
    (inside,) = site.parent.iterdir()
    folder = Path(PACKAGES, inside.name)
    with RootMachine(SUITES[0], site.parent) as machine:
        machine.run(f"{folder}/install.sh", timeout_s=600)
        machine.run("limpet", "controller", "install")
        machine.run("sh", "-c", "limpet token create >/root/token")

        said = machine.run("sh", "-c", f"cd /root && {folder}/install.sh token", timeout_s=600)

        assert "agent: runs" in said
        assert machine.run("cat", "/etc/limpet/agent.toml").startswith(settings.read_text())
        assert "ready" in machine.run("limpet", "status", "--wait", "--timeout", "60")
        assert "10.244.0.0/" in machine.run("limpet", "node", "list")


def test_a_file_that_was_damaged_on_the_way_ends_it_before_anything_is_installed(
    released: Path, tmp_path: Path
) -> None:
    unpacked(released, tmp_path)
    (folder,) = tmp_path.iterdir()
    assert subprocess.run([folder / "install.sh", "--check"], check=False).returncode == 0
    with (folder / "limpet.yaml").open("ab") as damaged:
        damaged.write(b" ")

    done = subprocess.run(
        [folder / "install.sh", "--check"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert "limpet.yaml: FAILED" in done.stdout + done.stderr
    assert "nothing was installed" in done.stderr
