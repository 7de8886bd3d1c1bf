"""The Debian package on fresh Debians: installed, upgraded under traffic, removed, purged."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import typer
from release.checkout import version as version_of_checkout

from limpet.cli.completion.commands import words_by_command
from limpet.cli.completion.shells import Shell, completion_script
from limpet.cli.main import app
from limpet.cli.usage.manual import manual_pages
from limpet.cli.usage.tree import all_commands
from limpet.cni.shim_binary import shim_path
from tests.beds.written_files import differences, documented, modes, row_of, rows_of
from tests.packages.before import package_before, version_of
from tests.packages.node import BINARY, CONFLIST, add_pod, pinged, remove_pod
from tests.packages.roots import PACKAGES, SUITES, RootMachine
from tests.packages.rows import KEPT, OF_DPKG

pytestmark = pytest.mark.timeout(900)

UNITS = (
    *("limpet-agent.service", "limpet-controller.service", "limpet-dns.service"),
    "limpet-page.service",
)
_OF_APT = (
    "/var/lib/apt/",
    "/var/lib/dpkg/",
    "/var/log/",
    "/var/cache/",
    "/proc/",
    "/sys/",
    "/dev/",
)
_OF_SYSTEM = ("/run/systemd/", "/run/netns", "/var/lib/systemd/", "/tmp/", "/var/tmp/")
_COMPLETIONS = {
    Shell.BASH: "usr/share/bash-completion/completions/limpet",
    Shell.ZSH: "usr/share/zsh/vendor-completions/_limpet",
    Shell.FISH: "usr/share/fish/vendor_completions.d/limpet.fish",
}
"""Where each shell of Debian looks for the completion of `limpet` when somebody types that.

Source: README.md of bash-completion; zsh's $fpath on Debian; fish(1), "Where to put completions".
"""
_OF_TESTS = (PACKAGES, "/run/limpet-tests")


@pytest.fixture(scope="session")
def before(deb: Path, architecture: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the version before."""
    return package_before(deb, architecture, tmp_path_factory.mktemp("before"))


@pytest.fixture
def packages(deb: Path, before: Path, tmp_path: Path) -> Path:
    """What lies on the machine."""
    for path, name in ((deb, "limpet.deb"), (before, "before.deb")):
        shutil.copy(path, tmp_path / name)
    return tmp_path


def files(machine: RootMachine) -> set[str]:
    """Everything on its disk, and in /run, but for what apt keeps of any package."""
    said = machine.run("find", "/", "-xdev") + machine.run("find", "/run", "-xdev")
    others = (*_OF_APT, *_OF_SYSTEM, *_OF_TESTS)
    found = {line for line in said.splitlines() if not line.startswith(others)}
    # Python's own, of modules that nobody has loaded before.
    return {line for line in found if not re.match(r"/usr/lib/python3.*/__pycache__", line)}


def links(machine: RootMachine) -> set[str]:
    said = machine.run("ip", "-oneline", "link")
    return {line.split(": ")[1].split("@")[0] for line in said.splitlines()}


def version(machine: RootMachine) -> str:
    return machine.run("limpet", "--version").split()[-1]


def keys_of_the_cluster(machine: RootMachine) -> list[str]:
    said = machine.run("limpet", "network", "show", "--output", "json")
    keys: list[str] = json.loads(said)["keys"]
    return keys


