"""A program that is forked from a warmed interpreter is what exec would have made of it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from limpet.lab.launch import ByExec, launching_with
from limpet.lab.process import Daemon
from tests.clients.machine import Machine
from tests.clients.networks import LimpetNetwork
from tests.conftest import NodeFactory
from tests.waiting import wait_until
from tests.warm.launcher import Warmed, what_is_wanted

PATH = "/usr/sbin:/usr/bin"
LIMPET = (sys.executable, "-m", "limpet")


@pytest.fixture(scope="module")
def warmed() -> Iterator[Warmed]:
    warmed = Warmed()
    yield warmed
    warmed.close()


@pytest.mark.parametrize(
    "words",
    [
        "--version",
        "--bad",
        "status --config nowhere.toml",
        "status --config here.toml",
        "node list",
        "token create --help",
        "policy explain - --config here.toml",
        "agent --config nowhere.toml",
        "controller --config here.toml",
    ],
)
def test_what_it_says_and_how_it_ends_is_the_same(
    warmed: Warmed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", "/nowhere/config")
    Path("here.toml").write_text("surprise = 1\n")
    command = [*LIMPET, *words.split()]

    forked = warmed.run(command, input="text")

    executed = ByExec().run(command, input="text")
    assert (forked.returncode, forked.stdout, forked.stderr) == (
        executed.returncode,
        executed.stdout,
        executed.stderr,
    )


def test_an_agent_has_its_namespace_its_session_and_no_files_of_others(
    make_node: NodeFactory,
) -> None:
    first, node = (make_node(segments=[f"10.244.{n}.0/24"]) for n in (7, 8))
    first.start_agent()
    node.start_agent()
    pid = node.agent_pid
    assert is_forked(pid)

    assert Path(f"/proc/{pid}/ns/net").stat().st_ino == Path(node.netns_path).stat().st_ino
    assert os.getsid(pid) == pid
    open_files = {each.name: os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()}
    assert open_files["0"] == "/dev/null"
    assert open_files["1"] == open_files["2"] == str(node.agent.log)
    first.stop_agent()
    with launching_with(ByExec()):
        first.start_agent()
    assert not is_forked(first.agent_pid)
    # Agents open a socket of the kernel's for a moment now and then.
    wait_until(lambda: kinds_of_files(pid) == kinds_of_files(first.agent_pid), "they have the same")


def kinds_of_files(pid: int) -> list[str]:
    """That it has open."""
    found = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(kind_of_file(os.readlink(each)))
    return sorted(found)


def kind_of_file(link: str) -> str:
    return re.sub(r"\[\d+\]$|lt\d+-\d+|node\d+", "", link)


def is_forked(pid: int) -> bool:
    return b"tests.warm.interpreter" in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, -9)])
def test_how_it_ended_is_told_once_it_is_asked_and_until_then_its_pid_is_its_own(
    warmed: Warmed, controller_config: Path, number: signal.Signals, code: int
) -> None:
    command = [*LIMPET, "controller", "--config", str(controller_config)]
    process = warmed.start(command, stderr=subprocess.DEVNULL)
    wait_until(lambda: ends_in_order(process.pid))
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0)
    assert process.poll() is None
    assert is_forked(process.pid)

    os.kill(process.pid, number)
    stat = Path(f"/proc/{process.pid}/stat")
    wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")

    assert process.wait() == process.poll() == code
    wait_until(lambda: not stat.exists())
    process.send_signal(signal.SIGTERM)  # to nobody


def ends_in_order(pid: int) -> bool:
    """Whether it catches SIGTERM."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(line.split()[1] for line in lines if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


@pytest.fixture
def controller_config(tmp_path: Path) -> Path:
    config = tmp_path / "controller.toml"
    config.write_text(
        f'state_dir = "{tmp_path}/state"\nsocket = "{tmp_path}/c.sock"\nlisten = "127.0.0.1:0"\n'
    )
    return config


def test_what_was_forked_goes_on_when_nobody_keeps_it_any_more(make_node: NodeFactory) -> None:
    node = make_node(segments=["10.244.7.0/24"])
    warmed = Warmed()
    with launching_with(warmed):
        node.start_agent()
    warmed.close()
    node.agent = Daemon(node.agent.what, node.folder / "agent.pid", node.agent.log)

    assert node.ask("status")["segments"]


@pytest.mark.parametrize(
    "command",
    [
        ["true"],
        ["unshare", "-m", *LIMPET, "agent", "--config", "x"],
        [sys.executable, "-c", "pass"],
        [*LIMPET, "dns", "serve"],
        [*LIMPET, "agent", "--help"],
        [*LIMPET],
    ],
)
def test_what_is_no_program_of_ours_or_starts_another_way_is_left_to_exec(
    command: list[str],
) -> None:
    assert what_is_wanted(command) is None


def test_a_machine_of_its_own_is_entered_as_nsenter_does(warmed: Warmed) -> None:
    with Machine() as machine:
        machine.write("/etc/here.toml", "surprise = 1\n")
        command = machine.argv([*LIMPET, "status", "--config", "etc/here.toml"], env={"HOME": "/"})
        wanted = what_is_wanted(command)
        assert wanted is not None
        assert wanted.environment == {"PATH": PATH, "HOME": "/", "LC_ALL": "C.UTF-8"}
        forked, executed = warmed.run(command), ByExec().run(command)
        assert "surprise" in forked.stderr
        assert (forked.returncode, forked.stderr) == (executed.returncode, executed.stderr)

        network = LimpetNetwork(machine)
        with launching_with(warmed):
            network.install()
            network.start()
            assert network.agent is not None
            pid = network.agent.pid
            assert is_forked(pid)
            for kind in ("mnt", "net", "pid", "ipc", "uts"):
                namespace = Path(f"/proc/{pid}/ns/{kind}").readlink()
                assert namespace == Path(f"/proc/{machine.pid}/ns/{kind}").readlink()
            network.kill_agent()
            assert not network.agent.running


def test_a_variable_that_counts_at_the_start_is_left_to_exec(warmed: Warmed) -> None:
    command = [*LIMPET, "status", "--config", "nowhere"]

    done = warmed.run(command, env={**os.environ, "PYTHONVERBOSE": "1"})

    assert done.returncode == 1
    assert "import 'site'" in done.stderr