@pytest.mark.parametrize("suite", SUITES)
def test_a_node_lives_with_the_package_from_installing_to_purging(
    suite: str, packages: Path, before: Path
) -> None:
    with RootMachine(suite, packages) as machine:
        machine.apt("install", "python3", "libnftables1", "libbpf1")
        fresh, fresh_links = files(machine), links(machine)

        # It brings its units, and starts none.
        machine.apt("install", f"{PACKAGES}/before.deb")
        assert version(machine) == version_of(before)
        for unit in UNITS:
            assert machine.try_run("systemctl", "is-enabled", unit).stdout.strip() == "disabled"
            assert machine.run("systemd-analyze", "verify", f"/usr/lib/systemd/system/{unit}") == ""
        listed = machine.run("dpkg-query", "--listfiles", "limpet").splitlines()
        assert [path for path in listed if path.startswith(("/etc", "/var", "/opt"))] == []

        # A machine becomes a node, by the package's own unit.
        said = machine.run("limpet", "install", "--segment", "10.244.7.0/24")
        assert "/usr/lib/systemd/system/limpet-agent.service: the package's" in said
        assert not machine.path("/etc/systemd/system/limpet-agent.service").exists()
        assert machine.run("systemctl", "is-enabled", UNITS[0]).strip() == "enabled"
        add_pod(machine, "one")
        two = add_pod(machine, "two")

        # Upgraded under traffic.
        process = machine.run("systemctl", "show", "--property=MainPID", UNITS[0])
        with pinged(machine, two, "one") as between_pods, pinged(machine, two) as from_node:
            machine.apt("install", f"{PACKAGES}/limpet.deb")
        assert between_pods["lost"] == from_node["lost"] == 0, (between_pods, from_node)
        assert between_pods["sent"] > 100
        assert machine.run("systemctl", "show", "--property=MainPID", UNITS[0]) != process
        assert version(machine) == version_of_checkout()
        assert machine.run("dpkg", "--verify", "limpet") == ""
        assert "`cni-config-missing`" in machine.run("limpet", "help", "doctor")
        assert (
            machine.path(BINARY).read_bytes()
            == machine.path("/usr/lib/limpet/site-packages/limpet/bin/limpet-cni").read_bytes()
        )
        add_pod(machine, "three")
        assert "three" in machine.run("limpet", "ipam", "list")

        # Not taken away from under pods.
        refused = machine.try_run("apt-get", "-qq", "-y", "remove", "limpet")
        assert refused.returncode != 0
        assert "pods are attached: default/" in refused.stdout + refused.stderr
        assert machine.run("systemctl", "is-active", UNITS[0]).strip() == "active"
        for pod in ("one", "two", "three"):
            remove_pod(machine, pod)
        machine.apt("remove", "limpet")
        assert links(machine) == fresh_links
        assert not machine.path(BINARY).exists()
        assert not machine.path(CONFLIST).exists()
        assert machine.path("/etc/limpet/agent.toml").exists()

        # Its settings and addresses wait for it, or go with the rest.
        machine.apt("install", f"{PACKAGES}/limpet.deb")
        machine.run("limpet", "install")
        assert "three" in machine.run("limpet", "ipam", "list")
        machine.run("limpet", "controller", "install", "--pod-cidr", "10.55.0.0/16")
        keys = keys_of_the_cluster(machine)
        machine.apt("purge", "limpet")
        assert links(machine) == fresh_links

        # But for a cluster's only database, which goes on where it is put back.
        (folder, database) = sorted(files(machine) - fresh)
        assert database == f"{folder}/controller.db"
        assert folder.startswith("/var/backups/limpet-controller-")
        kept = {
            path: f"{machine.path(path).stat().st_mode & 0o7777:o}" for path in (folder, database)
        }
        assert differences(kept) == {}
        assert rows_of(kept) == KEPT
        machine.apt("install", f"{PACKAGES}/limpet.deb")
        machine.run("limpet", "controller", "install", "--pod-cidr", "10.55.0.0/16", "--no-start")
        machine.run("limpet", "controller", "restore", database)
        machine.run("systemctl", "start", "limpet-controller")
        assert keys_of_the_cluster(machine) == keys


def test_every_file_of_the_package_has_the_owner_and_mode_that_the_document_says(
    deb: Path, tmp_path: Path
) -> None:
    """Folders that other packages have too are left out; below ours only we write."""
    subprocess.run(["dpkg-deb", "-x", deb, tmp_path], check=True)
    found = modes(tmp_path, ["usr"])
    rows = documented()
    own = {
        path: mode
        for path, mode in found.items()
        if row_of(path, rows) or (tmp_path / path[1:]).is_file()
    }
    below = {path: mode for path, mode in own.items() if path.startswith("/usr/lib/limpet/")}

    assert below
    assert {path: mode for path, mode in below.items() if mode not in ("644", "755", "link")} == {}
    assert differences({path: own[path] for path in own.keys() - below.keys()}) == {}
    assert rows_of(own) == OF_DPKG


def test_a_cluster_of_the_version_before_goes_on_with_the_new_one(
    packages: Path, before: Path
) -> None:
    """One machine has the controller and is a node, so all that either keeps is read by another
    version than has written it, while pods talk."""
    with RootMachine(SUITES[0], packages) as machine:
        machine.apt("install", "python3", "libnftables1", "libbpf1")
        machine.apt("install", f"{PACKAGES}/before.deb")
        assert version(machine) == version_of(before)
        machine.run("limpet", "controller", "install", "--pod-cidr", "10.55.0.0/16")
        tokens = [machine.run("limpet", "token", "create").strip() for _ in range(2)]
        machine.run("limpet", "community", "create", "harbour")
        joining = ("limpet", "install", "--controller", "127.0.0.1:7470", "--token-file", "-")
        machine.run(*joining, stdin=tokens[0])
        assert "ready" in machine.run("limpet", "status", "--wait", "--timeout", "60")
        add_pod(machine, "one")
        two = add_pod(machine, "two")
        known = known_to_the_controller(machine)
        agent, controller = processes(machine)

        with pinged(machine, two, "one") as between_pods:
            machine.apt("install", f"{PACKAGES}/limpet.deb")
        assert between_pods["lost"] == 0, between_pods
        assert version(machine) == version_of_checkout()
        assert {agent, controller}.isdisjoint(processes(machine))

        assert known_to_the_controller(machine) == known
        assert "ready" in machine.run("limpet", "status", "--wait", "--timeout", "60")
        three = add_pod(machine, "three")
        with pinged(machine, three, "one") as to_a_new_one:
            assert "three" in machine.run("limpet", "ipam", "list")
        assert to_a_new_one["lost"] == 0


def processes(machine: RootMachine) -> tuple[str, ...]:
    """The agent's and the controller's, by their ids."""
    asked = ("systemctl", "show", "--property=MainPID", "--value")
    return tuple(machine.run(*asked, unit).strip() for unit in UNITS[:2])


def known_to_the_controller(machine: RootMachine) -> list[object]:
    """Its keys, who is in the cluster, what each has, and who may come."""
    segments = json.loads(machine.run("limpet", "segment", "list", "--output", "json"))["segments"]
    tokens = json.loads(machine.run("limpet", "token", "list", "--output", "json"))["tokens"]
    communities = machine.run("limpet", "community", "list", "--output", "json")
    return [
        keys_of_the_cluster(machine),
        sorted((each["node"], each["segment"]) for each in segments),
        sorted(each["id"] for each in tokens),
        communities,
    ]


def test_the_binary_of_the_package_is_that_of_the_wheel(deb: Path, tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "-x", deb, tmp_path], check=True)
    packed = tmp_path / "usr/lib/limpet/site-packages/limpet/bin/limpet-cni"

    assert packed.read_bytes() == shim_path().read_bytes()


def test_every_package_completes_in_three_shells_and_has_the_pages_of_this_version(
    released: Path, tmp_path: Path
) -> None:
    commands = list(all_commands(typer.main.get_command(app)))
    pages = manual_pages(commands, version_of_checkout())
    debs = sorted(released.glob("limpet_*.deb"))
    assert len(debs) == len({deb.stem.rpartition("_")[2] for deb in debs}) == 2
    for deb in debs:
        tree = tmp_path / deb.stem
        subprocess.run(["dpkg-deb", "-x", deb, tree], check=True)

        for shell, path in _COMPLETIONS.items():
            script = tree / path
            assert script.read_text() == completion_script(shell, words_by_command(commands))
            assert script.stat().st_mode & 0o7777 == 0o644
        packed = {page.name: page for page in (tree / "usr/share/man/man1").iterdir()}
        assert packed.keys() == {f"{name}.gz" for name in pages}
        for name, text in pages.items():
            page = packed[f"{name}.gz"]
            assert gzip.decompress(page.read_bytes()).decode() == text
            assert page.stat().st_mode & 0o7777 == 0o644
        # What bash itself does with the file that it loads when `limpet` is to be completed.
        words = ["bash", "--norc", "-c", 'source "$1"; complete -p limpet', "bash"]
        said = subprocess.run(
            [*words, tree / _COMPLETIONS[Shell.BASH]], capture_output=True, text=True, check=True
        )
        assert said.stdout.endswith(" limpet\n")


def test_lintian_has_nothing_to_complain_of(released: Path) -> None:
    for deb in released.glob("limpet_*.deb"):
        done = subprocess.run(
            ["lintian", "--allow-root", "--fail-on", "error,warning", deb],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
